"""No wrong program passes, nothing of ours is seen, nothing is left behind; as we are, and as a plain user."""

import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from attacks import BOMBS, CANARY, CHEATS, ENDLESS, FUNCTION_CHEATS, SPIES, answer, writing
from program import strict_lines
from sandboxes import own_sandbox, plain_user_sandbox

import gspo_cli
from gspo_cli.rewards.code import official
from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.grading import needs_second_run
from gspo_cli.rewards.code.official import grade_official
from gspo_cli.rewards.code.script import grade_script
from gspo_cli.rewards.verdict import ProgramVerdict
from gspo_cli.sandbox.contract import Sandbox

Grade = Callable[[Sandbox, str, CodeTests], ProgramVerdict]
STDIN = CodeTests(("11\n", "12\n"), (answer(11), answer(12)))
FUNCTION = CodeTests(("11", "12"), (f'"{answer(11)}"', f'"{answer(12)}"'), "solve")
GRADERS: dict[str, Grade] = {"official": grade_official, "script": grade_script}


@pytest.fixture(scope="module", params=["ourselves", "a plain user"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    opened = own_sandbox() if request.param == "ourselves" else plain_user_sandbox()
    yield opened
    opened.close()


def grade_all(sandbox: Sandbox, grade: Grade, programs: dict[str, str], tests: CodeTests) -> dict[str, ProgramVerdict]:
    def one(program: str) -> ProgramVerdict:
        found = grade(sandbox, program, tests)
        return grade(sandbox, program, tests) if needs_second_run(found) else found

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(programs, pool.map(one, programs.values()), strict=True))


def ancestors(process: Path) -> list[int]:
    """The parents of a process, the nearest first."""
    found: list[int] = []
    try:
        while (parent := int((process / "stat").read_text().rpartition(")")[2].split()[1])) > 0:
            found.append(parent)
            process = process.parent / str(parent)
    except OSError:
        return found  # one of them ended meanwhile
    return found


def ours() -> dict[int, str]:
    """Process ids and command lines of candidates that live, but those of a test that runs beside this one; a
    sandboxed process is visible from outside."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "/opt/job/start.py" in line or "/opt/job/program.py" in line:
            parents = ancestors(folder)
            if os.getpid() in parents or os.getppid() not in parents:
                found[int(folder.name)] = line
    return found


def wait_for_none() -> list[str]:
    """Candidates that live now and still live after the kernel had time to end the killed process spaces.

    Only those of now count: while a test beside this one ends its own, their parents are gone and they seem ours.
    """
    left = ours()
    deadline = time.monotonic() + 10.0
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        living = ours()
        left = {process: line for process, line in left.items() if process in living}
    return list(left.values())


@pytest.mark.parametrize("grader", GRADERS)
def test_no_cheat_passes(sandbox: Sandbox, grader: str) -> None:
    verdicts = grade_all(sandbox, GRADERS[grader], CHEATS, STDIN)
    verdicts |= {f"f {k}": v for k, v in grade_all(sandbox, GRADERS[grader], FUNCTION_CHEATS, FUNCTION).items()}
    wrong = {"wrong_answer", "runtime_error", "runner_error"}
    assert {name: v for name, v in verdicts.items() if v.verdict not in wrong} == {}
    assert wait_for_none() == []


def test_an_honest_program_passes(sandbox: Sandbox) -> None:
    right = "import hashlib\nn = int(input())\nprint(hashlib.sha256(f'5f1c{n}'.encode()).hexdigest()[:12])"
    function = (
        "import hashlib\nclass Solution:\n    def solve(self, n):\n"
        "        return hashlib.sha256(f'5f1c{n}'.encode()).hexdigest()[:12]"
    )
    for grade in GRADERS.values():
        assert grade(sandbox, right, STDIN).passed
        assert grade(sandbox, function, FUNCTION).passed


def test_the_name_of_the_prelude_is_no_program(sandbox: Sandbox) -> None:
    add = CodeTests(("1\n2",), ("3",), "add")
    for grade in GRADERS.values():
        assert grade(sandbox, "", add).verdict == "runtime_error"
        assert grade(sandbox, "def add(a, b): return a + b", add).passed
        assert grade(sandbox, "import operator\nadd = operator.add", add).passed


def test_outputs_within_reach_would_be_found(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus can fail: with the expected output beside the input, the first cheat passes."""
    send, number = official.send, iter([None, *STDIN.outputs])

    def leaky(process: Any, header: dict[str, Any], payload: bytes, deadline: float) -> None:
        expected = next(number)
        send(process, header if expected is None else {"output": expected}, payload, deadline)

    monkeypatch.setattr(official, "send", leaky)
    assert grade_official(sandbox, CHEATS["reads frames"], STDIN).passed


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("element", [",[]", "["])
def test_a_forged_frame_costs_the_grader_little_memory(sandbox: Sandbox, grader: str, element: str) -> None:
    """32 MiB of JSON would become 800 MiB of objects."""
    program = writing(f"""write(frame(OK, b'["l"' + b"{element}" * ((32 << 20) // {len(element)} - 1) + b"]"))""")
    tests = CodeTests(("11", "12"), (str(list(range(1000))), "[]"), "solve")
    tracemalloc.start()
    try:
        verdict = GRADERS[grader](sandbox, program, tests)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verdict.passed is False
    assert peak < 16 << 20


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine, and who came."""
    came: list[str] = []
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            came.append("somebody")
            connection.close()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1], came
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.mark.parametrize("grader", GRADERS)
def test_no_spy_sees_anything(
    sandbox: Sandbox, grader: str, listener: tuple[int, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, came = listener
    monkeypatch.setenv("HF_TOKEN", CANARY)
    (tmp_path / "secret").write_text(CANARY)
    fill = {"home": str(tmp_path), "port": port, "package": str(Path(gspo_cli.__file__).parent), "pid": os.getpid()}
    last = "\nn = int(input())\nprint(seen, n)"
    spies = {name: "import io\n" + body.format(**fill) + last for name, body in SPIES.items()}
    verdicts = grade_all(sandbox, GRADERS[grader], spies, CodeTests(("1\n", "2\n"), ("False 1", "False 2")))
    if grader == "official":  # its tests share one process, so the second finds the first one's scratch file
        del verdicts["files of the program before"]
    assert {name: v for name, v in verdicts.items() if not v.passed} == {}
    assert came == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]


@pytest.mark.parametrize("grader", GRADERS)
def test_bombs_are_stopped(sandbox: Sandbox, grader: str) -> None:
    bombs = {name: f"import io\n{program}" for name, program in BOMBS.items()}
    verdicts = grade_all(sandbox, GRADERS[grader], bombs, CodeTests(("1\n",), ("stopped",)))
    assert {name: v for name, v in verdicts.items() if not v.passed} == {}
    assert wait_for_none() == []


@pytest.mark.slow
@pytest.mark.parametrize("grader", GRADERS)
def test_endless_programs_end(sandbox: Sandbox, grader: str) -> None:
    tests = CodeTests(("1\n",), ("2",))
    limit = {"official": 14.0, "script": 8.0}[grader]
    verdicts = grade_all(sandbox, GRADERS[grader], ENDLESS, tests)
    assert {name: v for name, v in verdicts.items() if v.passed is not False} == {}
    assert max(v.seconds for v in verdicts.values()) < limit + 2
    assert wait_for_none() == []


def test_a_child_that_holds_the_pipe_delays_nothing(sandbox: Sandbox) -> None:
    tests = CodeTests(("1\n",), ("done",))
    for grade in GRADERS.values():
        found = grade(sandbox, ENDLESS["leaves a child with the pipe"], tests)
        assert found.passed
        assert found.seconds < 3
    assert wait_for_none() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "opened"),
    [("cheats", own_sandbox), ("cheats_machine", own_sandbox), ("cheats_machine", plain_user_sandbox)],
)
def test_no_program_of_a_corpus_is_accepted_or_leaves_a_trace(file: str, opened: Callable[[], Sandbox]) -> None:
    """A row has a name, a program and why it must fail; a program that was accepted wrongly becomes a row. The second
    corpus attacks the machine: process bombs, forged frames, kernel interfaces, full storage. An honest program passes
    after them."""
    rows = strict_lines(Path(__file__).with_name(f"{file}.jsonl"))
    programs, tests = {row["name"]: row["code"] for row in rows}, CodeTests(("11\n",), (answer(11),))
    shared = set(os.listdir("/dev/shm"))
    with closing(opened()) as sandbox:
        for grade in GRADERS.values():
            verdicts = grade_all(sandbox, grade, programs, tests)
            wrong = [name for name, v in verdicts.items() if v.passed or (v.passed is None and file == "cheats")]
            assert wrong == [] and grade(sandbox, f"input()\nprint({answer(11)!r})", tests).passed
    assert "fill" not in set(os.listdir("/dev/shm")) - shared
    assert not Path("/tmp/graders_canary").exists() and not Path("/tmp/fill").exists()
