"""`gspo eval grade`: a verdict a line, in order, or three lines that say what is wrong with the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo
from sandboxes import own_sandbox

from gspo_cli.rewards.graders import find_grader, grade_rows

GOOD = {"id": "a", "response": r"\boxed{7}", "gold": "7"}
PROGRAM = {"id": "p", "kind": "stdin", "code": "print(int(input()) + 1)", "tests": {"inputs": ["1"], "outputs": ["2"]}}


def write(folder: Path, *rows: Any) -> Path:
    """A file of rows; bytes and strings stand as they are."""
    path = folder / "answers.jsonl"
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_one_verdict_a_line(gspo_forked: Gspo, tmp_path: Path) -> None:
    rows = [
        GOOD, GOOD | {"id": 2, "response": "8"},
        GOOD | {"id": "s", "response": "\ud83d\x1b[31m\x00\\boxed{7}", "gold": 7},
        GOOD | {"id": "n", "response": "no"}, GOOD | {"id": "a", "gold": "seven"},
    ]  # fmt: skip
    done = gspo_forked("eval", "grade", write(tmp_path, *rows), "--grader", "aime", "--json")
    assert (done.code, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [tuple(line.values()) for line in found] == [
        ("a", "correct", True, "integer"), (2, "wrong", False, "integer"), ("s", "correct", True, "integer"),
        ("n", "no_answer", False, "none"), ("a", "grader_error", None, "bad gold"),
    ]  # fmt: skip
    assert all(list(line) == ["id", "verdict", "passed", "reason"] for line in found)


def test_verdicts_do_not_depend_on_the_number_of_threads() -> None:
    golds = ["x+1", "7", r"\frac{1}{2}", r"\{1,2\}"]
    rows = [{"id": i, "response": f"\\boxed{{{golds[i % 3]}}}", "gold": golds[i % 4]} for i in range(24)]
    one, three = (list(grade_rows(find_grader("math"), rows, workers)) for workers in (1, 3))
    assert one == three and len({v.verdict for v in one}) == 2


@pytest.mark.parametrize(
    ("rows", "words", "options"),
    [
        ([], "holds no rows", "aime"),
        ([GOOD, b"{"], "line 2 is not JSON", "aime"),
        ([GOOD, b"\xff\xfe"], "line 2 is not UTF-8", "aime"),
        ([b"[" * 100_000], "line 1 is not JSON", "aime"),
        ([GOOD, {"id": 1, "response": "x"}], "has no field 'gold'", "aime"),
        ([GOOD | {"response": None}], "line 1: field 'response'", "aime"),
        ([GOOD | {"gold": ["7"]}], "it must be a string or a number", "aime"),
        ([GOOD], "no grader 'maths'", "maths"),
        ([GOOD], "this grader runs no programs", "aime --unsafe-local"),
        ([PROGRAM | {"kind": "essay"}], "is of kind 'essay'", "official"),
        ([PROGRAM | {"tests": "x"}], "it must be an object", "official"),
    ],
)
def test_bad_rows_are_refused_whole(gspo_here: Gspo, tmp_path: Path, rows: list[Any], words: str, options: str) -> None:
    done = gspo_here("eval", "grade", write(tmp_path, *rows), "--json", "--grader", *options.split())
    assert (done.code, done.out) == (2, "")
    said = json.loads(done.err)
    assert words in " ".join(map(str, said.values()))
    assert said["do"]


def test_where_nothing_could_be_graded_the_command_fails(gspo_here: Gspo, tmp_path: Path) -> None:
    done = gspo_here("eval", "grade", write(tmp_path, GOOD | {"gold": "x"}), "--grader", "aime", "--json")
    assert done.code == 5
    assert json.loads(done.out)["verdict"] == "grader_error"


@pytest.mark.parametrize("grader", ["official", "script"])
def test_programs_have_a_verdict_a_line(gspo_forked: Gspo, tmp_path: Path, grader: str) -> None:
    own_sandbox().close()
    function = {"kind": "functional", "code": "def f(x): return x", "tests": {"inputs": ["1"], "outputs": ["1"]}}
    function["tests"]["fn_name"] = "f"  # type: ignore[index]
    rows = [
        PROGRAM, PROGRAM | {"id": 2, "code": "print(3)"}, function | {"id": "f"},
        PROGRAM | {"id": "e", "tests": {"inputs": [], "outputs": []}}, PROGRAM | {"id": "s", "code": "1 / 0"},
    ]  # fmt: skip
    done = gspo_forked("eval", "grade", write(tmp_path, *rows), "--grader", grader, "--workers", "2", "--json")
    assert (done.code, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [(line["id"], line["verdict"], line["passed"]) for line in found] == [
        ("p", "accepted", True), (2, "wrong_answer", False), ("f", "accepted", True), ("e", "excluded", None),
        ("s", "runtime_error", False),
    ]  # fmt: skip
