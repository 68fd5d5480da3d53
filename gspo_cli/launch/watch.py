"""Signs of life between the processes of one run.

A thread in every rank tells the watcher what the rank is doing and hears what the watcher knows of all. The watcher is
the launcher; under `torchrun`, whose machines have no process of ours but the ranks, it is rank 0. It judges by its own
clock, so those of the machines need not agree, and through sockets, so it needs no folder that all see.
"""

import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gspo_cli.distributed import ACTIVITY, Activity, Ranks
from gspo_cli.errors import ExitCode, GspoError

WATCHER = "GSPO_WATCHER"
"""The variable with the launcher's address."""
INTERVAL_S = 5.0
"""Between two signs of life."""
STOPPED_S = 30.0
"""Silence after which a process that the kernel reports as stopped counts as hung."""
SILENT_S = 300.0
"""The same for any process: loading a library from slow storage may keep all its threads waiting for minutes."""
LAUNCHER_SILENT_S = 20.0
"""A rank saves and ends when the launcher did not answer twice for so long. Twice, since a scheduler may have stopped
both and continued both."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = 1024


class Watcher:
    """Knows what each rank last said, and when."""

    def __init__(self, size: int, host: str = "127.0.0.1") -> None:
        now = self._asked_at = time.monotonic()
        start = Activity().as_table()
        self.said: dict[int, tuple[float, dict[str, Any]]] = dict.fromkeys(range(size), (now, start))
        watcher = self

        class Listener(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                rank = -1
                with suppress(OSError):
                    for line in self.rfile:
                        said = json.loads(line)
                        rank = said["rank"]
                        watcher.said[rank] = time.monotonic(), said
                        self.wfile.write(json.dumps(watcher.table()).encode() + b"\n")
                watcher.said.pop(rank, None)  # it ended: whoever started it, or a collective, finds out how

        self.server = _Server((host, 0), Listener)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, name="watcher", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def table(self) -> dict[int, dict[str, Any]]:
        """Rank -> what it said last (see `Activity.as_table`), and the seconds since then."""
        now = time.monotonic()
        return {
            rank: said | {"for_s": round(said["for_s"] + now - at, 1), "silent_s": round(now - at, 1)}
            for rank, (at, said) in sorted(self.said.copy().items())
        }

    def hung(self, processes: Mapping[int, int] | None = None) -> GspoError | None:
        """The error to end the run with, if a rank is silent or has been in one phase for too long. `processes`: rank
        -> its process, of those that run, if they are on this machine. To be called every few seconds."""
        now = time.monotonic()
        if (gap := now - self._asked_at) > INTERVAL_S:  # this process was stopped, as the ranks may have been
            self.said = {rank: (at + gap, said) for rank, (at, said) in self.said.copy().items()}
        self._asked_at = now
        table = {rank: of for rank, of in self.table().items() if processes is None or rank in processes}
        silent = [
            rank for rank, of in table.items()
            if of["silent_s"] > SILENT_S
            or (of["silent_s"] > STOPPED_S and processes and is_stopped(processes[rank]))
        ]  # fmt: skip
        if silent:
            return hung_error({r: table[r]["phase"] for r in silent}, "no sign of life", table[silent[0]]["silent_s"])
        late = [rank for rank, of in table.items() if of["for_s"] > of["limit_s"]]
        if not late:
            return None
        named = [rank for rank, of in table.items() if not of["waits"]] or late  # those that the others wait for
        why = f"no other phase (guards.hang_s and ten times the longest so far: {table[late[0]]['limit_s']:.0f} s)"
        return hung_error({r: table[r]["phase"] for r in named}, why, table[late[0]]["for_s"])


def hung_error(phases: dict[int, str], lacks: str, seconds: float) -> GspoError:
    """Names the ranks."""
    return GspoError(
        f"hung: {', '.join(f'rank {rank} in phase {phase}' for rank, phase in phases.items())}",
        f"{lacks} for {seconds:.0f} s",
        "see that process and its machine; gspo train --resume continues from the last checkpoint",
        ExitCode.ENGINE,
    )


def is_stopped(process: int) -> bool:
    """Whether the kernel reports a process as stopped, by a signal or a debugger."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def report_to_launcher() -> None:
    """Tell the launcher from now on what this rank does. If the launcher dies or stops, this process gets SIGTERM."""
    host, _, port = os.environ[WATCHER].rpartition(":")

    def report() -> None:
        report_to((host, int(port)), int(os.environ["RANK"]), LAUNCHER_SILENT_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=report, name="watched", daemon=True).start()


def watch_each_other(ranks: Ranks) -> None:
    """Watch from rank 0, where no launcher does. Whoever finds that a rank hangs says so and ends: then torchrun ends
    all. All ranks must call this."""
    watcher = Watcher(ranks.size, "") if ranks.is_main else None
    port = ranks.broadcast(lambda: watcher and watcher.port)

    def end(error: GspoError) -> None:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(error.code)

    def report() -> None:
        if report_to((os.environ["MASTER_ADDR"], port), ranks.rank, SILENT_S / 2):
            end(hung_error({0: "unknown"}, "no sign of life", SILENT_S))

    def watch() -> None:
        assert watcher is not None
        while (error := watcher.hung()) is None:
            time.sleep(1)
        end(error)

    for work in (report, watch) if ranks.is_main else (report,):
        threading.Thread(target=work, name="watched", daemon=True).start()


def report_to(address: tuple[str, int], rank: int, patience_s: float) -> bool:
    """Report what this rank does until the watcher is gone (False) or has not answered twice within `patience_s`."""
    try:
        with socket.create_connection(address, timeout=patience_s) as connection:
            while True:
                connection.sendall(json.dumps({"rank": rank} | ACTIVITY.as_table()).encode() + b"\n")
                answer, missed = b"", 0
                while not answer.endswith(b"\n"):
                    try:
                        part = connection.recv(1 << 16)
                    except TimeoutError:
                        missed += 1
                        if missed == 2:
                            return True
                        continue
                    if not part:
                        return False
                    answer += part
                ACTIVITY.ranks = json.loads(answer)
                time.sleep(INTERVAL_S)
    except OSError:
        return False
