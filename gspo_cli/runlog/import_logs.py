"""Import another trainer's log as a run: TRL's `trainer_state.json`, verl's metrics in JSON lines, or what either (or
any other) wrote to TensorBoard or wandb.

Only metrics with the same meaning get our names; the others keep theirs behind the trainer's or the tracker's name. The
start model and the order of the data of such a run are unknown. With its trainer's configuration it can be judged,
under assumptions that the sentence names; without, it is plotted and described.
"""

import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.runlog.checksums import sha256_of, write_run_checksums
from gspo_cli.runlog.fs import remove_tree, require_regular, write_text
from gspo_cli.runlog.log import MAX_STEP, RunLog, config_text, now, short_hash
from gspo_cli.runlog.schema import is_known
from gspo_cli.runlog.strict_json import unique_keys
from gspo_cli.types import StepMetrics

TRL = {
    "reward": ("rollout", "reward/mean"),
    "completions/mean_length": ("rollout", "length/mean"),
    "completions/max_length": ("rollout", "length/max"),
    "completions/clipped_ratio": ("rollout", "length/truncated_frac"),
    "frac_reward_zero_std": ("rollout", "group/zero_std_frac"),
    "grad_norm": ("step", "grad/norm"),
}
"""TRL's name -> our line and name. Left out, because they are means of means or counted differently: loss, entropy, kl,
clip_ratio/* (over responses for sequence ratios), reward_std (over groups), num_tokens (includes prompts)."""
VERL = {
    "critic/score/mean": ("rollout", "reward/mean"),
    "response_length/mean": ("rollout", "length/mean"),
    "response_length/max": ("rollout", "length/max"),
    "actor/grad_norm": ("step", "grad/norm"),
}
"""The same for verl. Left out: critic/rewards/* (after the KL penalty), response_length/clip_ratio (responses as
long as the limit, finished or not), actor/pg_clipfrac and actor/entropy (means over micro-batches)."""
SECONDS = {"timing_s/gen": "rollout_s", "timing_s/old_log_prob": "old_policy_s", "timing_s/update_actor": "update_s"}
"""verl's times -> ours, for `area@seconds`."""

CALLBACK = ("clip/", "ratio/", "kl/old_", "entropy/mean", "weight/", "update/skipped_rows_frac")
"""What the callback of docs/other-trainers.md logs under our names, with our meaning."""

REWARD = "gspo: the reward"
"""Stands for the name that the caller gave."""
STEP_IS = {"trl": "optimizer step", "verl": "rollout batch"}
EVENTS, RUN = "*.tfevents.*", "run-*.wandb"
STEPS = ("train/global_step", "global_step", "rollout_batch")
"""Logged values that count steps, where wandb's own `_step` counts calls: those of the Hugging Face trainers and of
this tool's exports."""

T = TypeVar("T")
Values = dict[str, Any]
Rows = list[tuple[int, Values]]
"""(step, scalars by name), in the order of the file."""


def read_trainer_log(path: Path, reward: str | None = None) -> tuple[str, Rows]:
    """Read a log, and tell by its format or names whether TRL or verl wrote it.

    Returns `trl` with (optimizer step, logged values), `verl` with (rollout batch, logged values), or `tensorboard` or
    `wandb` with (step, logged values), in order. `reward` = the logged name of the mean reward of a batch, for other
    trainers' files of a tracker.
    Errors: GspoError if it is none of these.
    """
    found = find_tracker_file(path)
    if found is None and reward is not None:
        raise GspoError(
            f"--reward {reward}: {path} is no file of a tracker",
            "TRL's and verl's logs name the reward themselves",
            "leave out --reward",
        )
    try:
        if found is not None:
            scalars = _scalars_in_events if found[0] == "tensorboard" else _scalars_in_wandb
            return _trainer_of(path, found[0], read_files(*found, scalars), reward)
        require_regular(path)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            history = json.loads(text, object_pairs_hook=unique_keys)["log_history"]
            rows, kind = [(row["step"], row) for row in history if "reward" in row], "trl"
        else:
            lines = [json.loads(line, object_pairs_hook=unique_keys) for line in text.splitlines() if line.strip()]
            rows, kind = [(line["step"], dict(line["data"])) for line in lines], "verl"
        merged = _by_step(rows)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise GspoError(
            f"cannot import {path}",
            f"{type(error).__name__}: {error}",
            'give TRL\'s trainer_state.json, verl\'s file of lines {"step": ..., "data": {...}}, or files of '
            "TensorBoard or wandb",
        ) from error
    return kind, _training_steps(path, merged)


def _by_step(rows: Rows) -> dict[int, Values]:
    """The values of each step; later ones replace earlier ones.

    Errors: OverflowError for a number beyond floats, ValueError for a step or reward that is no number, or a name that
    no log can hold.
    """
    merged: dict[int, Values] = {}
    for step, values in rows:
        if not _is_number(step) or step != int(step) or not 0 <= step <= MAX_STEP:
            raise ValueError(f"step {step!r:.100} is no whole number from 0 to {MAX_STEP:,}")
        for name in ("reward", "critic/score/mean"):
            if name in values and not _is_number(values[name]):
                raise ValueError(f"step {step}: {name} {values[name]!r:.100} is no number")
        for name, value in values.items():
            name.encode()  # fails for half of a surrogate pair
            if _is_number(value):
                float(value)
        merged.setdefault(int(step), {}).update(values)
    return merged


def _training_steps(path: Path, merged: dict[int, Values]) -> Rows:
    steps = sorted(((step, values) for step, values in merged.items() if step > 0), key=lambda row: row[0])
    if not steps:
        raise GspoError(f"{path} holds no training step", "no row has a reward or data", "give a run's complete log")
    return steps


def _trainer_of(path: Path, tracker: str, rows: Rows, reward: str | None) -> tuple[str, Rows]:
    """The trainer that wrote to a tracker, by the name of its reward, and its steps.

    TRL's names lose their `train/`; rows of other loops (`eval/...`) keep theirs.
    """
    names = sorted({name for _, values in rows for name, value in values.items() if _is_number(value)})
    known = {reward: tracker} if reward is not None else {"train/reward": "trl", "critic/score/mean": "verl"}
    found = next((name for name in known if name in names), None)
    if found is None:
        raise GspoError(
            f"{path} names no reward of TRL or verl" if reward is None else f"no metric {reward!r} in {path}",
            f"it has {', '.join(names[:30]) or 'no number'}",
            "name the mean reward of a batch with --reward NAME",
        )
    trainer, prefix = known[found], "train/" if known[found] == "trl" else ""
    ours = {found: REWARD} if reward is not None else {}
    rows = [(step, {ours.get(k, k.removeprefix(prefix)): v for k, v in values.items()}) for step, values in rows]
    name = ours.get(found, found.removeprefix(prefix))
    merged = {step: values for step, values in _by_step(rows).items() if _is_number(values.get(name))}
    return trainer, _training_steps(path, merged)


def import_run(
    path: Path,
    study: Path,
    algorithm: str,
    arm: str,
    seed: int,
    reward: str | None = None,
    trainer_config: Values | None = None,
) -> Path:
    """Write another trainer's log as a run of a study, and return the run's folder.

    `trainer_config` = what the trainer was told, as it stands there; the table `trainer` of the run's `config.json`.
    Errors: GspoError if the log cannot be read or the folder exists. Whatever ends it early, no folder is left.
    """
    (trainer, steps), run = read_trainer_log(path, reward), study / f"{arm}-s{seed}"
    if run.exists():
        raise GspoError(f"{run} exists", "an import never overwrites a run", "choose another --seed, --arm or --name")
    config = {
        "name": study.name, "seed": seed, "algo": {"name": algorithm, "replay": "none"},
        "train": {"steps": steps[-1][0]},
    } | ({"trainer": trainer_config} if trainer_config else {})  # fmt: skip
    about = {
        "schema": 1, "run_id": uuid.uuid4().hex, "created": now(), "gspo": __version__, "study": study.name, "arm": arm,
        "seed": seed, "imported": {"from": trainer} | _origin(path),
        "step_is": STEP_IS.get(trainer, "step of the tracker"),
    }  # fmt: skip
    if (study / "study.json").exists():
        why = "beside an imported run, reports describe and test nothing"
        raise GspoError(f"{study} is a study that was trained here", why, "choose another --name")
    run.mkdir(parents=True)
    try:
        write_text(run / "config.json", json.dumps(config, indent=1))
        write_text(run / "run.json", json.dumps(about, indent=1))
        log = RunLog(run, short_hash(config_text(config)))
        log.event("start", imported=trainer)
        for step, values in steps:
            seconds = {ours: values[name] for name, ours in SECONDS.items() if _is_number(values.get(name))}
            times = {name: float(value) for name, value in seconds.items() if math.isfinite(value)}
            for kind, metrics in translate_metrics(trainer, values).items():
                log.line(kind, step, StepMetrics(dict(metrics)), perf=times if kind == "rollout" else None)
            log.flush()
        log.event("end", status="completed")
        write_run_checksums(run)
    except BaseException:
        remove_tree(run)
        raise
    return run


def _origin(path: Path) -> dict[str, Any]:
    """The imported files with their hashes."""
    found = find_tracker_file(path)
    files = [path] if found is None else found[1]
    if len(files) == 1:
        return {"file": files[0].name, "sha256": sha256_of(files[0])}
    return {"file": path.name, "files": {str(f.relative_to(path)): sha256_of(f) for f in files}}


def translate_metrics(trainer: str, values: Values) -> dict[str, dict[str, float]]:
    """Our log lines with the metrics of one logged row; a metric without an equivalent keeps its name."""
    names = {"trl": TRL, "verl": VERL}.get(trainer, {REWARD: ("rollout", "reward/mean")})
    lines: dict[str, dict[str, float]] = {"rollout": {}, "step": {}}
    for name, value in values.items():
        if _is_number(value) and name not in ("step", "global_step", "epoch", *SECONDS) and not name.startswith("_"):
            same = ("step", name) if name.startswith(CALLBACK) and is_known(name) else ("rollout", f"{trainer}/{name}")
            line, ours = names.get(name, same)
            lines[line][ours] = float(value)
    return {line: metrics for line, metrics in lines.items() if metrics}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
            f"{path} is not the folder of one run",
            f"{found} of TensorBoard's event files ({EVENTS}) or wandb's {RUN}",
            "name the folder or file of one run",
        )
    return ("tensorboard", events) if events else ("wandb", runs)


def read_files(kind: str, files: list[Path], read: Callable[[Path], Iterable[T]]) -> list[T]:
    """What `read` finds in the files of one run.

    Errors: GspoError for a file that is damaged, cut off or foreign, and without the tracker's library.
    """
    found: list[T] = []
    for file in files:
        try:
            found += read(file)
        except ImportError as error:
            raise GspoError(
                f"cannot read {file}",
                f"{kind} is not installed, and its own library reads its files",
                f"pip install 'gspo[{kind}]'",
            ) from error
        except Exception as error:  # their readers raise plain exceptions, protobuf's and their own
            raise GspoError(
                f"cannot import {file}",
                f"it is damaged, cut off or no file of {kind}: {error}",
                "copy it again from where the run wrote it, after the run has ended",
            ) from error
    return found


def events_of(file: Path) -> Iterator[Any]:
    """The events of one of TensorBoard's files."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    if file.stat().st_size == 0:
        raise ValueError("it is empty")
    reader = PyRecordReader_New(str(file))
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return
        yield Event.FromString(reader.record())


def records_of(file: Path) -> Iterator[Any]:
    """The records of one of wandb's files."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read on import; it would report over the network
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    try:
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            yield Record.FromString(data)
    finally:
        if store._fp is not None:
            store.close()


def _scalars_in_events(file: Path) -> Iterator[tuple[int, Values]]:
    """A row for every scalar."""
    from tensorboard.util.tensor_util import make_ndarray

    for event in events_of(file):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                yield event.step, {value.tag: float(value.simple_value)}
            elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
                yield event.step, {value.tag: float(make_ndarray(value.tensor))}


def _scalars_in_wandb(file: Path) -> Iterator[tuple[int, Values]]:
    """A row for every call of `wandb.log`."""
    for record in records_of(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): _number(item.value_json) for item in items}
            counted = next((row[name] for name in STEPS if isinstance(row.get(name), float)), None)
            own = row.get("_step", record.history.step.num)
            yield int(own if counted is None else counted), row


def _number(text: str) -> Any:
    """A value of wandb's; what is not finite stands there as text."""
    value = json.loads(text)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole or value in ("NaN", "Infinity", "-Infinity") else value
