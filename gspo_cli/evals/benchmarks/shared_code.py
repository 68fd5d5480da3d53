"""What the benchmarks with programs as answers share: the choice of graders, gradable problems, grading."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, Grade, Grader, GraderChoice, ProblemSet, source_version
from gspo_cli.rewards.code import grading
from gspo_cli.rewards.code.code_tests import BadTests
from gspo_cli.rewards.code.grading import CHECKED, PROGRAM_GRADERS, SharedTests, Work, extract_program, grade_all
from gspo_cli.rewards.verdict import EXCLUDED, GRADER_ERROR, ProgramVerdict
from gspo_cli.rows import Row
from gspo_cli.sandbox.choose import SandboxChoice, open_sandbox
from gspo_cli.sandbox.machine import calibration_ms, find_interpreter, physical_cores
from gspo_cli.tasks.code import TEMPLATE
from gspo_cli.types import Problem, Sampling


def grader_choice(grader: str, workers: int | None, sandbox: SandboxChoice) -> GraderChoice:
    """From the options of the command. Errors: GspoError for an unknown grader."""
    if grader != "both" and grader not in PROGRAM_GRADERS:
        raise GspoError(
            f"no grader {grader!r}",
            f"the graders of programs are {', '.join(PROGRAM_GRADERS)}, or both",
            "name one of them with --grader",
        )
    return GraderChoice(tuple(PROGRAM_GRADERS) if grader == "both" else (grader,), sandbox, workers)


def check_sandbox(benchmarks: Sequence[Benchmark], choice: GraderChoice) -> None:
    """Errors: GspoError if a benchmark runs programs and there is no sandbox."""
    if any(benchmark.runs_programs for benchmark in benchmarks):
        open_sandbox(choice.sandbox).close()


class GradableProblems:
    """The problems of some rows that can be graded; the others are left out and named."""

    def __init__(
        self, name: str, rows: Iterable[Row], id_column: str, build: Callable[[Row], tuple[Problem, SharedTests]]
    ) -> None:
        """`build` makes a problem and its tests of a row; it raises BadTests if nothing can be graded against them.

        Errors: GspoError for an id that occurs twice, or if no problem can be graded.
        """
        problems: list[Problem] = []
        self.tests: dict[str, SharedTests] = {}
        self.excluded: dict[str, list[str]] = {}
        seen: set[str] = set()
        for row in rows:
            identity = str(row[id_column])
            if identity in seen:
                raise GspoError(f"two problems with the id {identity}", "answers are stored by id", "remove one row")
            seen.add(identity)
            try:
                problem, self.tests[identity] = build(row)
                problems.append(problem)
            except BadTests as error:
                self.excluded.setdefault(str(error), []).append(identity)
        if not problems:
            reasons = "; ".join(f"{reason} ({', '.join(ids[:5])})" for reason, ids in self.excluded.items())
            raise GspoError(f"no problem of {name} can be graded", reasons, "give other data", ExitCode.ENGINE)
        self.problems = tuple(problems)
        self.warnings = [f"{name}: left out, because {why}: {', '.join(ids)}" for why, ids in self.excluded.items()]


class CodeGrader(Grader):
    """Grades the program of each answer; `ProblemSet.payload` holds the tests as `SharedTests`."""

    def __init__(self, problems: ProblemSet, choice: GraderChoice) -> None:
        self.tests: Mapping[str, SharedTests] = problems.payload
        self.graders = choice.graders
        self.sandbox = open_sandbox(choice.sandbox)
        self.workers = choice.workers or physical_cores()
        interpreter = find_interpreter(choice.sandbox.python)
        self.about: dict[str, Any] = {
            "name": f"code: {' + '.join(self.graders)}",
            "version": f"{source_version(Path(grading.__file__).parent)} {self.sandbox.kind}",
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
        programs = [extract_program(text) for _, text in answers]
        work = [Work(text, self.tests[problem.id]) for (problem, _), (text, _) in zip(answers, programs, strict=True)]
        graded = grade_all(self.sandbox, self.graders, work, self.workers)
        self.about["time_limits_not_confirmed"] += graded.unconfirmed
        return [self._grade(verdicts, *program) for verdicts, program in zip(graded.verdicts, programs, strict=True)]

    def _grade(self, verdicts: dict[str, ProgramVerdict], program: str, extracted_by: str) -> Grade:
        headline = verdicts[self.graders[0]]
        if any(v.verdict in (GRADER_ERROR, EXCLUDED) for v in verdicts.values()):
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
        bad_fences = extracted_by in ("odd_fences", "unclosed") and verdict != "correct"
        return Grade(verdict, extracted_by if bad_fences else headline.verdict, program, extracted_by, details)

    def close(self) -> None:
        """Close the sandbox."""
        self.sandbox.close()


SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_new_tokens=32768)


code_benchmark = partial(
    Benchmark, grader=CodeGrader, samples=8, sampling=SAMPLING, prompt_template="code-1", prompt_text=TEMPLATE,
    runs_programs=True, takes=("grader",),
)  # fmt: skip
"""A benchmark whose answers are programs, with its name, description and problems, and what differs."""
