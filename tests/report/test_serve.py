"""`gspo report serve`: one page on 127.0.0.1, drawn again when a log grows, without any script."""

import http.client
import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare_studies import flat, put, write_study
from program import Spawned, refusal

from gspo_cli.errors import GspoError
from gspo_cli.report.page import serve
from gspo_cli.report.page.serve import LivePage, PageServer

PAGE = "<!doctype html>\n<html><head>\n<title>x</title></head><body><h1>demo</h1><p>drawn {}</p></body></html>"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of two runs whose page takes no time."""
    monkeypatch.setattr(serve, "DRAW_S", 0.0)
    return write_study(tmp_path / "demo", flat([0.1]), seeds=1)


@pytest.fixture
def server(study: Path) -> Iterator[PageServer]:
    """The server at work on a free port, its drawing replaced."""
    with PageServer(study, 0) as found:
        drawn: list[int] = []
        found.live.draw = lambda _: drawn.append(1) or PAGE.format(len(drawn))  # type: ignore[func-returns-value]
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def get(server: PageServer, path: str = "/", host: str | None = None) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of an answer, once nothing is being drawn."""
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), port, timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    if server.live.thread is not None:
        server.live.thread.join()
    return found


def test_the_page_is_drawn_again_when_a_log_grows_and_only_then(server: PageServer, study: Path) -> None:
    get(server)
    for _ in range(2):
        assert "drawn 1<" in get(server)[1]
    log = next(study.glob("*/metrics.jsonl"))
    log.write_text(log.read_text() + "\n")
    get(server)
    assert "drawn 2<" in get(server)[1]
    text = get(server)[1]
    assert 'http-equiv="refresh"' in text and "grpo-s0" in text and "completed" in text
    assert "<script" not in text and not re.search(r"(src|href)=", text)


def test_nobody_waits_for_the_figures(study: Path) -> None:
    release = threading.Event()
    live = LivePage(study, draw=lambda _: PAGE.format(1) if release.wait(60) else "")
    assert all("the figures are being drawn" in live.text() and "grpo-s0" in live.text() for _ in range(2))
    assert "name='viewport'" in live.text()
    release.set()
    assert live.thread is not None
    live.thread.join()
    assert "drawn 1<" in live.text()


def test_only_this_machine_reads_the_page_and_nothing_else(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    paths = ("/", "/etc/passwd", "/../run.json", "/report.html")
    assert [get(server, path)[0] for path in paths] == [200, 404, 404, 404]
    assert get(server, host="evil.example:80")[0] == 403
    assert "default-src 'none'" in get(server)[2]["Content-Security-Policy"]
    assert "cannot listen" in refusal(PageServer, server.live.study, server.server_address[1])


def test_hostile_names_are_text_and_a_study_without_a_log_waits(study: Path) -> None:
    live = LivePage(study, draw=lambda _: (_ for _ in ()).throw(GspoError("no log", "<b>not yet</b>", "wait")))
    put(study / "gspo-s0" / "invalidated.json", {"reason": "\u202e<b>no"})
    live.text()
    assert live.thread is not None
    live.thread.join()
    text = live.text()
    assert "no log: &lt;b&gt;not yet&lt;/b&gt;" in text and r"\u202e&lt;b&gt;no" in text and "<b>no" not in text


@pytest.mark.parametrize(
    ("error", "told"), [(ConnectionResetError(), False), (TimeoutError(), False), (KeyError("x"), True)]
)
def test_a_reader_who_goes_away_is_no_news(
    server: PageServer, capsys: pytest.CaptureFixture[str], error: Exception, told: bool
) -> None:
    try:
        raise error
    except type(error):
        server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) == told


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly_while_a_page_is_being_drawn(study: Path) -> None:
    started = Spawned("report", "serve", study, "--port", "0", "--json")
    assert started.process.stdout
    urllib.request.urlopen(json.loads(started.process.stdout.readline())["url"]).read()
    time.sleep(0.55)  # the thread that draws is within Arrow or matplotlib
    started.send(signal.SIGINT)
    ended = started.wait()
    assert (ended.code, ended.err.splitlines()[-1]) == (0, "stopped")
