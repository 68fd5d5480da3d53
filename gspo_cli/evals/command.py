"""The evaluations that one command asks for: every benchmark with every model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.evals.runner import Progress, evaluate, make_plan
from gspo_cli.evals.settings import Overrides, check_ranges, settle
from gspo_cli.evals.store import Mode
from gspo_cli.evals.subject import Subject
from gspo_cli.evals.targets import Target
from gspo_cli.models.load import load_policy
from gspo_cli.models.torch_setup import prepare_torch
from gspo_cli.rollout.engines import open_engine

Drawing = Callable[[int, int], None]
"""Called with samples drawn and samples wanted (`open_engine`)."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    benchmarks: list[Benchmark]
    targets: list[Target]
    data: Mapping[str, DataChoice]
    overrides: Overrides
    seed: int | None
    """None = each target's own."""
    mode: Mode


class Job:
    """One benchmark with one model."""

    def __init__(
        self, request: Request, target: Target, opening: Opening, benchmark: Benchmark, loading: Loading
    ) -> None:
        self.request, self.target, self.opening = request, target, opening
        self.benchmark, self.loading = benchmark, loading

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
        problems = self.loading.problems(self.benchmark)
        subject = self.opening.subject()
        seed = self.target.seed if request.seed is None else request.seed
        plan = make_plan(self.benchmark, problems, subject, request.overrides, seed)
        try:
            return evaluate(plan, self.folder, request.mode, progress, note)
        except GspoError as error:
            if error.code == ExitCode.ENGINE:  # the next benchmark gets another engine
                self.opening.close()
            raise


class Loading:
    """Problem sets, each read once."""

    def __init__(self, data: Mapping[str, DataChoice], warn: Callable[[str], None]) -> None:
        self.data, self.warn = data, warn
        self.sets: dict[str, ProblemSet] = {}

    def problems(self, benchmark: Benchmark) -> ProblemSet:
        """Those of a benchmark; its warnings are given once."""
        if benchmark.name not in self.sets:
            found = self.sets[benchmark.name] = benchmark.load(self.data.get(benchmark.name, DataChoice()))
            for warning in found.warnings:
                self.warn(f"warning: {warning}")
        return self.sets[benchmark.name]


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

    Errors: GspoError as `settle` says.
    """
    check_ranges(request.overrides)
    for benchmark in request.benchmarks:
        settle(benchmark, request.overrides, 0)
    loading = Loading(request.data, warn)
    for target in request.targets:
        opening = Opening(target)
        try:
            for benchmark in request.benchmarks:
                yield Job(request, target, opening, benchmark, loading)
        finally:
            opening.close()


def parse_data(data: list[str], revisions: list[str], benchmarks: list[Benchmark]) -> dict[str, DataChoice]:
    """`--data NAME=PATH` (several files for one name are joined) and `--revision NAME=SHA`.

    Errors: GspoError for another form, or a name that is not evaluated.
    """
    paths: dict[str, list[Path]] = {}
    commits: dict[str, str] = {}
    for option, texts in (("--data", data), ("--revision", revisions)):
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not value:
                raise GspoError(
                    f"{option} {text} has no name and value", "the form is NAME=VALUE", f"{option} aime24=..."
                )
            if name not in {b.name for b in benchmarks}:
                chosen = ", ".join(b.name for b in benchmarks)
                raise GspoError(f"{option} {text}", f"{name!r} is not among --bench {chosen}", "mend the name")
            if option == "--data":
                paths.setdefault(name, []).append(Path(value))
            else:
                commits[name] = value
    both = paths.keys() & commits.keys()
    if both:
        name = min(both)
        raise GspoError(f"--data and --revision for {name}", "a local file has no revision", "use one of them")
    return {n: DataChoice(tuple(paths.get(n, ())), commits.get(n)) for n in paths.keys() | commits.keys()}
