"""LiveCodeBench and minicode: which problems, which figures, and what happens without usable tests or a sandbox."""

import base64
import json
import pickle
import tomllib
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from code_rows import lcb_row, replies, write
from program import Done, check_refused, ok
from sandboxes import own_sandbox

from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import livecodebench
from gspo_cli.evals.benchmarks.livecodebench import contest_date, parse_window
from gspo_cli.evals.data import fingerprint
from gspo_cli.rewards.code.grading import Work, grade_all
from gspo_cli.sandbox.contract import Job

ADD = "print(int(input()) + {})"
PROGRAMS = tomllib.loads(Path(__file__).with_name("minicode_programs.toml").read_text(encoding="utf-8"))
RIGHT = {problem: programs.pop("right") for problem, programs in PROGRAMS.items()}
WRONG: dict[str, dict[str, str]] = PROGRAMS


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    own_sandbox().close()


def lcb(path: Path) -> tuple[str, ...]:
    return ("--bench", "livecodebench", "--data", f"livecodebench={path}")


@pytest.mark.slow
def test_right_and_wrong_programs_of_minicode() -> None:
    """Every right program passes under both graders, every wrong one fails under both; slow ones for their time."""
    problems = livecodebench.load_minicode(DataChoice())
    assert len(problems.problems) == len(RIGHT) and not problems.excluded
    cases = [(p.id, "right", RIGHT[p.id]) for p in problems.problems]
    cases += [(i, name, code) for i, programs in WRONG.items() for name, code in programs.items()]
    with closing(own_sandbox()) as sandbox:
        work = [Work(code, problems.payload[i]) for i, _, code in cases]
        found = grade_all(sandbox, ("official", "script"), work, 2).verdicts
    for (problem, name, _), verdicts in zip(cases, found, strict=True):
        allowed = {"time_limit", "runner_error"} if name == "too_slow" else {name == "right"}
        said = {v.verdict if name == "too_slow" else v.passed for v in verdicts.values()}
        assert len(verdicts) == 2 and said <= allowed, (problem, name, verdicts)


def test_the_window_of_the_paper(shared_data: Path) -> None:
    lines = (shared_data / "lcb_v5_index.jsonl").read_text(encoding="utf-8").splitlines()
    start, end = parse_window(livecodebench.WINDOW)
    inside = [r for r in map(json.loads, lines) if start <= contest_date(r, "index") <= end]
    assert len(inside) == 166 and sum(r["functional"] for r in inside) == 64
    assert fingerprint(sorted(r["question_id"] for r in inside)) == livecodebench.FINGERPRINT


def test_both_ends_of_a_window_count(tmp_path: Path) -> None:
    days = ["2024-09-30T23:59:59", "2024-10-01T00:00:00", "2025-02-01T00:00:00", "2025-02-01T00:00:01"]
    path = write(tmp_path / "a.jsonl", *(lcb_row(i, contest_date=day) for i, day in enumerate(days)))
    found = livecodebench.load(DataChoice((path,)))
    assert [p.id for p in found.problems] == ["p1", "p2"]
    wider = livecodebench.load(DataChoice((path,), window="2024-09-30..2025-02-02"))
    assert len(wider.problems) == 4


def test_a_release_is_the_first_files_of_a_folder(tmp_path: Path) -> None:
    for k, name in enumerate(("test.jsonl", "test2.jsonl", "test3.jsonl")):
        write(tmp_path / name, lcb_row(k))
    two = livecodebench.load(DataChoice((tmp_path,), release="release_v2"))
    assert [p.id for p in two.problems] == ["p0", "p1"] and two.source["release"] == "release_v2"
    assert len(livecodebench.load(DataChoice((tmp_path,))).problems) == 3


def test_figures_of_both_graders(evaluate: Callable[..., Done], tmp_path: Path, answering: Callable[..., None]) -> None:
    """p1: both samples right; p2: one by a real stdin only (script), one wrong; arc185_c is flagged."""
    path = write(tmp_path / "a.jsonl", lcb_row(1), lcb_row(2), lcb_row(3, question_id="arc185_c"))
    programs = {
        "p1": [ADD.format(1)] * 2,
        "p2": ["print(int(open(0).read()) + 2)", ADD.format(1)],
        "arc185_c": ["", ADD.format(0)],
    }
    answering(replies(programs))
    done = ok(evaluate(*lcb(path), "--samples", "2", "--json"))
    said = json.loads(done.out)
    assert (said["metric"], said["average"]) == ("livecodebench/avg@2", pytest.approx(1 / 3))
    assert said["verdicts_differ"] == {"official_only": 0, "script_only": 1}
    assert said["flagged"] == {"arc185_c": livecodebench.SEVERAL} and said["average_without_flagged"] == 0.5
    assert said["verdicts"] == {"correct": 2, "wrong": 3, "no_answer": 1, "grader_error": 0}
    grader = said["grader"]
    assert (grader["sandbox"], grader["unsafe_local"], grader["headline"]) == ("bwrap", False, "official")
    assert grader["python"] and grader["calibration_ms"] > 0 and "process_limit" in grader
    assert said["data"]["window"] == livecodebench.WINDOW
    rows = pq.read_table(Path(said["folder"]) / "answers.parquet").to_pylist()
    assert [r["verdict_script"] for r in rows[2:4]] == ["accepted", "wrong_answer"]
    assert rows[0]["tests_run"] == rows[0]["tests_total"] == 2 and rows[0]["extracted"] == ADD.format(1)
    script = json.loads(evaluate(*lcb(path), "--samples", "2", "--grader", "script", "--overwrite", "--json").out)
    assert script["average"] == pytest.approx(1 / 2) and script["verdicts_differ"] is None


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, 4))).decode()


EXCLUDED = {
    "evil": {"private_test_cases": packed(print)},
    "two strings": {"private_test_cases": packed(("[]", "[]"))},
    "trailing": {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps("[]", 4)) + b"x").decode()},
    "no tests": {"public_test_cases": "[]", "private_test_cases": "[]"},
    "no JSON": {"metadata": '{"func_name": "f"}', "public_test_cases": '[{"input": "x", "output": "1"}]'},
}


def test_problems_without_usable_tests_are_excluded_and_named(
    evaluate: Callable[..., Done], tmp_path: Path, answering: Callable[..., None]
) -> None:
    bad = [lcb_row(10 + i, **changes) for i, changes in enumerate(EXCLUDED.values())]
    path = write(tmp_path / "a.jsonl", lcb_row(1), *bad)
    answering(replies({"p1": [ADD.format(1)]}))
    done = evaluate(*lcb(path), "--samples", "1", "--json")
    said = json.loads(done.out)
    assert sorted(i for ids in said["data"]["excluded"].values() for i in ids) == [f"p{10 + i}" for i in range(5)]
    assert (said["average"], said["num_problems"]) == (1.0, 1)
    assert all(f"left out, because {why}" in done.err for why in said["data"]["excluded"])
    done = evaluate(*lcb(write(tmp_path / "b.jsonl", *bad)), "--samples", "1", "--overwrite")
    assert done.code == 5 and "can be graded" in done.err and done.out == ""


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({}, ["--window", "livecodebench=2010-01-01..2010-02-01"], "between 2010-01-01 and 2010-02-01"),
        ({}, ["--window", "livecodebench=2025-01-01..2024-01-01"], "first day comes after"),
        ({}, ["--release", "livecodebench=release_v9"], "no release 'release_v9'"),
        ({}, ["--release", "livecodebench=release_v2"], "a file has no release"),
        ({}, ["--contests", "livecodebench=x"], "does not take --contests"),
        ({"contest_date": "yesterday"}, [], "contest_date of 'p1'"),
    ],
)
def test_bad_input(evaluate: Callable[..., Done], tmp_path: Path, changes: Any, more: list[str], words: str) -> None:
    done = evaluate(*lcb(write(tmp_path / "a.jsonl", lcb_row(1, **changes))), *more)
    assert done.code == 2 and words in done.err, done.err
    assert [line.split(" ")[0] for line in done.err.splitlines() if line] == ["error:", "why:", "do:"]
    assert not (tmp_path / "out").exists()


def test_a_sandbox_that_stops_starting_gives_grader_errors(
    evaluate: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., None]
) -> None:
    from gspo_cli.sandbox.bubblewrap import Bubblewrap

    real, starts = Bubblewrap.start, iter(range(10**6))

    def start(self: Bubblewrap, job: Job) -> Any:
        if next(starts) > 1:  # the two probes
            raise OSError("no more processes")
        return real(self, job)

    monkeypatch.setattr(Bubblewrap, "start", start)
    answering(replies({"p1": [ADD.format(1)] * 2}))
    done = evaluate(*lcb(write(tmp_path / "a.jsonl", lcb_row(1))), "--samples", "2", "--json")
    said = json.loads(done.out)
    assert done.code == 5 and said["incomplete"] and said["average"] is None
    assert said["verdicts"] == {"correct": 0, "wrong": 0, "no_answer": 0, "grader_error": 2}


def test_without_a_sandbox_nothing_runs(
    evaluate: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Callable[..., None]
) -> None:
    monkeypatch.setattr("gspo_cli.sandbox.choose.shutil.which", lambda _: None)
    path = write(tmp_path / "a.jsonl", lcb_row(1))
    check_refused(evaluate(*lcb(path), "--samples", "1"), "no sandbox for the programs to grade", "--unsafe-local")
    assert not (tmp_path / "out").exists()
    answering(replies({"p1": [ADD.format(1)]}))
    done = evaluate(*lcb(path), "--samples", "1", "--unsafe-local", "--json")
    said = json.loads(done.out)
    assert done.code == 0 and "without any isolation" in done.err
    assert (said["grader"]["unsafe_local"], said["grader"]["sandbox"], said["average"]) == (True, "unsafe-local", 1.0)


@pytest.mark.slow
def test_minicode_end_to_end(evaluate: Callable[..., Done], answering: Callable[..., None]) -> None:
    answering(replies({i: [code, "pass"] for i, code in RIGHT.items()}))
    said = json.loads(evaluate("--bench", "minicode", "--samples", "2", "--json").out)
    assert (said["average"], said["num_answers"]) == (0.5, 24)
    assert said["verdicts_differ"] == {"official_only": 0, "script_only": 0}
