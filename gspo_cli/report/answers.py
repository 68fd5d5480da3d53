"""A benchmark's stored answers, as a score for each problem.

J = problems, I = samples
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gspo_cli.report.jsonl import corrupt, read_object
from gspo_cli.report.judged_by import BenchNumber
from gspo_cli.report.stats_problems import pass_at_k

Array = np.ndarray[Any, Any]

PROTOCOL = (
    "benchmark", "samples", "temperature", "data", "sampling", "seed", "engine", "dtype", "device", "prompt_template",
    "tokenizer_sha256", "chat_template_sha256", "grader", "packages",
)  # fmt: skip
"""Keys of a `summary.json` that say how it was measured and must agree; the others say what came out."""
OF_THE_DAY = {"workers", "calibration_ms", "time_limits_not_confirmed"}
"""What is in `grader` without being part of it."""
VERDICTS = {"correct": 1.0, "wrong": 0.0, "no_answer": 0.0}
"""All others mean that the grader failed."""


@dataclass(frozen=True, slots=True)
class Answers:
    """One checkpoint's answers to a benchmark."""

    step: str
    """The checkpoint's folder: `step-000060`."""
    problems: tuple[str, ...]
    """Sorted ids [J]."""
    scores: tuple[Array, ...]
    """Of each problem, its answers' scores in the order of the samples; NaN where the grader failed."""
    protocol: dict[str, Any]
    """How they were made, from `summary.json`."""
    sha256: str
    """Of the stored file."""
    contests: tuple[str, ...] | None = None
    """The contest of each problem [J], where they come from contests."""
    elo: float | None = None
    """The rating over contests, of a benchmark that has one."""

    @property
    def num_ungraded(self) -> int:
        """Answers whose grader failed."""
        return sum(int(np.isnan(s).sum()) for s in self.scores)

    def ungraded_as_wrong(self) -> Answers:
        """The same with 0 where the grader failed."""
        scores = tuple(np.where(np.isnan(s), 0.0, s) for s in self.scores)
        return replace(self, scores=scores)

    def by_problem(self, number: BenchNumber) -> Array:
        """The score of each problem [J]: the mean over its k samples, or pass@k from all of them."""
        if number.kind == "avg":
            return np.array([s.mean() for s in self.scores])
        return np.array([pass_at_k(len(s), int(s.sum()), number.k) for s in self.scores])

    def complaint(self, number: BenchNumber) -> str | None:
        """Why these answers do not give that number; None if they do."""
        counts = sorted({len(s) for s in self.scores})
        if not counts:
            return "it holds no answers"
        if number.kind == "elo" and self.elo is None:
            return "no contest was rated: evaluate with --contests"
        if number.kind == "avg" and counts != [number.k]:
            return f"{' or '.join(map(str, counts))} samples a problem, not {number.k}"
        if number.kind == "pass" and counts[0] < number.k:
            return f"a problem has {counts[0]} samples, fewer than {number.k}"
        return f"{self.num_ungraded} answers without a verdict (grader errors)" if self.num_ungraded else None


def load_answers(run: Path, bench: str) -> Answers | None:
    """The answers of the run's newest evaluated checkpoint; None if it was not evaluated.

    Errors: GspoError (exit code STORAGE) naming a file that cannot be what was written.
    """
    found = sorted(run.glob(f"eval/{bench}/step-*/answers.parquet"))
    if not found:
        return None
    path = found[-1]
    try:
        frame = pq.read_table(path, columns=["problem_id", "sample", "verdict"]).to_pandas()
        frame = frame.assign(problem_id=frame["problem_id"].astype(str), score=frame["verdict"].map(VERDICTS))
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError, TypeError, OSError) as error:
        raise corrupt(str(path), error) from error
    twice = frame[frame.duplicated(["problem_id", "sample"])]
    if len(twice):
        raise corrupt(str(path), f"problem {twice.iloc[0]['problem_id']} has sample {twice.iloc[0]['sample']} twice")
    by_problem = list(frame.sort_values(["problem_id", "sample"]).groupby("problem_id", sort=True)["score"])
    summary = read_object(path.with_name("summary.json"))
    problems, contests = tuple(str(name) for name, _ in by_problem), summary.get("contest_of")
    return Answers(
        path.parent.name,
        problems,
        tuple(values.to_numpy(np.float64) for _, values in by_problem),
        protocol_of(summary),
        hashlib.sha256(path.read_bytes()).hexdigest(),
        tuple(str(contests.get(name, name)) for name in problems) if contests else None,
        (summary.get("contest_elo") or {}).get("elo"),
    )


def protocol_of(summary: dict[str, Any]) -> dict[str, Any]:
    """How an evaluation was made: what must agree between two runs."""
    found = {key: summary[key] for key in PROTOCOL if key in summary}
    if isinstance(grader := found.get("grader"), dict):
        found["grader"] = {key: value for key, value in grader.items() if key not in OF_THE_DAY}
    return found


def problems_hash(answers: Answers) -> str:
    """A short hash of the sorted problem ids."""
    return hashlib.sha256("\n".join(answers.problems).encode()).hexdigest()[:16]
