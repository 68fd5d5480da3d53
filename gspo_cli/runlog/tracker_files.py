"""Scalars in the files of trackers: TensorBoard's event files, and wandb's `run-*.wandb`, each by its own library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

EVENTS, RUN = "*.tfevents.*", "run-*.wandb"
STEPS = ("train/global_step", "global_step", "rollout_batch")
"""Logged values that count steps, where wandb's own `_step` counts calls: those of the Hugging Face trainers and of
this tool's exports."""
Values = dict[str, Any]
Rows = list[tuple[int, Values]]
"""(step, scalars by name), in the order of the file."""


class Unreadable(Exception):
    """A file that is not whole."""


def find_tracker_file(path: Path) -> tuple[str, list[Path]] | None:
    """(`tensorboard` or `wandb`, its files) for such a file or a folder with them; None for anything else.

    Errors: GspoError for a folder that holds several runs, or none.
    """
    if path.is_file():
        kind = "wandb" if path.suffix == ".wandb" else "tensorboard" if ".tfevents." in path.name else None
        return (kind, [path]) if kind else None
    if not path.is_dir():
        return None
    events, runs = sorted(path.rglob(EVENTS)), sorted(path.rglob(RUN))
    folders = sorted({file.parent for file in events} | set(runs))
    if len(folders) != 1:
        found = f"it holds {', '.join(str(f.relative_to(path)) for f in folders[:4])}" if folders else "it holds none"
        raise GspoError(
            f"{path} is not the folder of one run", f"{found} of TensorBoard's event files ({EVENTS}) or wandb's {RUN}",
            "name the folder or file of one run",
        )  # fmt: skip
    return ("tensorboard", events) if events else ("wandb", runs)


def read_tracker(kind: str, files: list[Path]) -> Rows:
    """The scalars of one run.

    Errors: GspoError for a file that is damaged, cut off or foreign, and without the tracker's library.
    """
    read = _read_events if kind == "tensorboard" else _read_wandb
    rows: Rows = []
    for file in files:
        try:
            rows += read(file)
        except ImportError as error:
            raise GspoError(
                f"cannot read {file}", f"{kind} is not installed, and its own library reads its files",
                f"pip install 'gspo[{kind}]'",
            ) from error  # fmt: skip
        except (Unreadable, OSError, ValueError, AssertionError, ArithmeticError, LookupError) as error:
            raise GspoError(
                f"cannot import {file}", f"it is damaged, cut off or no file of {kind}: {error}",
                "copy it again from where the run wrote it, after the run has ended",
            ) from error  # fmt: skip
    return rows


def _read_events(file: Path) -> Iterator[tuple[int, Values]]:
    """A row for every scalar."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    from tensorboard.util.tensor_util import make_ndarray

    if file.stat().st_size == 0:
        raise Unreadable("it is empty")
    reader = PyRecordReader_New(str(file))
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return
        except DataLossError as error:
            raise Unreadable(error.message) from error
        event = _parsed(Event, reader.record())
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield event.step, {value.tag: float(value.simple_value)}
            elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
                yield event.step, {value.tag: float(make_ndarray(value.tensor))}


def _read_wandb(file: Path) -> Iterator[tuple[int, Values]]:
    """A row for every call of `wandb.log`."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read on import; it would report over the network
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    try:
        try:
            store.open_for_scan(str(file))
        except OSError:
            raise
        except Exception as error:  # its own reader raises plain exceptions
            raise Unreadable(str(error)) from error
        while (data := store.scan_data()) is not None:
            record = _parsed(Record, data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): _number(item.value_json) for item in items}
                counted = next((row[name] for name in STEPS if isinstance(row.get(name), float)), None)
                own = row.get("_step", record.history.step.num)
                yield int(own if counted is None else counted), row
    finally:
        if store._fp is not None:
            store.close()


def _parsed(message: Any, data: bytes) -> Any:
    """Errors: Unreadable, whatever the protobuf library raises."""
    try:
        return message.FromString(data)
    except Exception as error:
        raise Unreadable(str(error)) from error


def _number(text: str) -> Any:
    """A value of wandb's; what is not finite stands there as text."""
    value = json.loads(text)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole or value in ("NaN", "Infinity", "-Infinity") else value
