"""Weights & Biases without a network: an offline run that `wandb sync` may send later.

Nothing of the machine goes with it: no environment, no source, no host, no user, no statistics. No key is needed or
kept.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from gspo_cli.exporters.contract import LogRow, Origin


class OfflineRun:
    """The offline run, with our id, so that sending it twice makes no second one."""

    def __init__(self, origin: Origin, folder: Path) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read on import; it would report crashes over the network
        import wandb

        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False, disable_job_creation=True,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        )  # fmt: skip
        self._run = wandb.init(
            mode="offline", dir=str(folder), project=origin.study, group=origin.arm, name=origin.run, id=origin.run_id,
            config=origin.config, settings=settings, reinit="create_new",
        )  # fmt: skip
        self._known: set[str] = set()
        """Names, or their beginnings, that have an x axis."""

    def write(self, rows: Sequence[LogRow]) -> None:
        """One row of the history a row."""
        for row in rows:
            # patterns that overlap (`*`, `updates/*`) are matched in no fixed order
            families = {f"{family}/*" if rest else family for family, _, rest in (n.partition("/") for n in row.values)}
            for family in sorted(families - self._known):
                self._run.define_metric(family, step_metric=row.axis)
            self._known |= families
            self._run.log(row.values | {row.axis: row.step, "_timestamp": row.time})

    def close(self) -> None:
        """Ends the run and wandb's process for it."""
        self._run.finish()

    @staticmethod
    def how_to_read(folder: Path) -> str:
        """The command that sends the runs."""
        return f"wandb sync {folder}/*/wandb/offline-run-*"
