"""The benchmarks of a recipe with the weights as they are; nothing is stored, the log has the figures.

`gspo eval benchmarks` repeats them from a checkpoint: same code, same seeds, same figures, with answers and errors.
"""

from __future__ import annotations

from pathlib import Path

from gspo_cli.config import EvalConfig
from gspo_cli.errors import GspoError
from gspo_cli.evals import find_benchmark
from gspo_cli.evals.benchmark import Benchmark, DataChoice, GraderChoice, ProblemSet
from gspo_cli.evals.code_grader import check_sandbox
from gspo_cli.evals.runner import make_plan, measure
from gspo_cli.evals.settings import Overrides, settle
from gspo_cli.evals.subject import Subject
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.types import StepMetrics

BenchmarkSet = list[tuple[Benchmark, ProblemSet]]


def load_benchmarks(config: EvalConfig) -> BenchmarkSet:
    """The benchmarks that a recipe names, with their problems.

    Errors: GspoError as `check_benchmarks`, for data that cannot be had, or without a sandbox for programs.
    """
    chosen = check_benchmarks(config)
    check_sandbox(chosen, GraderChoice())
    return [(b, b.load(DataChoice((Path(config.data[b.name]),) if b.name in config.data else ()))) for b in chosen]


def check_benchmarks(config: EvalConfig) -> list[Benchmark]:
    """The benchmarks that a recipe names.

    Errors: GspoError for an unknown one, or for settings that it does not take.
    """
    chosen = [find_benchmark(name) for name in config.bench]
    if strange := [name for name in config.data if name not in config.bench]:
        raise GspoError(f"eval.data names {strange[0]!r}", f"eval.bench is {', '.join(config.bench)}", "mend it")
    for benchmark in chosen:
        settle(benchmark, _overrides(config), seed=0)
    return chosen


def measure_all(
    benchmarks: BenchmarkSet, config: EvalConfig, subject: Subject, seed: int, ranks: Ranks = ALONE
) -> StepMetrics:
    """avg@k of each, with the number of graded answers, the same on all ranks."""
    metrics = StepMetrics()
    for benchmark, problems in benchmarks:
        plan = make_plan(benchmark, problems, subject, _overrides(config), seed, GraderChoice())
        found = measure(plan, ranks)
        name = f"{benchmark.name}/avg@{plan.settings.samples}"
        metrics.values[name] = found["average"]
        metrics.counts[name] = found["num_answers"] - found["grader_errors"]
    return metrics


def _overrides(config: EvalConfig) -> Overrides:
    return Overrides(samples=config.samples, limit=config.limit, max_new_tokens=config.max_new_tokens)
