"""The graders of programs as the grader of a benchmark: one figure, the other beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, Grade, GraderChoice, ProblemSet
from gspo_cli.rewards import code
from gspo_cli.rewards.code.grading import CHECKED, GRADERS, SharedTests, Work, grade_all
from gspo_cli.rewards.code.program_text import extract_program
from gspo_cli.rewards.code.verdict import EXCLUDED, GRADER, Verdict
from gspo_cli.sandbox.choose import SandboxChoice, open_sandbox
from gspo_cli.sandbox.interpreter import find_interpreter
from gspo_cli.sandbox.machine import calibration_ms, physical_cores
from gspo_cli.types import Problem


def grader_choice(grader: str, workers: int | None, sandbox: SandboxChoice) -> GraderChoice:
    """From the options of the command.

    Errors: GspoError for an unknown grader.
    """
    if grader != "both" and grader not in GRADERS:
        raise GspoError(
            f"no grader {grader!r}", f"the graders of programs are {', '.join(GRADERS)}, or both", "mend it"
        )
    return GraderChoice(tuple(GRADERS) if grader == "both" else (grader,), sandbox, workers)


def check_sandbox(benchmarks: Sequence[Benchmark], choice: GraderChoice) -> list[str]:
    """What the sandbox cannot enforce here.

    Errors: GspoError when one of them runs programs and there is nowhere to run them.
    """
    if not any(benchmark.runs_programs for benchmark in benchmarks):
        return []
    sandbox = open_sandbox(choice.sandbox)
    sandbox.close()
    facts = sandbox.facts()
    if facts["process_limit"] or choice.sandbox.unsafe_local:
        return []
    return [f"a program may start any number of processes ({facts['process_limit_by']})"]


class CodeGrader:
    """Grades the program of each answer; `payload` holds the tests of a problem as `SharedTests`."""

    def __init__(self, problems: ProblemSet, choice: GraderChoice) -> None:
        self.payload: Mapping[str, SharedTests] = problems.payload
        self.graders = choice.graders
        self.sandbox = open_sandbox(choice.sandbox)
        self.workers = choice.workers or physical_cores()
        interpreter = find_interpreter(choice.sandbox.python)
        self.about: dict[str, Any] = {
            "name": f"code: {' + '.join(self.graders)}",
            "version": f"{source_version()} {self.sandbox.kind}",
            "headline": self.graders[0],
            "python": interpreter.version,
            "numpy": interpreter.numpy_version,
            "unsafe_local": choice.sandbox.unsafe_local,
            "workers": self.workers,
            "calibration_ms": calibration_ms(),
            "time_limits_not_confirmed": 0,
            **self.sandbox.facts(),
        }

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """See `Grader.grade`."""
        found = [extract_program(text) for _, text in answers]
        work = [
            Work(program, self.payload[problem.id]) for (problem, _), (program, _) in zip(answers, found, strict=True)
        ]
        graded = grade_all(self.sandbox, self.graders, work, self.workers)
        self.about["time_limits_not_confirmed"] += graded.unconfirmed
        return [
            self._grade(verdicts, program, how) for verdicts, (program, how) in zip(graded.verdicts, found, strict=True)
        ]

    def _grade(self, verdicts: dict[str, Verdict], program: str, how: str) -> Grade:
        headline = verdicts[self.graders[0]]
        if any(v.verdict in (GRADER, EXCLUDED) for v in verdicts.values()):
            verdict = "grader_error"
        elif not program.strip():
            verdict = "no_answer"
        else:
            verdict = "correct" if headline.passed else "wrong"
        details = {
            **{f"verdict_{'script' if name == CHECKED else name}": v.verdict for name, v in verdicts.items()},
            "tests_run": headline.tests_run,
            "tests_total": headline.tests_total,
            "seconds": round(sum(v.seconds for v in verdicts.values()), 3),
        }
        reason = how if how in ("odd_fences", "unclosed") and verdict != "correct" else headline.verdict
        return Grade(verdict, reason, program, how, details)

    def close(self) -> None:
        """Ends the sandbox."""
        self.sandbox.close()


@lru_cache
def source_version() -> str:
    """The first 12 hex digits of sha256 over the graders' source: any change of a rule regrades stored answers."""
    digest = hashlib.sha256()
    for path in sorted(Path(code.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
