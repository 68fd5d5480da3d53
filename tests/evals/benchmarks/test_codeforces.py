"""CodeForces: checkers in a sandbox of their own, contest Elo and the problem-rating estimate apart."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from code_rows import CHECKER, cf_row, replies, write
from program import Done, ok
from sandboxes import own_sandbox

from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import codeforces
from gspo_cli.evals.benchmarks.elo import estimate_rating
from gspo_cli.rewards.code.script import CheckedTests, grade_checked, same_words
from gspo_cli.sandbox.contract import Sandbox

NEXT_EVEN = "n = int(input())\nprint(n + 2 - n % 2)"
MUCH_LARGER = "print(10 ** 6)"
CONTESTS = {
    "7": {
        "name": "a round",
        "problems": [{"index": i, "points": 500.0} for i in "ABC"],
        "rows": [[5.0 * (300 - i), 0, 2400 - 5 * i] for i in range(300)],
    }
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = own_sandbox()
    yield opened
    opened.close()


def checked(checker: str | None, given: str = "3\n", expected: str = "4") -> CheckedTests:
    return CheckedTests((given,), (expected,), checker=checker, limit_s=2.0)


@pytest.mark.parametrize(
    ("program", "checker", "verdict"),
    [
        (NEXT_EVEN, CHECKER, "accepted"),
        (MUCH_LARGER, CHECKER, "accepted"),  # right, and not the expected text
        ("print(5)", CHECKER, "wrong_answer"),
        ("print('many words')", CHECKER, "wrong_answer"),
        ("print('x')", CHECKER, "wrong_answer"),  # breaks the checker
        ("print(4)\nexit(1)", CHECKER, "runtime_error"),
        ("while True: pass", CHECKER, "time_limit"),
        ("print(4)", "print(100)", "accepted"),
        ("print(4)", "print(0)", "wrong_answer"),
        ("print(4)", "1 / 0", "grader_error"),  # breaks on the expected output too
        ("print(4)", "pass", "grader_error"),
        ("print(4)", "print('ok')\nprint(1)", "grader_error"),
        ("print(4)", "print(1.0)", "accepted"),
        ("print(4)", "print('nan')", "grader_error"),
        (MUCH_LARGER, None, "wrong_answer"),
        ("print(4, end='\\r\\n\\n\\n')", None, "accepted"),
    ],
)
def test_verdicts(sandbox: Sandbox, program: str, checker: str | None, verdict: str) -> None:
    assert grade_checked(sandbox, program, checked(checker)).verdict == verdict


def test_words_are_compared_whatever_stands_between() -> None:
    assert same_words("yes\r\n\r\n1  2 \n", "YES\n1 2")
    assert not same_words("1 2\n3", "1\n2 3")
    assert not same_words("Maybe", "maybe")
    assert not same_words("1.0", "1")


SPY = """
import os, socket, sys
seen = [f for f in os.listdir("/tmp")] + [k for k in os.environ if "SECRET" in k]
seen += [p for p in os.listdir("/proc") if p.isdigit() and "program.py" in open(f"/proc/{p}/cmdline").read()]
try:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
    seen.append("network")
except ConnectionRefusedError:
    pass
except OSError:
    pass
print(0 if seen else 1)
"""


def test_a_checker_sees_neither_the_solution_nor_us(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    litter = "import posix, time\nopen('left', 'w').write('x')\nif posix.fork() == 0:\n    time.sleep(9)\nprint(4)"
    assert grade_checked(sandbox, litter, checked(SPY)).verdict == "accepted"


def test_a_solution_cannot_see_checker_or_expected_output(sandbox: Sandbox) -> None:
    program = "import os\nprint(sorted(os.listdir('/opt/job')) == ['program.py'])"
    assert grade_checked(sandbox, program, checked(None, expected="True")).verdict == "accepted"


def test_what_cannot_be_graded_is_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", cf_row("A"), cf_row("B", input_mode="file"), cf_row("C", official_tests_complete=False),
        cf_row("D", official_tests=[]), cf_row("E", interaction_format="talk to it"),
        cf_row("F", official_tests=[{"input": None, "output": "4"}]),
    )  # fmt: skip
    found = codeforces.load(DataChoice((path,)))
    assert [p.id for p in found.problems] == ["7A"]
    assert sorted(i for ids in found.excluded.values() for i in ids) == ["7B", "7C", "7D", "7E", "7F"]
    assert len(found.excluded) == len(found.warnings) == 5
    prompt = found.problems[0].prompt
    assert "Even\n\nPrint an even number." in prompt and "Example input\n3\n" in prompt and "stdin" in prompt


def test_generated_tests_complete_the_official_ones(tmp_path: Path) -> None:
    write(tmp_path / "problems.jsonl", cf_row("A", official_tests_complete=False), cf_row("B"))
    table = pd.DataFrame({"problem_id": ["7A", "7A", "7X"], "input": ["1", "2", "3"], "output": ["2", "4", "4"]})
    (tmp_path / "generated_tests").mkdir()
    table.to_parquet(tmp_path / "generated_tests" / "test_cases_0007.parquet")
    found = codeforces.load(DataChoice((tmp_path,)))
    assert [p.id for p in found.problems] == ["7A", "7B"]
    assert found.payload["7A"].get().inputs == ("3\n", "8\n", "1", "2")
    assert found.payload["7B"].get().inputs == ("3\n", "8\n")


@pytest.fixture
def evaluate(evaluate: Callable[..., Done]) -> Callable[..., Done]:
    own_sandbox().close()
    return functools.partial(evaluate, "--bench", "codeforces")


def test_both_ratings(evaluate: Callable[..., Done], tmp_path: Path, answering: Callable[..., None]) -> None:
    """A right at the second attempt (450 points), B never, C not among the problems: 450 points are place 210."""
    path = write(tmp_path / "a.jsonl", cf_row("A"), cf_row("B", rating=2000))
    (tmp_path / "c.json").write_text(json.dumps(CONTESTS))
    (tmp_path / "r.json").write_text(json.dumps({"source": "a table", "ratings": {"1000": 1, "9999": 3}}))
    answering(replies({"7A": ["print(5)", MUCH_LARGER], "7B": ["print(5)", ""]}))
    data = [f"--{o}=codeforces={p}" for o, p in (("data", path), ("contests", tmp_path / "c.json"))]
    data.append(f"--ratings=codeforces={tmp_path / 'r.json'}")
    done = ok(evaluate(*data, "--samples", "2", "--json"))
    said: dict[str, Any] = json.loads(done.out)
    (contest,) = said["contest_elo"]["by_contest"]
    assert (contest["score"], contest["rank"]) == (450.0, 211)
    assert said["contest_elo"]["elo"] == contest["rating"] > 1000
    assert said["contest_elo"]["percentile"] == 25.0 and said["contest_elo"]["percentile_table"] == "a table"
    assert said["contest_elo"]["not_attempted"] == {"7": ["C"]}
    estimate = estimate_rating([(1200, 0.5), (2000, 0.0)])
    assert said["problem_rating_estimate"]["problem_rating"] == estimate.problem_rating
    assert said["average"] == 0.25 and said["grader"]["headline"] == "checked"
    shown = " ".join(evaluate(*data, "--samples", "2", "--overwrite").out.split())
    assert f"Elo {contest['rating']} over 1 contest;" in shown and "this is not a contest Elo" in shown


def test_no_elo_without_contests(evaluate: Callable[..., Done], tmp_path: Path, answering: Callable[..., None]) -> None:
    path = write(tmp_path / "a.jsonl", cf_row("A", rating=None))
    answering(replies({"7A": [NEXT_EVEN]}))
    done = evaluate("--data", f"codeforces={path}", "--samples", "1", "--json")
    said = json.loads(done.out)
    assert (said["contest_elo"], said["problem_rating_estimate"], said["average"]) == (None, None, 1.0)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rating": "abc"}, "rating: Input"),
    ({"time_limit": float("nan")}, "time_limit: Input"),
    ({"examples": [1]}, "examples.0: Input"),
    ({"generated_checker": ["x"]}, "generated_checker: Input"),
    ({"id": "\ud800"}, "'id' is no text"),
    ({"title": "\ud800"}, "'statement' is no text"),
    ({"contest_id": 7.0}, "contest_id"),
    ({"official_tests_complete": "false"}, "official_tests_complete: Input"),
    ({"time_limit": True}, "time_limit: Input"),
    ({"index": "B", "id": "copy"}, "two problems B of contest 7"),
)


def test_bad_data(evaluate: Callable[..., Done], tmp_path: Path) -> None:
    twice = write(tmp_path / "twice.jsonl", cf_row("A"), cf_row("A"))
    other = write(tmp_path / "other.jsonl", {"question": "?"})
    empty = write(tmp_path / "empty.jsonl", cf_row("A", official_tests=[]))

    def wrong(change: dict[str, Any]) -> Path:
        return write(tmp_path / f"{next(iter(change))}.jsonl", cf_row("B"), cf_row("A") | change)

    for more, code, words in (
        ([], 2, "codeforces without problems"),
        (["--data", f"codeforces={twice}"], 2, "two problems with the id 7A"),
        (["--data", f"codeforces={other}"], 2, "no 'id'"),
        (["--data", f"codeforces={empty}"], 5, "can be graded"),
        (["--data", f"codeforces={twice}", "--contests", f"codeforces={other}"], 2, "contest"),
        *((["--data", f"codeforces={wrong(change)}"], 2, word) for change, word in WRONG),
        (["--window", "codeforces=2024-01-01..2024-02-01"], 2, "does not take --window"),
    ):
        done = evaluate(*more)
        assert (done.code, done.out) == (code, "") and words in done.err, (more, done.err)
    assert not (tmp_path / "out").exists()
