"""Run a benchmark with an engine and summarise the scores.

J = problems
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.rollout.collect import collect
from gspo_cli.rollout.engine import Engine
from gspo_cli.types import RolloutBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Result:
    """A benchmark's figure for one model."""

    benchmark: str
    samples: int
    num_problems: int
    average: float
    """avg@k in [0, 1]: the mean over problems of the share of right answers."""
    standard_error: float | None
    """Clustered by problem: answers to one problem are not independent. None for a single problem."""
    mean_tokens: float
    truncated_frac: float
    answers: RolloutBatch

    @property
    def metric(self) -> str:
        """The name under which a log holds it."""
        return f"{self.benchmark}/avg@{self.samples}"


def evaluate(
    benchmark: Benchmark, engine: Engine, tokenizer: PreTrainedTokenizerBase, samples: int, greedy: bool, seed: int
) -> Result:
    """Samples `samples` answers to every problem and scores them.

    Errors: GspoError for several samples of a greedy decoding, which would repeat one answer.
    """
    if greedy and samples > 1:
        raise GspoError(
            f"{samples} samples at temperature 0",
            "greedy decoding gives the same answer every time",
            "--samples 1, or leave out --greedy",
        )
    task = benchmark.task()
    sampling = replace(benchmark.sampling, temperature=0.0) if greedy else benchmark.sampling
    batch = collect(
        engine, tokenizer, task, task.problems(benchmark.split), samples, sampling,
        (seed, f"eval-{benchmark.name}", 0), version=engine.weight_version,
    )  # fmt: skip
    return summarise(benchmark.name, samples, batch)


def summarise(name: str, samples: int, batch: RolloutBatch) -> Result:
    """avg@k with its standard error sd(p_j) / sqrt(J)."""
    shares_J = [fmean(s.value or 0.0 for s in g.scores) for g in batch.groups]
    drawn = [s for g in batch.groups for s in g.samples]
    return Result(
        benchmark=name,
        samples=samples,
        num_problems=len(shares_J),
        average=fmean(shares_J),
        standard_error=stdev(shares_J) / math.sqrt(len(shares_J)) if len(shares_J) > 1 else None,
        mean_tokens=fmean(len(s.token_ids) for s in drawn),
        truncated_frac=fmean(s.finish == "length" for s in drawn),
        answers=batch,
    )
