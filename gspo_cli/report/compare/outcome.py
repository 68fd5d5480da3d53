"""What each arm of a study came to: reward and scores from start to end, seeds, time."""

from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from gspo_cli.report.compare.scores import BEGINNING
from gspo_cli.report.runs.curves import training_seconds
from gspo_cli.report.runs.folders import StoredRun, Study
from gspo_cli.report.runs.log import SCORES, load_log
from gspo_cli.report.runs.metric_spec import REWARD
from gspo_cli.runlog.collapse import collapse_window

MEANING = (
    f"means over seeds; reward: from the first {BEGINNING} rollout batches to the last tenth; scores: from before "
    "training to the last evaluation; time: training of one run"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An arm in one row; all numbers are means over its runs that have them."""

    arm: str
    seeds: int
    changes: dict[str, tuple[float, float]]
    """Reward and logged scores, by metric: at the start and at the end."""
    seconds: float | None
    """Training time of a run."""


def outcomes(study: Study) -> list[Outcome]:
    """A row for every arm with a log. Errors: GspoError (exit code STORAGE) for a log that is corrupt."""
    found: dict[str, list[pd.DataFrame]] = {}
    seconds: dict[str, list[float]] = {}
    for run in study.runs:
        if (run.folder / "metrics.jsonl").is_file():
            found.setdefault(run.arm, []).append(_changes(run))
            seconds.setdefault(run.arm, []).extend(training_seconds(run.folder / "perf.jsonl").iloc[-1:])
    rows = []
    for arm, runs in found.items():
        means = pd.concat(runs).groupby(level=0, sort=False).mean()
        changes = {str(name): (row["start"], row["end"]) for name, row in means.iterrows()}
        rows.append(Outcome(arm, len(runs), changes, fmean(seconds[arm]) if seconds[arm] else None))
    return rows


def _changes(run: StoredRun) -> pd.DataFrame:
    """`start` and `end` of a run's reward and of each score, by metric."""
    log = load_log(run, {"rollout": {REWARD}, "eval": {SCORES}})
    reward, rows = log.values("rollout", REWARD)["value"].dropna(), {}
    if len(reward):
        window = collapse_window(len(reward))
        rows[REWARD] = (
            reward.iloc[: max(1, min(BEGINNING, len(reward) - window))].mean(),
            reward.iloc[-window:].mean(),
        )
    scores = log.frame[log.frame["kind"] == "eval"]
    for metric, values in scores.groupby(scores["metric"].astype(str)):
        rows[str(metric)] = (values["value"].iloc[0], values["value"].iloc[-1])
    return pd.DataFrame.from_dict(rows, orient="index", columns=["start", "end"])
