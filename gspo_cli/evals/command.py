"""The evaluations that one command asks for: every benchmark with every model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, GraderChoice
from gspo_cli.evals.code_grader import check_sandbox
from gspo_cli.evals.loading import Loading
from gspo_cli.evals.runner import Progress, evaluate, make_plan
from gspo_cli.evals.settings import Overrides, check_ranges, settle
from gspo_cli.evals.store import Mode
from gspo_cli.evals.subject import Subject
from gspo_cli.evals.targets import Target
from gspo_cli.models.load import load_policy
from gspo_cli.models.torch_setup import prepare_torch
from gspo_cli.rollout.engines import open_engine
from gspo_cli.runlog.seal import seal_files

Drawing = Callable[[int, int], None]
"""Called with samples drawn and samples wanted (`open_engine`)."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    benchmarks: list[Benchmark]
    targets: list[Target]
    loading: Loading
    overrides: Overrides
    seed: int | None
    """None = each target's own."""
    mode: Mode
    grading: GraderChoice


class Job:
    """One benchmark with one model."""

    def __init__(self, request: Request, target: Target, opening: Opening, benchmark: Benchmark) -> None:
        self.request, self.target, self.opening, self.benchmark = request, target, opening, benchmark

    @property
    def folder(self) -> Path:
        """Where its results go."""
        return self.target.results(self.benchmark.name)

    def run(self, progress: Progress, drawing: Drawing, note: Callable[[str], None]) -> dict[str, Any]:
        """The summary. `progress` is told what is stored, `drawing` how far the engine is with what it was asked for,
        if it can say.

        Errors: GspoError for what is wrong with this benchmark or model; others may still be fine.
        """
        request = self.request
        self.opening.drawing = drawing
        problems = request.loading.problems(self.benchmark)
        subject = self.opening.subject()
        seed = self.target.seed if request.seed is None else request.seed
        plan = make_plan(self.benchmark, problems, subject, request.overrides, seed, request.grading)
        try:
            summary = evaluate(plan, self.folder, request.mode, progress, note)
        except GspoError as error:
            if error.code == ExitCode.ENGINE:  # the next benchmark gets another engine
                self.opening.close()
            raise
        run = self.folder.parents[2] if len(self.folder.parents) > 2 else self.folder
        if (run / "run.json").is_file():
            seal_files(run, (path for path in self.folder.iterdir() if path.is_file()))
        return summary


class Opening:
    """A model that is loaded when its first benchmark needs it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.opened: Subject | None = None
        self.drawing: Drawing = lambda _drawn, _wanted: None

    def subject(self) -> Subject:
        """The model behind its engine."""
        if self.opened is None:
            machine = self.target.machine
            prepare_torch(machine.model.threads)
            model, tokenizer = load_policy(machine.model, str(machine.model.path))
            engine = open_engine(machine.rollout, model, tokenizer, progress=lambda *so_far: self.drawing(*so_far))
            self.opened = Subject(engine, model, tokenizer, self.target.name)
        return self.opened

    def close(self) -> None:
        """Ends the engine."""
        if self.opened is not None:
            self.opened.engine.close()
            self.opened = None


def jobs(request: Request, warn: Callable[[str], None]) -> Generator[Job]:
    """All evaluations, model by model; settings that no benchmark takes are refused before the first.

    Errors: GspoError as `settle` and `check_sandbox` say.
    """
    check_ranges(request.overrides)
    for benchmark in request.benchmarks:
        settle(benchmark, request.overrides, 0)
    for lack in check_sandbox(request.benchmarks, request.grading):
        warn(f"warning: {lack}")
    for target in request.targets:
        opening = Opening(target)
        try:
            for benchmark in request.benchmarks:
                yield Job(request, target, opening, benchmark)
        finally:
            opening.close()
