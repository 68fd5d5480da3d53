"""Sandboxes: what is chosen and refused, that programs end, and that nothing of them stays."""

import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from program import refusal
from sandboxes import SYSTEM_PYTHON, own_sandbox, plain_user_sandbox

from gspo_cli.doctor import check_sandbox
from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.official import grade_official
from gspo_cli.rewards.code.script import grade_script
from gspo_cli.sandbox.bubblewrap import Bubblewrap, User
from gspo_cli.sandbox.choose import SandboxChoice, UnsafeLocal, open_sandbox, probe
from gspo_cli.sandbox.contract import Job, Sandbox
from gspo_cli.sandbox.machine import find_interpreter, physical_cores
from gspo_cli.sandbox.memory import held_bytes
from gspo_cli.sandbox.process import Process

TESTS = CodeTests(("1\n", "2\n"), ("2", "3"))
RIGHT = "print(int(input()) + 1)"


def job(program: str, **more: object) -> Job:
    return Job("program.py", {"program.py": program.encode()}, announce=True, **more)  # type: ignore[arg-type]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    opened = own_sandbox()
    yield opened
    opened.close()


@pytest.fixture(params=["bwrap", "unsafe-local"])
def any_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    opened = own_sandbox() if request.param == "bwrap" else open_sandbox(SandboxChoice(unsafe_local=True))
    yield opened
    opened.close()


def test_both_graders_work_in_it(any_sandbox: Sandbox) -> None:
    function = CodeTests(("1", "2"), ("2", "3"), "f")
    for grade in (grade_official, grade_script):
        assert grade(any_sandbox, RIGHT, TESTS).passed
        assert grade(any_sandbox, "print(2)", TESTS).verdict == "wrong_answer"
        assert grade(any_sandbox, "def f(x): return x + 1", function).passed
    assert any_sandbox.facts()["sandbox"] == any_sandbox.kind


def test_a_program_ends_within_its_limit_whatever_it_ignores(any_sandbox: Sandbox) -> None:
    stubborn = (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    )
    process = any_sandbox.start(job(stubborn))
    start = time.monotonic()
    done = process.run(b"", start + 0.5, cap=1000)
    assert done.timed_out and done.code is None and time.monotonic() - start < 3
    assert not Path("/proc", str(process.pid)).exists()


def test_output_beyond_the_cap_ends_a_program(any_sandbox: Sandbox) -> None:
    done = any_sandbox.start(job("while True: print('x' * 10000)")).run(b"", time.monotonic() + 20, cap=100_000)
    assert done.output_exceeded and not done.timed_out and len(done.stdout) < 300_000


def test_closing_ends_what_runs_and_starts_nothing_more(any_sandbox: Sandbox) -> None:
    processes = [any_sandbox.start(job("import time\ntime.sleep(60)")) for _ in range(3)]
    any_sandbox.close()
    assert all(p.kill() != 0 for p in processes)
    with pytest.raises(OSError, match="closed"):
        any_sandbox.start(job("print(1)"))


@pytest.mark.parametrize("opened", [own_sandbox, plain_user_sandbox])
def test_the_kernel_is_out_of_reach(opened: Callable[[], Sandbox]) -> None:
    sandbox = opened()
    user = 65534 if os.geteuid() == 0 else os.getuid()
    kernel = tomllib.loads(Path(__file__).with_name("programs.toml").read_text("utf-8"))["probes"]["kernel"]
    with closing(sandbox):
        process = sandbox.start(job(f"OWNER = {user}\n{kernel}"))
        done = process.run(b"", time.monotonic() + 20, cap=100_000)
    assert done.stdout == b"ready\n[] [] True\n", done.stderr


def test_a_program_is_nobody_to_the_machine_too(sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has another user's rights to give")
    process = sandbox.start(job("import time\ntime.sleep(60)"))
    try:
        assert process.read(6, time.monotonic() + 20) == b"ready\n"
        family = [process.pid]
        held_bytes(family)
        status = Path(f"/proc/{family[-1]}/status").read_text()
    finally:
        process.kill()
    assert "Uid:\t65534\t65534\t65534\t65534" in status and "CapEff:\t0000000000000000" in status


@pytest.mark.parametrize("left_out", ["--remount-ro", "setpriv"])
def test_the_probe_refuses_a_kernel_within_reach(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may write there at all")
    own_sandbox().close()
    command = Bubblewrap.command

    def without(*args: Any) -> list[str]:
        line = command(*args)
        place = line.index("/proc", line.index("--proc") + 2)
        return line[: place - 1] + line[place + 1 :] if left_out == "--remount-ro" else line

    monkeypatch.setattr(Bubblewrap, "command", without)
    if left_out == "setpriv":
        monkeypatch.setattr("gspo_cli.sandbox.choose.find_user", lambda _: User())
    assert "/proc/" in refusal(open_sandbox)
    assert check_sandbox().verdict == "warning"


def test_another_interpreter_is_recorded_and_runs(sandbox: Sandbox) -> None:
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"no {SYSTEM_PYTHON}")
    found = find_interpreter(SYSTEM_PYTHON)
    with closing(open_sandbox(SandboxChoice(python=SYSTEM_PYTHON))) as other:
        version = "import sys\nprint('.'.join(map(str, sys.version_info[:3])))"
        assert grade_script(other, version, CodeTests(("",), (found.version,))).passed
    ours = ".".join(map(str, sys.version_info[:3]))
    assert find_interpreter().version == ours
    assert grade_script(sandbox, version, CodeTests(("",), (ours,))).passed


def test_an_interpreter_that_does_not_run_is_refused(tmp_path: Path) -> None:
    for python in (str(tmp_path / "none"), "/bin/false", "/bin/echo"):
        assert "is not a usable Python" in refusal(find_interpreter, python)


def test_the_probe_finds_what_an_unsafe_process_reaches() -> None:
    problem = probe(UnsafeLocal(find_interpreter()))
    assert problem is not None and "reaches" in problem and "network" in problem


def test_a_program_in_bubblewrap_reaches_nothing() -> None:
    with closing(own_sandbox()) as sandbox:
        assert probe(sandbox) is None


def test_a_sandbox_that_is_broken_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    own_sandbox().close()
    monkeypatch.setattr(
        "gspo_cli.sandbox.bubblewrap.Bubblewrap.command", lambda *_: ["/bin/sh", "-c", "echo no >&2; false"]
    )
    said = refusal(open_sandbox)
    assert "why:   bubblewrap: no\n" in said and "dnf install bubblewrap" in said and "--unsafe-local" in said


def test_a_harness_that_never_says_hello_is_a_grader_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox starts and ends at once: what it said is the reason, and the program is not blamed."""
    starts: list[Job] = []

    def start(given: Job) -> Process:
        starts.append(given)
        return real(job("import sys\nsys.exit('out of user namespaces')"))

    real = sandbox.start
    monkeypatch.setattr(sandbox, "start", start)
    for grade, total in ((grade_official, 2), (grade_script, 4)):
        found = grade(sandbox, RIGHT, TESTS)
        if grade is grade_official:
            assert (found.verdict, found.passed) == ("grader_error", None)
            assert "out of user namespaces" in found.reason
        assert len(starts) <= total


def test_four_at_once_beside_many_other_processes(sandbox: Sandbox) -> None:
    """The limit on processes is the program's own, whatever else the user runs."""
    storm = (
        "import os, time\nn = 0\ntry:\n    while n < 200:\n        if os.fork() == 0:\n            time.sleep(30)\n"
        "        n += 1\nexcept OSError: pass\nprint(n < 60)"
    )
    idle = [sandbox.start(job("import time\ntime.sleep(30)")) for _ in range(10)]
    storms = [sandbox.start(job(storm)) for _ in range(4)]
    ends = [p.run(b"", time.monotonic() + 20, cap=1000).stdout for p in storms]
    for process in idle:
        process.kill()
    assert ends == [b"ready\nTrue\n"] * 4


def test_the_ranks_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them grade at the same time; each has at least one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100_000, 100_016)))  # which no machine has
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert physical_cores() == 16
    for ranks, cores in ((8, 2), (32, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert physical_cores() == cores
