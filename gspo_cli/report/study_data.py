"""A study as pandas frames, for notebooks and scripts: what `gspo_cli.load_study` returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from gspo_cli.report.folders import Run, Study, find_study
from gspo_cli.report.jsonl import corrupt, read_object
from gspo_cli.report.load import load_log, load_perf
from gspo_cli.runlog.schema import is_known, metric

WHO = ["arm", "algorithm", "seed"]
"""The first columns of every frame."""


@dataclass(frozen=True)
class StudyData:
    """The runs of a study and what they logged. Each frame is read when it is first asked for, then kept."""

    folder: Path
    runs: tuple[Run, ...]
    """Sorted by arm and seed: folder, run id, arm, algorithm, replay, seed."""

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a rollout batch of a run: arm, algorithm, seed, step, and a column for each metric that is logged
        once a batch, mini-batches pooled. NaN = logged as null ("n/a") or not logged; step 0 holds evaluations before
        the first update.

        A torn last line is left out.
        Errors: GspoError (exit code STORAGE) naming file and line of a log that is not one.
        """
        return self._of_each(lambda run: _wide(run, ("rollout", "step", "eval"), ["step"]))

    @cached_property
    def updates(self) -> pd.DataFrame:
        """One row an optimizer step: arm, algorithm, seed, step, mini_batch (from 0), a column for each metric.

        Errors: as `steps`.
        """
        return self._of_each(lambda run: _wide(run, ("update",), ["step", "mini_batch"]))

    @cached_property
    def times(self) -> pd.DataFrame:
        """One row a line of `perf.jsonl`: what depends on the clock and the machine.

        Errors: as `steps`.
        """
        return self._of_each(lambda run: load_perf(run.folder / "perf.jsonl"))

    @cached_property
    def configs(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(arm, seed) -> the resolved recipe.

        Errors: GspoError (exit code STORAGE) naming a file that is not one JSON object.
        """
        return {(run.arm, run.seed): read_object(run.folder / "config.json") for run in self.runs}

    def rollouts(self, arm: str | None = None, seed: int | None = None, step: int | None = None) -> pd.DataFrame:
        """The stored responses, one row each: arm, algorithm, seed and the columns of the parquet files, the sampler's
        seed of a response as `sample_seed`. All of them, or those of one arm, seed, rollout batch.

        Errors: GspoError (exit code STORAGE) naming a file that cannot be read.
        """
        pattern = "step_*.parquet" if step is None else f"step_{step:06d}.parquet"
        wanted = [run for run in self.runs if arm in (None, run.arm) and seed in (None, run.seed)]
        return _rows(
            (run, _responses(path)) for run in wanted for path in sorted((run.folder / "rollouts").glob(pattern))
        )

    def _of_each(self, read: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
        return _rows((run, read(run)) for run in self.runs)


def read_study_data(study: str | Path | None, root: Path) -> StudyData:
    """A study or single run by folder or by name under `root`; None = the newest there.

    Errors: GspoError if there is none, or if a file that describes a run is corrupt.
    """
    found: Study = find_study(None if study is None else str(study), root)
    return StudyData(found.folder, found.runs)


def _rows(parts: Iterable[tuple[Run, pd.DataFrame]]) -> pd.DataFrame:
    """The frames below one another, each row with the run it is of."""
    frames = []
    for run, frame in parts:
        who = pd.DataFrame({"arm": run.arm, "algorithm": run.algorithm, "seed": run.seed}, index=frame.index)
        frames.append(pd.concat([who, frame], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=WHO)


def _wide(run: Run, kinds: tuple[str, ...], index: list[str]) -> pd.DataFrame:
    """A run's log with one column a metric."""
    names = _logged(run.folder / "metrics.jsonl")
    wanted = {kind: [name for name in names if kind in _kinds(name)] for kind in kinds}
    frame = load_log(run, wanted, counts=False).frame
    wide = frame.pivot(index=index, columns="metric", values="value").reset_index()
    wide.columns = pd.Index([str(name) for name in wide.columns])
    asked = [name for name in names if any(name in of_kind for of_kind in wanted.values())]
    return wide.reindex(columns=[*index, *asked])


def _kinds(name: str) -> list[str]:
    """The kinds of lines that hold a metric."""
    return ["step"] if "/layer_" in name else metric(name).lines.split(", ")


def _logged(path: Path) -> list[str]:
    """The metrics that a log names, sorted."""
    try:
        keys = set(re.findall(rb'"([^"\\]+)":', path.read_bytes()))
    except OSError as error:
        raise corrupt(str(path), error) from error
    names = {key.decode("utf-8", "replace") for key in keys}
    return sorted(name for name in names if is_known(name))


def _responses(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path).rename(columns={"seed": "sample_seed"})
    except (OSError, ValueError) as error:
        raise corrupt(str(path), error) from error
