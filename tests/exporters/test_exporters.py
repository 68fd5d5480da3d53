"""Mirrors of logs, read back with the trackers' own readers."""

import json
import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, check_refused, ok, refusal, strict_lines, tree
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.exporters import mirror
from gspo_cli.exporters.mirror import Mirror
from gspo_cli.launch.report_to import reporting
from gspo_cli.runlog.log import RunLog, short_hash
from gspo_cli.types import StepMetrics

CANARY = "0123456789abcdefCANARY0123456789abcdef01"
"""As long as a key of wandb's."""
BATCHES, UPDATES = 3, 2


def write_batch(log: RunLog, step: int, reward: float) -> None:
    """The lines of a rollout batch, as training writes them."""
    log.line("rollout", step, StepMetrics({"reward/mean": reward}), perf={"rollout_s": 0.5})
    for index in range(UPDATES):
        clip = None if index == 0 else 0.25
        log.line("update", step, StepMetrics({"clip/token_frac": clip, "loss": step + index / 4}), index)
    log.line("step", step, StepMetrics({"clip/token_frac": 0.125, "grad/norm": math.inf if step == 2 else 1.0}))
    log.flush()


def run_folder(study: Path, name: str = "gspo-s0") -> tuple[Path, RunLog]:
    """A run that has just begun."""
    run = study / name
    run.mkdir(parents=True)
    arm, _, seed = name.rpartition("-s")
    about = {"run_id": f"id{seed}{arm}", "arm": arm, "seed": int(seed), "created": "2026-01-01T00:00:00Z"}
    (run / "run.json").write_text(json.dumps(about))
    config = {"seed": int(seed), "algo": {"name": arm}, "train": {"steps": BATCHES}}
    (run / "config.json").write_text(json.dumps(config))
    return run, RunLog(run, "0" * 32)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of one run of three batches; the reward of batch k is k / 8."""
    _, log = run_folder(tmp_path / "demo")
    for step in range(1, BATCHES + 1):
        write_batch(log, step, step / 8)
    return tmp_path / "demo"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of every tag, as TensorBoard shows them."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_shows_every_value_at_its_step(study: Path) -> None:
    before = tree(study)
    for _ in range(2):  # exporting again makes no second point
        (done,) = mirror.export(study, "tensorboard")
    assert done.num_rows == BATCHES * (2 + UPDATES)
    found = scalars(study / "tensorboard" / "gspo-s0")
    assert found == {
        "reward/mean": [(1, 0.125), (2, 0.25), (3, 0.375)],
        "perf/rollout_s": [(1, 0.5), (2, 0.5), (3, 0.5)],
        "updates/clip/token_frac": [(2, 0.25), (4, 0.25), (6, 0.25)],
        "updates/loss": [(1, 1.0), (2, 1.25), (3, 2.0), (4, 2.25), (5, 3.0), (6, 3.25)],
        "clip/token_frac": [(1, 0.125), (2, 0.125), (3, 0.125)],
        "grad/norm": [(1, 1.0), (2, math.inf), (3, 1.0)],
    }
    after = tree(study)
    assert {name: after[name] for name in before} == before, "the run itself is not touched"


def cut(run: Path, num_lines: int) -> list[bytes]:
    """What a resume does: the log goes back to a checkpoint; the clock's keeps all. The lines that stay."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:num_lines]
    (run / "metrics.jsonl").write_bytes(b"".join(lines))
    return lines


@pytest.mark.parametrize("again", [0.25, 0.5], ids=["the same", "another way"])
def test_a_resume_repeats_no_point_and_keeps_none_that_it_dropped(tmp_path: Path, again: float) -> None:
    run, log = run_folder(tmp_path / "demo")
    write_batch(log, 1, 0.125)
    write_batch(log, 2, 0.25)
    followed = Mirror(run, "tensorboard")
    followed.catch_up()
    lines = cut(run, 4)
    followed.catch_up()  # shorter than what was read: wait
    log = RunLog(run, "0" * 32, attempt=2)
    log.resume(len(lines), sum(map(len, lines)), short_hash(lines[-1].decode().rstrip("\n")), b"")
    write_batch(log, 2, again)
    followed.catch_up()
    write_batch(log, 3, 0.375)
    followed.catch_up()
    followed.close()
    assert followed.num_rows == 12
    assert scalars(followed.folder)["reward/mean"] == [(1, 0.125), (2, again), (3, 0.375)]


def test_following_sees_what_comes_and_new_runs(tmp_path: Path) -> None:
    study = tmp_path / "demo"
    _, log = run_folder(study)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            write_batch(log, 1, 0.125)
        elif len(pauses) == 2:
            write_batch(run_folder(study, "grpo-s1")[1], 1, 0.5)
        else:
            with (study / "gspo-s0" / "metrics.jsonl").open("a") as file:
                file.write('{"seq":')  # a line that is being written is left for later
            if len(pauses) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mirror.follow(study, "tensorboard", pause)
    assert scalars(study / "tensorboard" / "gspo-s0")["reward/mean"] == [(1, 0.125)]
    assert scalars(study / "tensorboard" / "grpo-s1")["reward/mean"] == [(1, 0.5)]


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [(lambda run: (run / "metrics.jsonl").write_text('{"seq":0,"seq":1}\n'), ExitCode.STORAGE, "duplicate key"),
     (lambda run: (run.parent / "tensorboard").write_text("mine"), ExitCode.STORAGE, "tensorboard"),
     (lambda run: (run / "metrics.jsonl").unlink(), ExitCode.USER_ERROR, "no run in it has a log")],
)  # fmt: skip
def test_what_cannot_be_exported(study: Path, spoil: Callable[[Path], object], code: ExitCode, says: str) -> None:
    spoil(study / "gspo-s0")
    before = tree(study)
    with pytest.raises(GspoError, match=says) as caught:
        mirror.export(study, "tensorboard")
    assert caught.value.code is code
    assert {name: data for name, data in tree(study).items() if name in before} == before


@pytest.mark.slow
def test_wandb_holds_every_value_and_nothing_of_the_machine(gspo: Gspo, study: Path, tmp_path: Path) -> None:
    for _ in range(2):
        keys = {"WANDB_API_KEY": CANARY, "HF_TOKEN": CANARY}
        done = ok(gspo("runs", "export", study, "--to", "wandb", HOME=str(tmp_path), **keys))
    (file,) = (study / "wandb").rglob("*.wandb")
    rows, axes = history(file)
    assert [(row["_step"], row["rollout_batch"], row["reward/mean"]) for row in rows if "reward/mean" in row] == [
        (0, 1, 0.125), (4, 2, 0.25), (8, 3, 0.375),
    ]  # fmt: skip
    assert [(row["update"], row["updates/loss"]) for row in rows if "update" in row] == [
        (1, 1.0), (2, 1.25), (3, 2.0), (4, 2.25), (5, 3.0), (6, 3.25),
    ]  # fmt: skip
    assert len(rows) == BATCHES * (2 + UPDATES)
    assert axes["updates/loss"] == "update" and axes["reward/mean"] == axes["clip/token_frac"] == "rollout_batch"
    written = tree(study)
    names = {CANARY, os.uname().nodename} - {"localhost", "vm"}
    assert [name for name, data in written.items() if any(text.encode() in data for text in names)] == []
    assert CANARY not in done.out + done.err
    assert not [name for name in written if name.endswith(("wandb-metadata.json", ".patch"))]


@pytest.mark.slow
def test_trackio_holds_every_value_of_all_runs_in_one_project(gspo: Gspo, study: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed (pip install 'gspo[trackio]')")
    _, log = run_folder(study, "grpo-s1")
    write_batch(log, 1, 0.5)
    for _ in range(2):  # the second time, without a second point
        keys = {"HF_TOKEN": CANARY, "TRACKIO_SPACE_ID": "me/space"}
        done = ok(gspo("runs", "export", study, "--to", "trackio", "--json", **keys))
    assert json.loads(done.out)["read"] == f"TRACKIO_DIR={study / 'trackio'} trackio show --project demo"
    with closing(sqlite3.connect(study / "trackio" / "demo.db")) as database:
        found = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = database.execute("SELECT run_name, config FROM configs").fetchall()
    rows = [(run, step, json.loads(values)) for run, step, values in found]
    rewards = [(run, step, values["reward/mean"]) for run, step, values in rows if "reward/mean" in values]
    assert sorted(rewards) == [("grpo-s1", 1, 0.5), ("gspo-s0", 1, 0.125), ("gspo-s0", 2, 0.25), ("gspo-s0", 3, 0.375)]
    losses = {(run, step): values["updates/loss"] for run, step, values in rows if "updates/loss" in values}
    assert losses["gspo-s0", 4] == 2.25 and len(rows) == (BATCHES + 1) * (2 + UPDATES)
    assert {run: json.loads(config)["_Group"] for run, config in configs} == {"gspo-s0": "gspo", "grpo-s1": "grpo"}
    assert not [name for name, data in tree(study).items() if CANARY.encode() in data]


def history(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of an offline run, and each metric's x axis, by wandb's own reader."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store, rows, axes = DataStore(), [], {}
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif record.WhichOneof("record_type") == "metric" and record.metric.name:
            axes[record.metric.name] = record.metric.step_metric
    store.close()
    return rows, axes


def test_a_study_is_followed_until_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    study = tmp_path / "demo"  # comes into being after its follower
    with reporting(study, ["tensorboard"], said.append):
        _, log = run_folder(study)
        write_batch(log, 1, 0.125)
        write_batch(log, 2, 0.25)
    assert scalars(study / "tensorboard" / "gspo-s0")["reward/mean"] == [(1, 0.125), (2, 0.25)]
    assert said == [f"tensorboard: tensorboard --logdir {study / 'tensorboard'}"]


@pytest.mark.parametrize("line", ["no log\n", "{}\n", '{"seq":0,"kind":"step","metrics":3,"nonfinite":{}}\n'])
def test_a_tracker_that_fails_is_named_and_nothing_else_happens(tmp_path: Path, line: str) -> None:
    said: list[str] = []
    study = tmp_path / "demo"
    with reporting(study, ["tensorboard"], said.append):
        run, _ = run_folder(study)
        (run / "metrics.jsonl").write_text(line)
        (run / "perf.jsonl").write_text('{"time": 3}\n')
    assert len(said) == 1 and said[0].startswith("warning: tensorboard was not kept up to date: ")
    assert "cannot be exported" in said[0] and f"gspo runs export {study} --to tensorboard" in said[0]


def test_unknown_trackers_and_missing_libraries_are_refused_first(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirror.check_all(" tensorboard,wandb,tensorboard ") == ["tensorboard", "wandb"]
    assert mirror.check_all(None) == []
    train = ("train", smoke, "--out", tmp_path, "--report-to", "tensorboard,comet")
    check_refused(gspo_here(*train), "no exporter 'comet'")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "wandb is not installed" in refusal(mirror.check_all, "wandb")


@pytest.mark.slow
def test_training_with_a_tracker_leaves_the_same_log(gspo_forked: Gspo, smoke: Path, tmp_path: Path) -> None:
    small = ["--steps", "1", "--set", "eval.bench=[]", "--out", tmp_path]
    for name, more in (("with", ["--report-to", "tensorboard"]), ("without", [])):
        ok(gspo_forked("train", smoke, "--name", name, *small, *more))
    logs = [strict_lines(tmp_path / name / "gspo-s0" / "metrics.jsonl") for name in ("with", "without")]
    values = [[line["metrics"] for line in log if "metrics" in line] for log in logs]
    assert values[0] and values[0] == values[1]
    assert "reward/mean" in scalars(tmp_path / "with" / "tensorboard" / "gspo-s0")
