"""A benchmark's stored answers, as a score for each problem.

J = problems, I = samples
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gspo_cli.report.jsonl import corrupt, read_object
from gspo_cli.report.judged_by import BenchNumber
from gspo_cli.report.stats_problems import pass_at_k

Array = np.ndarray[Any, Any]

RESULTS = {
    "model", "model_sha256", "folder", "average", "standard_error", "mean_tokens", "truncated_frac", "num_ungraded",
    "seconds", "workers", "calibration_ms",
}  # fmt: skip
"""Keys of a `summary.json` that say what came out; all others say how it was measured and must agree."""


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

    @property
    def num_ungraded(self) -> int:
        """Answers whose grader failed."""
        return sum(int(np.isnan(s).sum()) for s in self.scores)

    def ungraded_as_wrong(self) -> Answers:
        """The same with 0 where the grader failed."""
        scores = tuple(np.where(np.isnan(s), 0.0, s) for s in self.scores)
        return Answers(self.step, self.problems, scores, self.protocol, self.sha256)

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
        if number.kind == "avg" and counts != [number.k]:
            return f"{' or '.join(map(str, counts))} samples a problem, not {number.k}"
        if number.kind == "pass" and counts[0] < number.k:
            return f"a problem has {counts[0]} samples, fewer than {number.k}"
        if number.kind == "pass" and any(not np.isin(s[~np.isnan(s)], (0, 1)).all() for s in self.scores):
            return "scores between 0 and 1: pass@k counts right answers"
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
        table = pq.read_table(path, columns=["problem_id", "sample", "reward"])
        frame = table.to_pandas().astype({"problem_id": str, "reward": np.float64})
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError, TypeError, OSError) as error:
        raise corrupt(str(path), error) from error
    twice = frame[frame.duplicated(["problem_id", "sample"])]
    if len(twice):
        raise corrupt(str(path), f"problem {twice.iloc[0]['problem_id']} has sample {twice.iloc[0]['sample']} twice")
    by_problem = list(frame.sort_values(["problem_id", "sample"]).groupby("problem_id", sort=True)["reward"])
    summary = read_object(path.with_name("summary.json"))
    return Answers(
        path.parent.name,
        tuple(str(name) for name, _ in by_problem),
        tuple(values.to_numpy(np.float64) for _, values in by_problem),
        {key: value for key, value in summary.items() if key not in RESULTS},
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def problems_hash(answers: Answers) -> str:
    """A short hash of the sorted problem ids."""
    return hashlib.sha256("\n".join(answers.problems).encode()).hexdigest()[:16]
