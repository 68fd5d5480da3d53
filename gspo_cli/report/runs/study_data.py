"""A study as pandas frames, for notebooks and scripts: what `gspo_cli.load_study` returns."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from gspo_cli.report.runs.folders import StoredRun, find_study
from gspo_cli.report.runs.log import LAYERS, load_log, load_perf
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.fs import require_regular
from gspo_cli.runlog.schema import is_known, metric
from gspo_cli.runlog.strict_json import read_object

RUN_COLUMNS = ["arm", "algorithm", "seed"]
"""The first columns of every frame."""


@dataclass(frozen=True)
class StudyData:
    """The runs of a study and what they logged. Each frame is read on first use, then kept."""

    folder: Path
    runs: tuple[StoredRun, ...]
    """Sorted by arm and seed: folder, run id, arm, algorithm, replay, seed."""

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per rollout batch of a run: arm, algorithm, seed, step, and a column for each metric that is logged
        once per batch, mini-batches pooled. NaN = logged as null ("n/a") or not logged; step 0 holds evaluations before
        the first update.

        An incomplete last line is left out.
        Errors: GspoError (exit code STORAGE) naming file and line of a log that is corrupt.
        """
        return self._per_run(lambda run: _wide(run, ("rollout", "step", "eval"), ["step"]))

    @cached_property
    def updates(self) -> pd.DataFrame:
        """One row per optimizer step: arm, algorithm, seed, step, mini_batch (from 0), metrics. Errors: as `steps`."""
        return self._per_run(lambda run: _wide(run, ("update",), ["step", "mini_batch"]))

    @cached_property
    def times(self) -> pd.DataFrame:
        """One row per line of `perf.jsonl`: what depends on the clock and the machine. Errors: as `steps`."""
        return self._per_run(lambda run: load_perf(run.folder / "perf.jsonl"))

    @cached_property
    def configs(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(arm, seed) -> the resolved recipe. Errors: GspoError (exit code STORAGE) naming a file that is corrupt."""
        return {(run.arm, run.seed): read_object(run.folder / "config.json") for run in self.runs}

    def rollouts(self, arm: str | None = None, seed: int | None = None, step: int | None = None) -> pd.DataFrame:
        """The stored responses of all runs, or of one arm, seed or rollout batch, one row each: arm, algorithm, seed,
        and the columns of the parquet files. The sampler's seed of a response is `sample_seed`.

        Errors: GspoError (exit code STORAGE) naming a file that cannot be read.
        """
        pattern = "step_*.parquet" if step is None else f"step_{step:06d}.parquet"
        runs = [run for run in self.runs if arm in (None, run.arm) and seed in (None, run.seed)]
        files = ((run, path) for run in runs for path in sorted((run.folder / "rollouts").glob(pattern)))
        return _stack((run, _responses(path)) for run, path in files)

    def _per_run(self, read: Callable[[StoredRun], pd.DataFrame]) -> pd.DataFrame:
        return _stack((run, read(run)) for run in self.runs)


def read_study_data(study: str | Path | None, root: Path) -> StudyData:
    """A study or single run by folder or by name under `root`; None = the newest there.

    Errors: GspoError if there is none, or if a file that describes a run is corrupt.
    """
    found = find_study(None if study is None else str(study), root)
    return StudyData(found.folder, found.runs)


def _stack(parts: Iterable[tuple[StoredRun, pd.DataFrame]]) -> pd.DataFrame:
    """The frames below one another, each row with its run's arm, algorithm and seed."""
    frames = []
    for run, frame in parts:
        about = pd.DataFrame({"arm": run.arm, "algorithm": run.algorithm, "seed": run.seed}, index=frame.index)
        frames.append(pd.concat([about, frame], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=RUN_COLUMNS)


def _wide(run: StoredRun, kinds: tuple[str, ...], index: list[str]) -> pd.DataFrame:
    """A run's log with one column per metric."""
    names = _logged_names(run.folder / "metrics.jsonl")
    kinds_with = {name: ["step"] if LAYERS in name else metric(name).lines.split(", ") for name in names}
    wanted = {kind: [name for name in names if kind in kinds_with[name]] for kind in kinds}
    frame = load_log(run, wanted).frame
    wide = frame.pivot(index=index, columns="metric", values="value").reset_index()
    wide.columns = pd.Index([str(name) for name in wide.columns])
    columns = [name for name in names if any(name in of_kind for of_kind in wanted.values())]
    return wide.reindex(columns=[*index, *columns])


def _logged_names(path: Path) -> list[str]:
    """The metrics that a log names, sorted."""
    try:
        keys = set(re.findall(rb'"([^"\\]+)":', path.read_bytes()))
    except OSError as error:
        raise corrupt(str(path), error) from error
    return sorted(name for name in (key.decode("utf-8", "replace") for key in keys) if is_known(name))


def _responses(path: Path) -> pd.DataFrame:
    try:
        require_regular(path)
        return pd.read_parquet(path).rename(columns={"seed": "sample_seed"})
    except (OSError, ValueError) as error:
        raise corrupt(str(path), error) from error
