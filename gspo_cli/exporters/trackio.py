"""trackio without a network: the study as a project in `<study>/trackio`, its runs side by side in one database.

The rows go through trackio's storage, as those of its own importers do: a run opened by `trackio.init` would end the
run before it, choose its own times, and ask the machine for statistics. Nothing is sent; no key is needed or kept.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.exporters.contract import LogRow, Origin

HUB_KEYS = ("TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID", "SPACE_REPO_NAME")
"""Variables by which the storage would send what it holds to the hub."""


class ProjectRun:
    """One run of the study's project, without any earlier rows."""

    def __init__(self, origin: Origin, folder: Path) -> None:
        """Errors: GspoError if trackio already keeps another folder in this process, or refuses the study's name."""
        place = folder.parent.resolve()
        os.environ["TRACKIO_DIR"] = str(place)  # read on import, as are those that follow
        for key in HUB_KEYS:
            os.environ.pop(key, None)
        from trackio import sqlite_storage

        if place != sqlite_storage.TRACKIO_DIR:
            raise GspoError(
                f"trackio cannot write to {place}",
                f"this process already keeps {sqlite_storage.TRACKIO_DIR}, and trackio has one folder in a process",
                "export each study with a command of its own",
            )
        self._storage, self._origin = sqlite_storage.SQLiteStorage, origin
        try:
            self._storage.validate_project_name(origin.study)
        except ValueError as error:
            raise GspoError(
                f"trackio refuses the name of the study {origin.study}", str(error), "rename the study's folder"
            ) from error
        self._storage.delete_run(origin.study, origin.run, origin.run_id)

    def write(self, rows: Sequence[LogRow]) -> None:
        """One row a row, in one transaction; an arm is a group of the dashboard."""
        times = [datetime.fromtimestamp(row.time, UTC).isoformat() for row in rows]
        config = self._origin.config | {"_Group": self._origin.arm}
        self._storage.bulk_log(
            self._origin.study, self._origin.run, [row.values for row in rows], [row.step for row in rows], times,
            config=config, run_id=self._origin.run_id,
        )  # fmt: skip

    def close(self) -> None:
        """Every write is on the disk already."""

    @staticmethod
    def how_to_read(folder: Path) -> str:
        """The command that shows the runs."""
        return f"TRACKIO_DIR={folder.resolve()} trackio show --project {folder.resolve().parent.name}"
