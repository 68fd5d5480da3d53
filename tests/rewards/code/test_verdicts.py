"""The graders of programs against recorded verdicts: programs of our own, and real ones where the data are at hand.

`official_cases.jsonl` holds small programs around the oddities of LiveCodeBench's evaluator with the verdict that it
gave (28fef95, CPython 3.11, numpy 2.4): in which corners of the standard streams, the prelude, the comparison or the
exit of a process a program passes.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from program import strict_lines
from sandboxes import own_sandbox

from gspo_cli.rewards.code.grading import SharedTests, Work, grade_all
from gspo_cli.rewards.graders import row_tests
from gspo_cli.rewards.verdict import ProgramVerdict
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import find_interpreter

OWN = Path(__file__).parent / "official_cases.jsonl"
SCRIPT = Path(__file__).parent / "script_cases.jsonl"
"""Programs and what the grader of scripts says of them."""
CASES = "lcb_conformance_dev.jsonl"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = own_sandbox()
    yield opened
    opened.close()


def graded(sandbox: Sandbox, grader: str, rows: Sequence[dict[str, Any]], workers: int = 2) -> list[ProgramVerdict]:
    work = [Work(row["code"], SharedTests(partial(row_tests, row))) for row in rows]
    return [verdicts[grader] for verdicts in grade_all(sandbox, (grader,), work, workers).verdicts]


def differences(sandbox: Sandbox, rows: Sequence[dict[str, Any]], key: str, grader: str) -> dict[str, Any]:
    """Cases whose verdict is not the recorded one; a second attempt for those that a busy machine may have spoilt."""
    wrong = [row for row, v in zip(rows, graded(sandbox, grader, rows), strict=True) if v.verdict != row[key]]
    return {
        row["id"]: (row[key], v)
        for row, v in zip(wrong, graded(sandbox, grader, wrong, workers=1), strict=True)
        if v.verdict != row[key]
    }


@pytest.mark.slow
def test_official_verdicts_on_programs_of_our_own(sandbox: Sandbox) -> None:
    if not find_interpreter().version.startswith("3.11."):  # others have other messages, limits and syntax
        pytest.skip(f"recorded with Python 3.11, this is {find_interpreter().version}")
    assert differences(sandbox, strict_lines(OWN), "verdict", "official") == {}


def core(shared_data: Path, grader: str) -> list[dict[str, Any]]:
    rows = [r for r in strict_lines(shared_data / CASES) if not r["timing_sensitive"] and not r["reward_hack"]]
    # As scripts: a race of two processes for one input, and a numpy integer, which counts by its value.
    return [r for r in rows if grader == "official" or r["id"] not in ("s-os-fork", "f-numpy-int")]


@pytest.mark.parametrize("grader", ["official", "script"])
def test_a_sample_of_real_programs(sandbox: Sandbox, shared_data: Path, grader: str) -> None:
    assert differences(sandbox, core(shared_data, grader)[::20], f"{grader}_verdict", grader) == {}


@pytest.mark.slow
@pytest.mark.parametrize("grader", ["official", "script"])
def test_all_real_programs(sandbox: Sandbox, shared_data: Path, grader: str) -> None:
    assert differences(sandbox, core(shared_data, grader), f"{grader}_verdict", grader) == {}


@pytest.mark.parametrize("grader", ["official", "script"])
def test_every_recorded_hack_is_rejected(sandbox: Sandbox, shared_data: Path, grader: str) -> None:
    hacks = [row for row in strict_lines(shared_data / CASES) if row["reward_hack"]]
    assert hacks and [v.passed for v in graded(sandbox, grader, hacks)] == [False] * len(hacks)


def test_what_the_script_grader_demands(sandbox: Sandbox) -> None:
    assert differences(sandbox, strict_lines(SCRIPT), "verdict", "script") == {}


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ({"inputs": [], "outputs": []}, "no tests"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs but 1 outputs"),
        ({"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}, "not JSON"),
        ({"inputs": ["1"], "outputs": ["{"], "fn_name": "f"}, "not JSON"),
        ({"inputs": ["1"], "outputs": ["1"]}, "fn_name"),
        ({"inputs": "1", "outputs": ["1"]}, "lists"),
    ],
)
def test_without_usable_tests_nothing_passes(sandbox: Sandbox, tests: dict[str, Any], why: str) -> None:
    kind = "stdin" if "inputs but" in why or why == "no tests" else "functional"
    row = {"id": 1, "kind": kind, "code": "def f(x): return x", "tests": tests}
    for grader in ("official", "script"):
        (found,) = graded(sandbox, grader, [row])
        assert (found.verdict, found.passed) == ("excluded", None) and why in found.reason


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(sandbox: Sandbox) -> None:
    rows = strict_lines(SCRIPT)
    for grader in ("official", "script"):
        one, eight = ([(v.verdict, v.reason, v.tests_run) for v in graded(sandbox, grader, rows, n)] for n in (1, 8))
        assert one == eight and len(set(one)) > 3


def test_large_outputs(sandbox: Sandbox) -> None:
    """2 MB of right output is right; 40 MB is too much, and is not kept."""
    rows = [
        {"id": code, "kind": "stdin", "code": code, "tests": {"inputs": ["1\n"], "outputs": [expected]}}
        for code, expected in (("print('7 ' * 1000000)", "7 " * 1000000), ("print('7' * 40000000)", "7"))
    ]
    for grader in ("official", "script"):
        good, bad = graded(sandbox, grader, rows)
        assert good.passed and (bad.verdict, bad.reason) == ("wrong_answer", "output_limit")
