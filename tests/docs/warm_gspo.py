"""A server that has `gspo`'s libraries loaded and forks for each command; and, with `ask`, what stands in its place.

Loading them takes longer than most of the shortened commands, of which the pages have some seventy. A fork has the
asker's words, folder, environment and standard streams, and ends with the program's exit code.

    python warm_gspo.py serve SOCKET           prints `ready`, and serves until it is killed
    python warm_gspo.py ask SOCKET WORDS...
"""

import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

LIBRARIES = (
    "torch", "transformers", "pandas", "matplotlib.pyplot", "scipy.stats", "gspo_cli.cli.main",
    "gspo_cli.training.study.arms", "gspo_cli.report.figures.plots",
)  # fmt: skip


def serve(path: str) -> None:
    """Answers until it is killed."""
    from shortened_gspo import shortened

    for name in LIBRARIES:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks; each answers its asker
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            asker, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(asker, shortened)
            asker.close()


def answer(asker: socket.socket, shortened: object) -> None:
    """Runs one command in this process, which ends with it."""
    text, streams, _, _ = socket.recv_fds(asker, 1 << 20, 3)
    asked = json.loads(text)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    with Path(os.environ["DOCS_RAN"]).open("a") as ran:
        ran.write(json.dumps(asked["words"]) + "\n")
    sys.argv = ["gspo", *shortened(asked["words"])]  # type: ignore[operator]
    code = 1
    try:
        from gspo_cli.cli.main import run

        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        asker.sendall(bytes([code]))
        os._exit(code)


def ask(path: str, words: list[str]) -> int:
    """The exit code of a command that the server ran."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
        return (server.recv(1) or b"\x01")[0]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
