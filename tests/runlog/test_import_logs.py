"""Logs of TRL and verl as runs: what gets our names, what keeps its own, and that nothing is judged by them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, check_refused, ok, refusal, strict_lines

from gspo_cli.runlog.import_logs import TRL, VERL, find_tracker_file, read_trainer_log, translate_metrics
from gspo_cli.runlog.schema import METRICS
from gspo_cli.runlog.trainer_config import recorded_config


def trl(path: Path, level: float) -> Path:
    """A `trainer_state.json` as the trainer saves it: steps, an evaluation and a closing summary."""
    history: list[dict[str, Any]] = [
        {"step": step, "epoch": 0.1, "loss": 0.01, "reward": level + 0.01 * step, "reward_std": 0.3, "grad_norm": 0.5,
         "learning_rate": 1e-6, "completions/mean_length": 100.0 + step, "completions/clipped_ratio": 0.125,
         "clip_ratio/region_mean": 0.02, "frac_reward_zero_std": 0.25, "num_tokens": 5000.0 * step}
        for step in (1, 2, 3, 4)
    ]  # fmt: skip
    history += [{"step": 4, "eval_loss": 0.5}, {"step": 4, "train_runtime": 9.0, "train_loss": 0.1}]
    path.write_text(json.dumps({"global_step": 4, "log_history": history}))
    return path


def verl(path: Path, level: float) -> Path:
    """verl's file logger: a line a step, the first a validation before training."""
    rows: list[dict[str, Any]] = [{"step": 0, "data": {"val-core/gsm8k/acc/mean@1": 0.1}}]
    rows += [
        {"step": step, "data": {
            "critic/score/mean": level, "critic/rewards/mean": level - 0.1, "response_length/mean": 80.0,
            "actor/pg_clipfrac": 0.01, "actor/grad_norm": float("nan") if step == 2 else 1.0, "timing_s/gen": 2.0,
            "timing_s/update_actor": 3.0, "training/global_step": step}}
        for step in (1, 2, 3)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_names_of_the_tables_exist_here() -> None:
    for table in (TRL, VERL):
        for line, name in table.values():
            assert line in METRICS[name].lines.split(", "), name


def test_only_what_means_the_same_gets_our_name() -> None:
    found = translate_metrics(
        "trl", {"reward": 0.5, "loss": 1.0, "clip_ratio/region_mean": 0.2, "step": 3, "note": "x"}
    )
    assert found == {"rollout": {"reward/mean": 0.5, "trl/loss": 1.0, "trl/clip_ratio/region_mean": 0.2}}
    own = translate_metrics("trl", {"reward": 0.5, "clip/token_frac": 0.1, "clip/fraction": 0.2, "weight/norm": 3.0})
    assert own["step"] == {"clip/token_frac": 0.1}  # of the callback; the others are the trainer's
    assert own["rollout"] == {"reward/mean": 0.5, "trl/clip/fraction": 0.2, "trl/weight/norm": 3.0}
    found = translate_metrics("verl", {"critic/score/mean": 0.5, "critic/rewards/mean": 0.4, "actor/grad_norm": 2.0})
    assert found == {"rollout": {"reward/mean": 0.5, "verl/critic/rewards/mean": 0.4}, "step": {"grad/norm": 2.0}}


def test_an_import_that_fails_leaves_nothing(tmp_path: Path, gspo_here: Gspo, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gspo_cli.runlog.log.RunLog.flush", full)
    assert gspo_here("runs", "import", str(trl(tmp_path / "state.json", 0.4)), *INTO, tmp_path / "out").code != 0
    assert not list(tmp_path.glob("out/*/*"))


@pytest.mark.slow
def test_imported_runs_are_drawn_described_and_verified(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in (0, 1):
        for algo, log in (("grpo", trl(tmp_path / "state.json", 0.4)), ("gspo", verl(tmp_path / "v.jsonl", 0.5))):
            put = ("--algo", algo, "--seed", str(seed), "--name", "theirs", "--out", str(tmp_path))
            ok(gspo_here("runs", "import", str(log), *put))
    study = tmp_path / "theirs"
    lines = strict_lines(study / "grpo-s1" / "metrics.jsonl")
    assert [(r["step"], r["kind"]) for r in lines[:3]] == [(1, "rollout"), (1, "step"), (2, "rollout")]
    assert lines[0]["metrics"]["reward/mean"] == pytest.approx(0.41) and lines[1]["metrics"] == {"grad/norm": 0.5}
    assert "eval_loss" not in str(lines) and lines[-1]["step"] == 4
    own = strict_lines(study / "gspo-s0" / "metrics.jsonl")
    assert own[3]["nonfinite"] == {"grad/norm": "nan"}
    times = strict_lines(study / "gspo-s0" / "perf.jsonl")
    assert (times[0]["rollout_s"], times[0]["update_s"]) == (2.0, 3.0)
    assert gspo_here("runs", "verify", str(study)).code == 0
    drawn = ok(gspo_here("report", "plots", str(study)))
    assert "Left out of the panel of tokens: grpo (seeds 0, 1); gspo (seeds 0, 1)." in drawn.err
    notes = json.loads((study / "figures" / "reward.json").read_text())["notes"]
    assert "Imported: what is called a rollout batch is one optimizer step." in notes
    found = json.loads(gspo_here("report", "compare", str(study), "--json").out)
    assert found["verdict"] == "descriptive" and "p_t" not in found and not (study / "compare.json").exists()
    assert {arm["arm"]: round(arm["values"]["0"], 3) for arm in found["arms"]} == {"grpo": 0.425, "gspo": 0.5}
    text = gspo_here("report", "compare", str(study)).out
    assert "no arm is ranked" in text and not any(word in text for word in ("better", "significant", "outperforms"))
    assert gspo_here("report", "compare", str(study), "--require", "better").code == 3
    assert gspo_here("report", "html", str(study)).code == 0
    check_refused(gspo_here("runs", "import", str(tmp_path / "v.jsonl"), *put), "exists")


def test_nothing_is_imported_into_a_study_that_was_trained_here(tmp_path: Path, gspo_here: Gspo) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "study.json").write_text("{}")
    done = gspo_here("runs", "import", str(trl(tmp_path / "state.json", 0.4)), *INTO, tmp_path)
    check_refused(done, "a study that was trained here", "another --name")


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"log_history": []}', '{"step": 1}', "[1]", '{"log_history": [{"reward": 1}]}',
     *(f'{{"log_history": [{{"step": {step}, "reward": {reward}}}]}}'
       for step, reward in (("2.5", "1"), ("-7", "1"), ("true", "1"), ("1", "true"), ("1", '"good"'))),
     '{"log_history": [{"step": 1, "reward": 1, "reward": 2}]}',
     r'{"log_history": [{"step": 1, "reward": 1, "\ud800": 2}]}'],
)  # fmt: skip
def test_what_is_no_log(tmp_path: Path, gspo_here: Gspo, text: str) -> None:
    for name in ("x.json", "x.jsonl"):
        (tmp_path / name).write_text(text)
        check_refused(gspo_here("runs", "import", str(tmp_path / name), *INTO, tmp_path))
        assert not (tmp_path / "t").exists()


STEPS = 4
INTO = ("--algo", "grpo", "--name", "t", "--out")


def events(folder: Path, names: dict[str, float], steps: int = STEPS) -> Path:
    """A folder with one event file: each name's value plus a hundredth of the step."""
    pytest.importorskip("tensorboard", reason="it writes the files")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(1, steps + 1):
        values = [Summary.Value(tag=name, simple_value=value + step / 100) for name, value in names.items()]
        writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=values)))
    writer.close()
    return folder


def wandb_run(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run's folder as wandb leaves it, by its own store."""
    pytest.importorskip("wandb", reason="it writes the file")
    from wandb.proto.wandb_internal_pb2 import Record

    records = []
    for number, row in enumerate(rows):
        records.append(Record())
        for name, value in {"_step": number, "_runtime": 1.5, **row}.items():
            records[-1].history.item.add(nested_key=[name], value_json=json.dumps(value))
    folder.mkdir(parents=True)
    stored(folder / "run-abc.wandb", records)
    return folder


def stored(path: Path, records: list[Any]) -> None:
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_write(str(path))
    for record in records:
        store.write(record)
    store.close()


def imported(gspo_here: Gspo, tmp_path: Path, log: Path, *more: str) -> list[dict[str, Any]]:
    ok(gspo_here("runs", "import", str(log), *INTO, tmp_path, *more))
    return strict_lines(tmp_path / "t" / "grpo-s0" / "metrics.jsonl")


def refused(path: Path, reward: str | None = None) -> str:
    return refusal(read_trainer_log, path, reward)


def test_what_trl_writes_to_tensorboard(tmp_path: Path, gspo_here: Gspo) -> None:
    names = {"train/reward": 0.5, "train/grad_norm": 1.0, "train/kl": 0.25, "eval/loss": 2.0}
    lines = imported(gspo_here, tmp_path, events(tmp_path / "runs" / "one", names))
    assert [(line["step"], line["kind"]) for line in lines[:3]] == [(1, "rollout"), (1, "step"), (2, "rollout")]
    assert lines[0]["metrics"] == pytest.approx({"reward/mean": 0.51, "trl/kl": 0.26, "trl/eval/loss": 2.01})
    assert lines[1]["metrics"] == pytest.approx({"grad/norm": 1.01}) and lines[-1]["step"] == STEPS
    assert gspo_here("runs", "verify", str(tmp_path / "t")).code == 0


@pytest.mark.slow
def test_what_verl_and_trl_write_to_wandb(tmp_path: Path, gspo_here: Gspo) -> None:
    verl = [{"_step": s, "critic/score/mean": 0.1 * s, "actor/grad_norm": "NaN", "timing_s/gen": 2} for s in (1, 2, 3)]
    lines = imported(gspo_here, tmp_path, wandb_run(tmp_path / "w" / "run-1", verl))
    assert lines[0]["metrics"] == pytest.approx({"reward/mean": 0.1}) and lines[1]["nonfinite"] == {"grad/norm": "nan"}
    assert strict_lines(tmp_path / "t" / "grpo-s0" / "perf.jsonl")[0]["rollout_s"] == 2.0
    trl = [{"train/reward": 0.5, "train/global_step": 10}, {"eval/reward": 0.1, "train/global_step": 10},
           {"train/reward": 0.6, "train/global_step": 20}, {"train_runtime": 9.0}]  # fmt: skip
    kind, steps = read_trainer_log(wandb_run(tmp_path / "w" / "run-2", trl))
    assert kind == "trl" and [(step, values["reward"]) for step, values in steps] == [(10, 0.5), (20, 0.6)]


def test_another_trainer_names_its_reward(tmp_path: Path, gspo_here: Gspo) -> None:
    folder = events(tmp_path / "ppo", {"env/return": 3.0, "loss": 1.0})
    assert "names no reward of TRL or verl" in refused(folder) and "env/return, loss" in refused(folder)
    assert "no metric 'x'" in refused(folder, "x")
    lines = imported(gspo_here, tmp_path, folder, "--reward", "env/return")
    assert lines[0]["metrics"] == pytest.approx({"reward/mean": 3.01, "tensorboard/loss": 1.01})
    (tmp_path / "v.jsonl").write_text('{"step": 1, "data": {"critic/score/mean": 0.5}}\n')
    assert "is no file of a tracker" in refused(tmp_path / "v.jsonl", "critic/score/mean")


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_file_cut_off_or_changed_is_refused(tmp_path: Path, gspo_here: Gspo, kind: str) -> None:
    if kind == "tensorboard":
        folder = events(tmp_path / "log", {"train/reward": 0.5})
    else:
        folder = wandb_run(tmp_path / "log", [{"train/reward": 0.5, "train/global_step": s} for s in (1, 2, 3)])
    found = find_tracker_file(folder)
    assert found is not None
    (file,) = found[1]
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for bad in (whole[:-3], bytes(flipped), b"", b"not a log" * 9, bytes(40)):
        file.write_bytes(bad)
        assert "cannot import" in refused(folder), bad[:9]
    check_refused(gspo_here("runs", "import", str(folder), *INTO, tmp_path))
    assert not (tmp_path / "t").exists()
    file.write_bytes(whole)
    assert read_trainer_log(folder)[0] == "trl"


def test_a_step_or_reward_of_a_tracker_that_no_log_can_hold(tmp_path: Path) -> None:
    far = wandb_run(tmp_path / "far", [{"train/reward": 0.5, "train/global_step": 2e9}])
    assert "step 2000000000 is no whole number from 0 to" in refused(far)
    mixed = wandb_run(tmp_path / "mixed", [{"train/reward": 0.5}, {"train/reward": {"_type": "histogram"}}])
    assert "is no number" in refused(mixed)


def test_a_folder_of_several_runs_or_of_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host").write_bytes(b"")
    assert "not the folder of one run" in refused(tmp_path) and "it holds a, b" in refused(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "it holds none" in refused(tmp_path / "empty")
    assert find_tracker_file(tmp_path / "nothing.json") is None
    assert "it is empty" in refused(tmp_path / "a") or "not installed" in refused(tmp_path / "a")


@pytest.mark.parametrize(
    ("file", "module", "extra"),
    [
        ("events.out.tfevents.1.host", "tensorboard.compat.proto.event_pb2", "gspo[tensorboard]"),
        ("run-x.wandb", "wandb.proto.wandb_internal_pb2", "gspo[wandb]"),
    ],
)
def test_without_the_library_the_error_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / file).write_bytes(b"x")
    said = refusal(read_trainer_log, tmp_path / file)
    assert "cannot read" in said and extra in said


def test_the_configuration_in_tensorboard_s_files(tmp_path: Path, gspo_here: Gspo) -> None:
    folder = events(tmp_path / "log", {"train/reward": 0.5})
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), filename_suffix=".args") as writer:  # as the trainers of transformers do
        writer.add_text("args", json.dumps({"epsilon": 0.2, "seed": 3}))
    done = gspo_here("runs", "import", str(folder), *INTO, tmp_path, "--json")
    assert json.loads(done.out)["seed"] == 3 and json.loads(done.out)["configuration"] is True
    config = json.loads((tmp_path / "t" / "grpo-s3" / "config.json").read_text())
    assert config["trainer"] == {"epsilon": 0.2, "seed": 3}


def test_the_configuration_in_wandb_s_files(tmp_path: Path) -> None:
    folder = wandb_run(tmp_path / "run-1", [{"train/reward": 0.5, "train/global_step": 1}])
    assert recorded_config(folder) is None
    from wandb.proto.wandb_internal_pb2 import Record

    first, later = Record(), Record()
    first.run.config.update.add(key="epsilon", value_json="0.2")
    first.run.config.update.add(key="_wandb", value_json="{}")
    later.config.update.add(nested_key=["model", "name"], value_json='"base"')
    stored(folder / "run-new.wandb", [first, later])
    assert recorded_config(folder / "run-new.wandb") == {"epsilon": 0.2, "model.name": "base"}
