"""Programs: problems with tests, and the graders of the code benchmarks as the reward.

Rows come from a file of one's own (`task.path`) in LiveCodeBench's schema: `question_content`, `starter_code`,
`public_test_cases`, `private_test_cases`, `metadata`. There is no default: the public sets are what one evaluates on.
A problem without tests that can be read is left out and named. Programs run in the sandbox, several at once; without a
sandbox there is no training.
"""

import atexit
import json
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rewards.code.code_tests import BadTests, CodeTests, parse_tests, unpack_tests
from gspo_cli.rewards.code.grading import SharedTests, Work, extract_program, grade_all
from gspo_cli.rewards.verdict import ProgramVerdict
from gspo_cli.rows import Row
from gspo_cli.sandbox.choose import open_sandbox
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import physical_cores
from gspo_cli.tasks.data import load_rows
from gspo_cli.types import Problem, Score

TASK = (
    "Below is a programming problem. Write a Python program that solves it: it must follow the specification and pass "
    "all tests."
)
FUNCTIONAL = "Complete the following starter code, and give the whole solution in one fenced block of Python."
STDIN = (
    "The program reads its input from stdin and writes its answer to stdout. Give the whole program in one fenced "
    "block of Python; it must do its work when it is run, on any input and not only on the samples."
)
TEMPLATE = f"{TASK}\n\n{{question}}\n\n{FUNCTIONAL}|{STDIN}\n\n```python\n{{starter}}\n```\n"
"""What is hashed: both wordings and their order."""


def code_prompt(question: str, starter: str) -> str:
    """The prompt of a problem; `starter` is empty for programs that use stdin. The problem's text is left as it is."""
    request = FUNCTIONAL if starter else STDIN
    block = starter or "# the program"
    return f"{TASK}\n\n{question}\n\n{request}\n\n```python\n{block}\n```\n"


TESTS = ("public_test_cases", "private_test_cases", "metadata")
COLUMNS = {"prompt": "question_content"} | {name: name for name in ("starter_code", *TESTS)}


def build_problem(identity: str, question: str, row: Row) -> tuple[Problem, SharedTests]:
    """A row in LiveCodeBench's schema as a problem with its tests. Errors: BadTests when it cannot be graded."""
    public, private, metadata = (str(row[name] or "") for name in TESTS)
    tests = SharedTests(partial(unpack_tests, public, private, metadata))
    tests.check()
    return Problem(identity, code_prompt(question, str(row.get("starter_code") or "").rstrip()), ""), tests


class Code:
    """Programming problems with a reward of 1 for a program that passes every test."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config
        self.notes: list[str] = []
        self._tests: dict[str, SharedTests] = {}

    def problems(self, split: str) -> list[Problem]:
        """All rows whose tests can be read. Errors: GspoError without a file or a sandbox, or when no row is left."""
        if self.config.path is None:
            raise GspoError(
                "task.name = code without a data file",
                "it has no problems of its own",
                "--set task.path=FILE with rows in the schema of livecodebench/code_generation_lite",
            )
        rows = load_rows(self.config.path, None, split, COLUMNS | dict(self.config.columns))
        found, bad = [], dict[str, list[str]]()
        for number, row in enumerate(rows):
            identity = f"{split}-{number}"
            try:
                problem, self._tests[identity] = build_problem(identity, row["prompt"], row)
                found.append(problem)
            except BadTests as error:
                bad.setdefault(str(error), []).append(identity)
        self.notes = [f"left out, because {why}: {len(ids)} ({', '.join(ids[:5])})" for why, ids in bad.items()]
        if not found:
            raise GspoError(f"no problem of {self.config.path} can be graded", "; ".join(self.notes), "give other data")
        shared_sandbox()
        return found

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the response's program passes; no reward where the grader failed."""
        return self.rewards([(problem, text)])[0]

    def rewards(self, responses: list[tuple[Problem, str]]) -> list[Score]:
        """Those of many responses, graded at once."""
        work = [Work(extract_program(text)[0], self._tests[problem.id]) for problem, text in responses]
        return grade_programs(work, self.config.grader)


@cache
def shared_sandbox() -> Sandbox:
    """Opened once and closed with the process. Errors: GspoError without one."""
    sandbox = open_sandbox()
    atexit.register(sandbox.close)
    return sandbox


def grade_programs(work: list[Work], grader: str) -> list[Score]:
    """The programs' verdicts as rewards, several programs at once."""
    graded = grade_all(shared_sandbox(), (grader,), work, physical_cores())
    return [score_of(verdicts[grader]) for verdicts in graded.verdicts]


def row_tests(row: Mapping[str, Any]) -> CodeTests:
    """The tests in one's own row: the column `tests`, as an object or its JSON, or LiveCodeBench's columns.

    Errors: BadTests.
    """
    if "tests" not in row:
        public, private, metadata = (str(row.get(name) or "") for name in TESTS)
        return unpack_tests(public, private, metadata)
    try:
        return parse_tests(json.loads(row["tests"]) if isinstance(row["tests"], str) else row["tests"])
    except ValueError as error:
        raise BadTests("the tests are not JSON") from error


def score_of(verdict: ProgramVerdict) -> Score:
    """A verdict as a reward: what the grader could not judge has none."""
    return Score(None if verdict.passed is None else float(verdict.passed), verdict.verdict)
