"""`gspo report serve`: the page of a study in the browser, drawn again as its logs grow; no script.

Python's own server is enough: it answers one reader on this machine, and serves one page from memory.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gspo_cli.errors import GspoError
from gspo_cli.report.page.html import report_html
from gspo_cli.report.runs.facts import list_runs
from gspo_cli.report.runs.folders import read_study
from gspo_cli.sanitize import sanitize

HOST = "127.0.0.1"
RELOAD_S = 5
"""Between two loads of the page by the browser."""
DRAW_S = 10.0
"""Least time between two drawings of the figures."""
ENDED = ("completed", "failed", "interrupted", "broken", "invalidated", "killed")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
FIRST = Markup(
    "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
    "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>{0} - gspo</title>\n"
    "<style>:root {{ color-scheme: light dark; }} body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; "
    "max-width: 62rem; padding: 1rem 1.2rem; }} .wide {{ overflow-x: auto; }} "
    "th, td {{ padding: .25rem .8rem .25rem 0; text-align: left; }}</style>\n"
    "</head>\n<body>\n<h1>{0}</h1>\n</body>\n</html>\n"
)
"""The page until the figures are drawn for the first time."""
Signature = tuple[tuple[str, int, int], ...]


def signature(study: Path) -> Signature:
    """What changes when a log grows: name, size and time of the logs of all runs."""
    files = [path for name in ("metrics.jsonl", "events.jsonl") for path in sorted(study.glob(f"*/{name}"))]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()])


def now_table(study: Path) -> Markup:
    """Every run with its state, progress and last reward, escaped."""
    row = Markup("<tr><td>{}</td><td>{}</td><td class='number'>{}</td><td class='number'>{}</td><td>{}</td></tr>")
    head = Markup("<tr><th>run</th><th>state</th><th>rollout batch</th><th>reward</th><th>last sign</th></tr>")
    rows = Markup("").join(row.format(*map(sanitize, _cells(run))) for run in list_runs(study))
    return Markup("<div class='wide'><table>{}{}</table></div>").format(head, rows)


def _cells(run: dict[str, Any]) -> tuple[str, ...]:
    reward, sign, status = run.get("reward"), run.get("last_sign_s"), run["status"]
    alive = status == "running" and sign is not None  # its last sign says more than that no end is recorded
    return (
        run["run"] or run["study"],
        f"{status}: {run['reason']}" if run["reason"] and not alive else status,
        f"{run.get('steps', 0)}/{run.get('planned', '?')}",
        f"{reward:.3f}" if isinstance(reward, int | float) else "n/a",
        "" if sign is None or status in ENDED else f"{run['phase']}, {max(0, sign):.0f} s ago",
    )


class LivePage:
    """The newest page of a study, drawn in a thread of its own so that no reader waits for it."""

    def __init__(self, study: Path, draw: Callable[[Path], str] | None = None) -> None:
        self.study, self.draw = study, draw or _draw
        self.page, self.why, self.drawn_at = "", "the figures are being drawn", ""
        self.seen: Signature | None = None
        self.last = -DRAW_S
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Begin to draw the page again if a log has grown, unless that goes on or was done a moment ago."""
        with self.lock:
            busy = self.thread is not None and self.thread.is_alive()
            if busy or time.monotonic() - self.last < DRAW_S or (found := signature(self.study)) == self.seen:
                return
            self.seen, self.last = found, time.monotonic()
            self.thread = threading.Thread(target=self._draw_again, name="draw", daemon=True)
            self.thread.start()

    def _draw_again(self) -> None:
        try:
            page, why = self.draw(self.study), ""
        except GspoError as error:
            page, why = self.page, f"{error.message}: {error.why}"
        except Exception as error:  # a thread that died would leave "being drawn" on the page for ever
            page, why = self.page, f"the page cannot be drawn: {error}"
        self.page, self.why, self.drawn_at = page, why, f"{datetime.now():%H:%M:%S}"
        self.last = time.monotonic()

    def text(self) -> str:
        """The page as it stands, with the state of every run at its head and the browser's order to reload it."""
        self.refresh()
        base = self.page or FIRST.format(self.study.name)
        about = f"figures drawn at {self.drawn_at}" if self.drawn_at and not self.why else self.why
        line = Markup("<p class='soft'>{}; reloaded every {} s.</p>").format(about, RELOAD_S)
        reload = f'<head>\n<meta http-equiv="refresh" content="{RELOAD_S}">'
        return str(base).replace("<head>", reload, 1).replace("</h1>", f"</h1>{now_table(self.study)}{line}", 1)


def _draw(study: Path) -> str:
    return report_html(read_study(study)).read_text(encoding="utf-8")


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, and nothing else."""

    server: PageServer
    timeout = 10.0  # for a reader that sends or takes nothing
    server_version, sys_version = "gspo", ""

    def do_GET(self) -> None:
        """The page at `/`."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):  # a page elsewhere that names us so
            return self.send_error(403, "only for this machine's own name")
        if self.path != "/":
            return self.send_error(404)
        body = self.server.live.text().encode("utf-8", "replace")
        self.send_response(200)
        for name, value in (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body))),
                            ("Cache-Control", "no-store"), ("Content-Security-Policy", POLICY),
                            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a reload every few seconds is no news."""


class PageServer(ThreadingHTTPServer):
    """The server of one study's page, on this machine's own address only."""

    daemon_threads = True

    def __init__(self, study: Path, port: int) -> None:
        """Errors: GspoError if the port is taken."""
        self.live = LivePage(study)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise GspoError(
                f"cannot listen on {HOST}:{port}", f"{error.strerror or error}", "choose another --port, or 0 for any"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no news."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"
