"""Pairs of runs of two arms, by seed and by problem, and the side file that names the runs behind a report file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.runs.curves import RunCurves, load_curves
from gspo_cli.report.runs.facts import Facts, read_facts
from gspo_cli.report.runs.folders import StoredRun, Study
from gspo_cli.report.runs.log import Log, Wanted
from gspo_cli.report.runs.metric_spec import REWARD, BenchmarkMetric, MetricSpec
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.checksums import add_checksums, sha256_of
from gspo_cli.runlog.fs import require_regular, write_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.problems import Array, pass_at_k

PROTOCOL = (
    "benchmark", "samples", "temperature", "data", "sampling", "seed", "engine", "dtype", "device", "prompt_template",
    "tokenizer_sha256", "chat_template_sha256", "grader", "packages",
)  # fmt: skip
"""Keys of a `summary.json` that say how the score was measured and must agree between runs; the others are results."""
INCIDENTAL = {"workers", "calibration_ms", "time_limits_not_confirmed"}
"""Keys of `grader` that may differ between two evaluations of the same kind."""
SCORE_OF = {"correct": 1.0, "wrong": 0.0, "no_answer": 0.0}
"""Every other verdict means that the grader failed."""


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
    """How they were obtained, from `summary.json`."""
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

    @property
    def problems_hash(self) -> str:
        """A short hash of the sorted problem ids."""
        return sha256("\n".join(self.problems).encode()).hexdigest()[:16]

    def ungraded_as_wrong(self) -> Answers:
        """A copy with score 0 where the grader failed."""
        return replace(self, scores=tuple(np.where(np.isnan(s), 0.0, s) for s in self.scores))

    def by_problem(self, spec: BenchmarkMetric) -> Array:
        """The score of each problem [J]: the mean over its k samples, or pass@k from all of them."""
        if spec.kind == "avg":
            return np.array([s.mean() for s in self.scores])
        return np.array([pass_at_k(len(s), int(s.sum()), spec.k) for s in self.scores])

    def why_unusable(self, spec: BenchmarkMetric) -> str | None:
        """Why the metric cannot be computed from these answers; None if it can."""
        counts = sorted({len(s) for s in self.scores})
        if not counts:
            return "it holds no answers"
        if spec.kind == "elo" and self.elo is None:
            return "no contest was rated: evaluate with --contests"
        if spec.kind == "avg" and counts != [spec.k]:
            return f"{' or '.join(map(str, counts))} samples a problem, not {spec.k}"
        if spec.kind == "pass" and counts[0] < spec.k:
            return f"a problem has {counts[0]} samples, fewer than {spec.k}"
        if spec.kind == "pass" and not set(np.concatenate(self.scores)[~np.isnan(np.concatenate(self.scores))]) <= {
            0,
            1,
        }:
            return "its answers have rewards that are not 0 or 1"
        return f"{self.num_ungraded} answers without a verdict (grader errors)" if self.num_ungraded else None


def load_answers(run: Path, bench: str) -> Answers | None:
    """The answers of the run's last evaluated checkpoint; None if it was not evaluated.

    Errors: GspoError (exit code STORAGE) naming a file that is corrupt.
    """
    paths = sorted(run.glob(f"eval/{bench}/step-*/answers.parquet"))
    if not paths:
        return None
    path = paths[-1]
    try:
        require_regular(path)
        rewards = [name for name in pq.read_schema(path).names if name == "reward"]
        frame = pq.read_table(path, columns=["problem_id", "sample", "verdict", *rewards]).to_pandas()
        score = frame["verdict"].map(SCORE_OF)
        if rewards:  # of held-out rows: it need not be 0 or 1
            score = frame["reward"].astype(float).fillna(score)
        frame = frame.assign(problem_id=frame["problem_id"].astype(str), score=score)
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError, TypeError, OSError) as error:
        raise corrupt(str(path), error) from error
    repeated = frame[frame.duplicated(["problem_id", "sample"])]
    if len(repeated):
        row = repeated.iloc[0]
        raise corrupt(str(path), f"problem {row['problem_id']} has sample {row['sample']} twice")
    by_problem = list(frame.sort_values(["problem_id", "sample"]).groupby("problem_id", sort=True)["score"])
    summary = read_object(path.with_name("summary.json"))
    problems, contests = tuple(str(name) for name, _ in by_problem), summary.get("contest_of")
    return Answers(
        path.parent.name,
        problems,
        tuple(values.to_numpy(np.float64) for _, values in by_problem),
        _protocol(summary),
        sha256_of(path),
        tuple(str(contests.get(name, name)) for name in problems) if contests else None,
        (summary.get("contest_elo") or {}).get("elo"),
    )


def _protocol(summary: dict[str, Any]) -> dict[str, Any]:
    found = {key: summary[key] for key in PROTOCOL if key in summary}
    if isinstance(grader := found.get("grader"), dict):
        found["grader"] = {key: value for key, value in grader.items() if key not in INCIDENTAL}
    return found


SIDE_FILE = ".sources.json"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run with everything that a comparison reads of it."""

    facts: Facts
    curves: RunCurves | None
    """None without a `metrics.jsonl`."""
    answers: Answers | None
    """To the benchmark in question, if the run was evaluated on it."""

    @property
    def run(self) -> StoredRun:
        """Folder, arm, algorithm, seed."""
        return self.facts.run

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self.run.folder.name

    @property
    def not_finite(self) -> bool:
        """Whether training stopped on values that are not finite, or a mean reward in the log is not."""
        return self.facts.not_finite or (self.curves is not None and REWARD in self.curves.non_finite)


Records = dict[str, dict[int, RunRecord]]
"""Arm -> seed -> run."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms; after `drop_invalid` and `narrow` only the runs that enter the statistics."""

    baseline: str
    treatment: str
    left: dict[int, RunRecord]
    """The baseline's runs by seed."""
    right: dict[int, RunRecord]
    """The treatment's."""

    @property
    def seeds(self) -> list[int]:
        """Seeds that both arms have."""
        return sorted(self.left.keys() & self.right.keys())

    @property
    def records(self) -> list[RunRecord]:
        """All runs, the baseline's first, each arm by seed."""
        return [side[seed] for side in (self.left, self.right) for seed in sorted(side)]

    def narrow(self, seeds: Iterable[int]) -> Pair:
        """These seeds only."""
        kept = set(seeds)
        left, right = ({s: r for s, r in side.items() if s in kept} for side in (self.left, self.right))
        return replace(self, left=left, right=right)

    def ungraded_as_wrong(self) -> Pair:
        """Score 0 for every answer whose grader failed, in both arms."""
        left, right = (
            {s: replace(r, answers=r.answers and r.answers.ungraded_as_wrong()) for s, r in side.items()}
            for side in (self.left, self.right)
        )
        return replace(self, left=left, right=right)

    def in_order(self) -> Pair:
        """Runs that share nothing by seed, matched in the order of their seeds: keyed by their place, from 0.

        Errors: GspoError for sides of different size.
        """
        if len(self.left) != len(self.right):
            raise GspoError(
                f"--unpaired: {self.baseline} has {len(self.left)} runs and {self.treatment} {len(self.right)}",
                "each run is matched with one of the other side, in the order of their seeds",
                "import the missing runs, or name as many of each side with --seeds",
            )
        left, right = (dict(enumerate(side[seed] for seed in sorted(side))) for side in (self.left, self.right))
        return replace(self, left=left, right=right)

    def drop_invalid(self) -> tuple[Pair, list[RunRecord]]:
        """(the pair without seeds of which a run is marked as invalid, the invalid runs)."""
        invalid = [r for r in self.records if r.facts.invalid is not None]
        return self.narrow({*self.left, *self.right} - {r.run.seed for r in invalid}), invalid


def load_records(study: Study, spec: MetricSpec | None = None, also: Wanted | None = None) -> Records:
    """All runs, with the log and the answers that the metric needs, and the logged metrics in `also`.

    Errors: GspoError (exit code STORAGE) for a file that is corrupt.
    """
    wanted: dict[str, set[str]] = {kind: set(names) for kind, names in (also or {}).items()}
    if spec is not None:
        wanted.setdefault("eval" if isinstance(spec, BenchmarkMetric) else spec.lines, set()).add(spec.metric)
    logged = [run for run in study.runs if (run.folder / "metrics.jsonl").is_file()]
    curves: dict[Path, RunCurves] = dict(zip((run.folder for run in logged), load_curves(logged, wanted), strict=True))
    records: Records = {}
    for run in study.runs:
        records.setdefault(run.arm, {})[run.seed] = RunRecord(read_facts(run), curves.get(run.folder), None)
    if not isinstance(spec, BenchmarkMetric):
        return records
    answered = with_answers(records, spec.bench)
    in_log = all(one.curves and len(one.curves.values[spec.metric]) for one in all_of(records))
    # a try of some runs, perhaps with --limit, takes nothing from what training logged for all of them
    return records if in_log and not all(one.answers for one in all_of(answered)) else answered


def with_answers(records: Records, bench: str) -> Records:
    """The same runs, with their stored answers to a benchmark.

    Errors: GspoError (exit code STORAGE) for a file that is corrupt.
    """
    return {
        arm: {seed: replace(one, answers=load_answers(one.run.folder, bench)) for seed, one in by_seed.items()}
        for arm, by_seed in records.items()
    }


def all_of(records: Records) -> list[RunRecord]:
    """The runs of all arms."""
    return [record for by_seed in records.values() for record in by_seed.values()]


def about_run(run: StoredRun, read: Log | RunCurves | None) -> dict[str, Any]:
    """A run as every side file names it; `log` = the bytes read of its log, their sha256, and the torn bytes."""
    log = read and {"bytes": read.num_bytes, "sha256": read.sha256, "torn_bytes": read.torn_bytes}
    return {
        "run": run.folder.name, "run_id": run.run_id, "arm": run.arm, "algorithm": run.algorithm,
        "replay": run.replay, "seed": run.seed, "log": log,
    }  # fmt: skip


def write_sources(path: Path, records: list[RunRecord], excluded: Mapping[str, str]) -> Path:
    """Writes `<name>.sources.json` beside a report file, and adds both to the folder's checksums.

    `records`: all runs of the study; `excluded`: folder name -> why the file does not rest on that run.
    Errors: GspoError (exit code STORAGE) when the disk refuses.
    """
    used, left_out = [], []
    for record in records:
        about = about_run(record.run, record.curves)
        if record.name in excluded:
            left_out.append(about | {"reason": excluded[record.name]})
        else:
            used.append(about)
    side = {"file": path.name, "sha256": sha256_of(path), "gspo": __version__, "runs": used, "excluded": left_out}
    beside = path.with_name(path.name.removesuffix(path.suffix) + SIDE_FILE)
    write_text(beside, json.dumps(side, indent=1, sort_keys=True, allow_nan=False) + "\n")
    add_checksums(path.parent, [path, beside])
    return beside
