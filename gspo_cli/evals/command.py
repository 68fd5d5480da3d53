"""The evaluations that a command asks for, stored, and those that a recipe asks for during training, logged."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.config import EvalConfig
from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, GraderChoice, ProblemSet
from gspo_cli.evals.benchmarks.shared_code import check_sandbox
from gspo_cli.evals.runner import Progress, evaluate, make_plan, measure
from gspo_cli.evals.settings import BenchmarkSet, Overrides, Subject, overrides_of
from gspo_cli.evals.store import Mode
from gspo_cli.evals.targets import Target
from gspo_cli.models.device import prepare_torch
from gspo_cli.models.load import load_policy
from gspo_cli.rollout.engine import Progress as Drawing
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.prompts import prompt_notes
from gspo_cli.runlog.checksums import add_checksums
from gspo_cli.types import StepMetrics


def measure_all(
    benchmarks: BenchmarkSet, config: EvalConfig, subject: Subject, seed: int, ranks: Ranks, progress: Progress
) -> StepMetrics:
    """avg@k of each benchmark, with the number of graded answers; the same on all ranks."""
    metrics = StepMetrics()
    for benchmark, problems in benchmarks:
        plan = make_plan(benchmark, problems, subject, overrides_of(config), seed, GraderChoice())
        figures = measure(plan, ranks, progress)
        name = f"{benchmark.name}/avg@{plan.settings.samples}"
        metrics.values[name] = figures["average"]
        metrics.counts[name] = figures["num_answers"] - figures["grader_errors"]
    return metrics


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """Which benchmarks to run with which models, and how."""

    benchmarks: list[Benchmark]
    targets: list[Target]
    problems: Callable[[Benchmark], ProblemSet]
    """Loads a benchmark's problems, once."""
    overrides: Overrides
    seed: int | None
    """None = the seed of each target."""
    mode: Mode
    grader_choice: GraderChoice


class LazyModel:
    """A model that is loaded when its first benchmark needs it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.opened: Subject | None = None
        self.drawing: Drawing = lambda _: None

    def subject(self) -> Subject:
        """The model behind its engine."""
        if self.opened is None:
            source = self.target.source
            prepare_torch(source.model.threads, source.model.float32_matmul)
            model, tokenizer = load_policy(source.model, str(source.model.path))
            # looked up on each call: every benchmark shows its own progress
            engine = open_engine(source.rollout, model, tokenizer, progress=lambda counts: self.drawing(counts))
            self.opened = Subject(engine, model, tokenizer, self.target.name, self.target.prompting)
        return self.opened

    def close(self) -> None:
        """Close the engine."""
        if self.opened is not None:
            self.opened.engine.close()
            self.opened = None


@dataclass(frozen=True)
class Evaluation:
    """One benchmark with one model."""

    request: SampleRequest
    model: LazyModel
    benchmark: Benchmark

    @property
    def name(self) -> str:
        """The benchmark, and the step of a run's checkpoint."""
        return f"{self.benchmark.name} {self.model.target.step or ''}".strip()

    @property
    def folder(self) -> Path:
        """Where its results go."""
        return self.model.target.folder / self.benchmark.name / (self.model.target.step or "")

    def run(self, progress: Progress, drawing: Drawing, note: Callable[[str], None]) -> dict[str, Any]:
        """The summary. `progress` counts stored answers; `drawing` is told how far the current engine call is.

        Errors: GspoError for a fault of this benchmark or model; others may still be fine.
        """
        request = self.request
        self.model.drawing = drawing
        problems = request.problems(self.benchmark)
        subject = self.model.subject()
        seed = self.model.target.seed if request.seed is None else request.seed
        plan = make_plan(self.benchmark, problems, subject, request.overrides, seed, request.grader_choice)
        for line in prompt_notes(subject.tokenizer, next(iter(plan.prompts.values())), subject.prompting):
            note(f"warning: {line}")
        try:
            summary = evaluate(plan, self.folder, request.mode, progress, note)
        except GspoError as error:
            if error.code == ExitCode.ENGINE:  # the next benchmark gets a new engine
                self.model.close()
            raise
        if self.model.target.step is not None:
            run = self.model.target.folder.parent
            add_checksums(run, (path for path in self.folder.iterdir() if path.is_file()))
        return summary


def evaluations(request: SampleRequest) -> Generator[Evaluation]:
    """All evaluations, model by model. Errors: GspoError, as `check_sandbox`, before the first."""
    check_sandbox(request.benchmarks, request.grader_choice)
    for target in request.targets:
        with closing(LazyModel(target)) as model:
            for benchmark in request.benchmarks:
                yield Evaluation(request, model, benchmark)
