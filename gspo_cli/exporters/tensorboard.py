"""TensorBoard's event files: a tag a metric, its step the rollout batch (of `updates/...`: the optimizer step).

Not covered: event files hold float32, seven digits; the log holds the values themselves.
"""

from collections.abc import Sequence
from pathlib import Path

from gspo_cli.exporters.contract import LogRow, Origin


class EventFile:
    """The event file of a run."""

    def __init__(self, _: Origin, folder: Path) -> None:  # TensorBoard knows a run by its folder
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def write(self, rows: Sequence[LogRow]) -> None:
        """One event a row."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._writer.add_event(Event(wall_time=row.time, step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Writes what is queued and ends the writer's thread."""
        self._writer.close()

    @staticmethod
    def how_to_read(folder: Path) -> str:
        """The command that shows the runs."""
        return f"tensorboard --logdir {folder}"
