"""The evaluations that a command asks for, stored, and those that a recipe asks for during training, logged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gspo_cli.config import EvalConfig
from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, GraderChoice, ProblemSet
from gspo_cli.evals.runner import Progress, evaluate, make_plan, measure
from gspo_cli.evals.settings import BenchmarkSet, Overrides, Subject, overrides_of
from gspo_cli.evals.store import Mode
from gspo_cli.evals.targets import Target, unlike_training
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


@dataclass
class Evaluator:
    """A model, which is loaded when its first benchmark needs it, and how it is evaluated."""

    target: Target
    overrides: Overrides
    seed: int | None
    """None = the target's."""
    mode: Mode
    grader_choice: GraderChoice
    opened: Subject | None = None
    drawing: Drawing = lambda _: None

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

    def run(
        self, benchmark: Benchmark, problems: ProblemSet, progress: Progress, drawing: Drawing,
        note: Callable[[str], None],
    ) -> dict[str, Any]:  # fmt: skip
        """The summary. `progress` counts stored answers; `drawing` is told how far the current engine call is.

        Errors: GspoError for a fault of this benchmark or model; others may still be fine.
        """
        self.drawing, target = drawing, self.target
        subject, folder = self.subject(), target.results(benchmark)
        seed = target.seed if self.seed is None else self.seed
        plan = make_plan(benchmark, problems, subject, self.overrides, seed, self.grader_choice)
        own = problems.source.get("source") == "local" or "rows" in problems.source  # the user named data
        chosen = self.overrides.model_dump(exclude={"samples"}) | ({} if own else {"data": None})
        if said := unlike_training(target, benchmark.name, chosen):
            note(f"note: {said}")
        for line in prompt_notes(subject.tokenizer, next(iter(plan.prompts.values())), subject.prompting):
            note(f"warning: {line}")
        try:
            summary = evaluate(plan, folder, self.mode, progress, note)
        except GspoError as error:
            if error.code == ExitCode.ENGINE:  # the next benchmark gets a new engine
                self.close()
            raise
        if target.step is not None:
            add_checksums(target.folder.parent, (path for path in folder.iterdir() if path.is_file()))
        return summary | {"folder": str(folder)}
