"""The worker processes: bombs end, errors are counted apart, nobody is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.rewards.math import algebra, grade
from gspo_cli.rewards.math.algebra import Verifier, Worker
from gspo_cli.rewards.math.grade import grade_math

BOMBS = [r"(x+y+z+1)^{500}", r"(9999999)_{k}", r"\sin(" * 20 + "1" + ")" * 20, r"((9^{999})^{999})!"]
FAKES = {
    "print('no sense', flush=True)": "crash", "print('{\"id\": 2, \"same\": true}', flush=True)": "crash",
    "print('{\"id\": 1, \"same\": 1}', flush=True)": "crash", "print('[]', flush=True)": "crash",
    "print('{\"id\": 1, \"same\": true, \"error\": 0}', flush=True)": "crash", "raise SystemExit": "crash",
    "import os; os.kill(os.getpid(), 9)": "crash", "print('{\"id\": 1, \"error\": \"memory\"}', flush=True)": "memory",
    "print('{\"id\": 1, \"same\": true}', flush=True)": "same", }  # fmt: skip
"""What a worker does on its first item, and what the parent makes of it."""


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> Iterator[Verifier]:
    """A pool of its own, with one worker that is ready."""
    made = Verifier()
    monkeypatch.setattr(grade, "VERIFIER", made)
    assert made.compare("x+1", "1+x") == "same"
    yield made
    made.close()


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float) -> bool:
    """Whether all processes end in time."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


@pytest.mark.parametrize("bomb", [BOMBS[0], pytest.param(BOMBS[1:], marks=pytest.mark.slow)])
@pytest.mark.usefixtures("verifier")
def test_a_bomb_ends_and_the_next_answer_is_graded(bomb: str | list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(bomb, str):
        monkeypatch.setattr(algebra, "DEADLINE_S", 0.5)
    for text in [bomb] if isinstance(bomb, str) else bomb:
        start = time.monotonic()
        found = grade_math(f"\\boxed{{{text}}}", "204")
        assert time.monotonic() - start < algebra.CEILING_S / 2  # 3 s of its own time
        assert (found.verdict, found.reason, found.score.value) in {
            ("wrong", "timeout", 0.0), ("wrong", "refused", 0.0)
        }  # fmt: skip
        assert grade_math(r"\boxed{1+x}", "x+1").verdict == "correct"
    start = time.monotonic()
    assert not grade_math(f"\\boxed{{{text}}}", "204").passed
    assert time.monotonic() - start < 1  # known by now: without another deadline


@pytest.mark.parametrize("does", FAKES)
def test_a_reply_is_believed_only_if_it_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    program = tmp_path / "worker.py"
    program.write_text(f"print('{{\"ready\": true}}', flush=True)\ninput()\n{does}\ninput()\n")
    monkeypatch.setattr(algebra, "PROGRAM", program)
    worker = Worker()
    assert worker.compare("1", "2", lambda: None) == FAKES[does]
    worker.close()


def waiting_worker(folder: Path, does: str) -> Worker:
    """A worker that says hello and does this on its first item."""
    program = folder / "worker.py"
    program.write_text(f"import os, time\nprint('{{\"ready\": true}}', flush=True)\ninput()\n{does}\n")
    return Worker()


SAME = 'print(\'{"id": 1, "same": true}\', flush=True)'


def test_the_deadline_is_the_workers_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that gets no processor, here because it sleeps, has time left; one that computes has not."""
    monkeypatch.setattr(algebra, "DEADLINE_S", 0.2)
    busy = Worker()
    assert busy.compare("204", BOMBS[0], lambda: None) == "timeout"
    assert busy.process.returncode == -signal.SIGPROF
    busy.close()
    monkeypatch.setattr(algebra, "PROGRAM", tmp_path / "worker.py")
    starved = waiting_worker(tmp_path, f"time.sleep(0.7); {SAME}")
    assert starved.compare("1", "2", lambda: None) == "same"
    starved.close()


@pytest.mark.parametrize("stops", ["time.sleep(600)", "os.kill(os.getpid(), 19)"])
def test_a_worker_that_sleeps_or_is_stopped_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: str) -> None:
    monkeypatch.setattr(algebra, "PROGRAM", tmp_path / "worker.py")
    monkeypatch.setattr(algebra, "CEILING_S", 0.5)
    pool = Verifier()
    worker = waiting_worker(tmp_path, stops)
    pool._idle.append(worker)
    start = time.monotonic()
    assert pool.compare("1", "2") == "timeout"
    assert time.monotonic() - start < 60
    assert worker.process.returncode == -signal.SIGKILL and pool._idle[0] is not worker
    pool.close()


@pytest.mark.parametrize("program", ["raise SystemExit", "print('hello', flush=True)", "import no_such_module"])
def test_a_worker_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    (tmp_path / "worker.py").write_text(program)
    monkeypatch.setattr(algebra, "PROGRAM", tmp_path / "worker.py")
    with pytest.raises(GspoError, match="cannot start") as caught:
        Verifier().compare("x", "y")
    assert caught.value.code == ExitCode.ENGINE


def test_a_worker_that_is_killed_at_work_costs_one_verdict(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = verifier._idle[0]
    monkeypatch.setattr(algebra, "SLOW_S", 0.3)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(verifier, "_spare", kill)
    assert verifier.compare("204", BOMBS[0]) == "crash"
    monkeypatch.undo()
    assert verifier.compare("x+2", "2+x") == "same"


def test_a_worker_that_died_while_idle_costs_nothing(verifier: Verifier) -> None:
    worker = verifier._idle[0]
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert verifier.compare("x+2", "2+x") == "same"


def test_a_worker_is_replaced_after_its_share(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    first = verifier._idle[0].process.pid
    monkeypatch.setattr(algebra, "MAX_ITEMS", 2)
    assert verifier.compare("x+2", "2+x") == "same"
    assert verifier._idle[0].process.pid != first and not alive(first)


def test_memory_is_limited(verifier: Verifier) -> None:
    limits = Path(f"/proc/{verifier._idle[0].process.pid}/limits").read_text()
    assert f"Max address space         {4 * 2**30}" in limits


def test_the_worker_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary")
    worker = Worker()
    assert b"canary" not in Path(f"/proc/{worker.process.pid}/environ").read_bytes()
    worker.close()


PARENT = """
import threading, time
from gspo_cli.rewards.math.algebra import VERIFIER
assert VERIFIER.compare("x+1", "1+x") == "same"
for gold in ("204", "205"):
    threading.Thread(target=VERIFIER.compare, args=(gold, "(x+y+z+1)^{500}"), daemon=True).start()
time.sleep(1.5)
print("busy", flush=True)
input()
%s
"""


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "code"), [("kill", -9), ("", 0), ("raise SystemExit(3)", 3)])
def test_no_worker_outlives_its_parent(ends: str, code: int) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PARENT % ends.replace("kill", "")], text=True, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == "busy\n"
        workers = children(parent.pid)
        assert len(workers) >= 2 and all(map(alive, workers))
        if ends == "kill":
            parent.kill()
        else:
            parent.stdin.write("\n")
            parent.stdin.flush()
        assert parent.wait(timeout=30) == code
        assert gone(workers, 2)


def test_a_forked_child_leaves_the_parents_workers_alone() -> None:
    program = (
        "import os\nfrom gspo_cli.rewards.math.algebra import VERIFIER as v\n"
        "assert v.compare('x+1', '1+x') == 'same'\nmine = v._idle[0].process.pid\n"
        "child = os.fork()\n"
        "if not child:\n    assert v._idle == [] and v.compare('x+2', '2+x') == 'same'\n    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert v.compare('x+3', '3+x') == 'same' and v._idle[0].process.pid == mine\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
