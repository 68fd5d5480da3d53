"""The runs of a new study: on a cluster, several at once, or one after the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gspo_cli.cli import console
from gspo_cli.cli.endings import finished, saying_where
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.launch.ray_cluster import RayCluster
    from gspo_cli.ranks import Ranks
    from gspo_cli.training.plans import Plan
    from gspo_cli.training.study import Run


def train_runs(
    runs: list[Run], plan: Plan, start: Path, study: Path, jobs: int, cluster: RayCluster | None, as_json: bool,
    ranks: Ranks
) -> int:  # fmt: skip
    """Trains the runs where they belong, one or several at once; how many a training guard stopped."""
    from gspo_cli.cli.on_cluster import train_on
    from gspo_cli.cli.study_options import train_at_once

    if cluster is not None:
        return train_on(cluster, runs, plan, start, study, as_json)
    if jobs > 1:
        return train_at_once(runs, jobs, plan, start, study, as_json)
    return train_in_turn(runs, plan, start, study, as_json, ranks)


def train_in_turn(runs: list[Run], plan: Plan, start: Path, study: Path, as_json: bool, ranks: Ranks) -> int:
    """Trains the runs one after the other; how many of several a training guard stopped: a result, which counts."""
    from gspo_cli.cli.live import TrainView
    from gspo_cli.training.run import View, execute

    stopped = 0
    with TrainView(plan.recipe.train.steps, len(runs)) as view:
        for run in runs:
            view.start_run(run.name)
            try:
                with saying_where(study / run.name):
                    execute(run, start, study, plan, sys.argv, View(view.step, view.preflight, console.note), ranks)
            except GspoError as error:
                if error.code != ExitCode.GUARD or len(runs) == 1:
                    raise
                console.note(str(error))
                stopped += 1
                continue
            finished(view, study / run.name, run.arm, run.recipe.seed, as_json and ranks.first)
    return stopped
