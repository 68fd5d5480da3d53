"""Mirrors of a run's log for trackers. They read the log as any reader does, in a process of their own, so no tracker
can stop, slow or change a run."""

from __future__ import annotations

from gspo_cli.exporters import tensorboard_files, wandb_offline
from gspo_cli.exporters.contract import Exporter

EXPORTERS: dict[str, Exporter] = {
    "tensorboard": tensorboard_files,
    "wandb": wandb_offline,
}
"""To add one: a module with `open_sink`, and a line here."""
