"""Resume at every step of two epochs: weights, optimizers, logs, learning rates, prompts and samples are those of the
run that was never interrupted."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import toy
from crashes import difference
from program import strict_lines

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.lock import locked
from gspo_cli.training.state import checkpoint_folder

STEPS = 4  # five problems, two a rollout batch: an epoch ends after batch 2
KEEP = {"every": 1, "keep": STEPS + 1}
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo", "replay": "r2"},
    "gspo": {"name": "gspo", "replay": "r2", "kl": {"coef": 0.05}},
    "ppo": {"name": "ppo", "replay": "r2"},
    "float16": {"name": "ppo"},
}


def recipe(start: Path, arm: str) -> Recipe:
    """With routing replay, evaluation on the way, and for GSPO a reference policy."""
    model = {"compute": "float16", "float32_head": True} if arm == "float16" else {}
    return toy.recipe(start, train={"steps": STEPS}, checkpoint=KEEP, algo=ARMS[arm], model=model)


def cut_after(run: Path, step: int) -> None:
    """Leaves the run as a kill just before the next checkpoint would: later logs there, later checkpoints not."""
    for path in checkpoint_folder.list_checkpoints(run / "checkpoints")[step + 1 :]:
        shutil.rmtree(path)
    toy.forget_end(run)


def resumed_at_every_step(own: Recipe, whole: Path, ram: Path) -> list[Path]:
    """Copies that were cut after each step, resumed, and ended equal to the whole run, stored batches included."""
    runs = []
    for step in range(own.train.steps):
        shutil.copytree(whole, ram / str(step) / whole.name)
        cut_after(ram / str(step) / whole.name, step)
        runs.append(toy.train(own, ram / str(step)))
        assert difference(runs[-1], whole, list(range(step + 1))) is None
    return runs


@pytest.mark.parametrize(
    "arm", ["gspo", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("float16", "grpo", "ppo"))]
)
def test_at_every_step_of_two_epochs(start: Path, ram: Path, arm: str) -> None:
    whole = toy.train(recipe(start, arm), ram / "whole")
    assert toy.checkpoints(whole) == list(range(STEPS + 1))
    files = {p.name for p in (whole / "checkpoints" / "step-000004").iterdir()}
    assert ("critic.safetensors" in files) == (arm in ("ppo", "float16"))
    for step, run in enumerate(resumed_at_every_step(recipe(start, arm), whole, ram)):
        assert toy.events(run, "start")[-1]["resumed_from"] == step
        (cut_off,) = toy.events(run, "log_truncated")
        assert (run / "dropped" / cut_off["log"]["kept_as"]).read_bytes().count(b"\n") == cut_off["log"]["lines"]
    # the series that resumes elsewhere got wrong: learning rate, KL against the start model, seq
    lines = strict_lines(whole / "metrics.jsonl")
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    rates = [line["metrics"]["lr"] for line in lines if line["kind"] == "update"]
    assert rates == sorted(rates) and rates[0] < rates[-1] == 0.01
    if arm == "float16":  # steps were skipped before and after a resume
        assert 1 < len(toy.events(whole, "overflow")) < 2 * STEPS
    if arm == "gspo":
        assert lines[-1]["metrics"]["kl/ref_k3"] > 0


@pytest.fixture(scope="module")
def trained(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of GSPO."""
    return toy.train(recipe(start, "gspo"), tmp_path_factory.mktemp("trained"))


@pytest.fixture
def run(trained: Path, ram: Path) -> Path:
    """A copy that ends after its second checkpoint."""
    run = Path(shutil.copytree(trained, ram / "study" / trained.name))
    cut_after(run, 2)
    return run


def refusal(start: Path, run: Path, *args: Any) -> GspoError:
    """The error that a resume ends with before it trains."""
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(GspoError) as caught:
        toy.train(recipe(start, "gspo"), run.parent, *args)
    assert (run / "metrics.jsonl").read_bytes() == before
    return caught.value


def test_a_changed_recipe_is_shown_and_refused(start: Path, run: Path, ram: Path) -> None:
    change = {"train": {"steps": 5}}
    error = refusal(start, run, change)
    assert error.code == 2 and "train.steps = 4 -> 5" in error.message and "--allow-change train.steps" in error.hint
    error = refusal(start, run, {"algo": {"lr": 1.0}}, ("algo.lr",))
    assert error.code == 2 and "part of the experiment" in error.why
    toy.train(recipe(start, "gspo"), run.parent, change, ("train.steps",))
    assert toy.events(run, "start")[-1]["changes"] == {"train.steps": 5}
    assert toy.checkpoints(run)[-1] == 5
    longer = toy.recipe(start, train={"steps": 5}, checkpoint=KEEP, algo=ARMS["gspo"])
    whole = toy.train(longer, ram / "longer")
    strip = [{k: v for k, v in line.items() if k != "prev"} for line in strict_lines(run / "metrics.jsonl")]
    assert strip == [{k: v for k, v in line.items() if k != "prev"} for line in strict_lines(whole / "metrics.jsonl")]


def test_an_edited_config_is_refused(start: Path, run: Path) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.01', '"lr": 0.02', 1))
    error = refusal(start, run)
    assert error.code == 2 and "config.json" in error.message


def test_another_start_model_is_refused(start: Path, ram: Path) -> None:
    mine = shutil.copytree(start, ram / "start")
    own = toy.recipe(mine, train={"steps": STEPS}, checkpoint=KEEP)
    run = toy.train(own, ram / "study")
    cut_after(run, 2)
    toy.flip(mine / "model.safetensors")
    with pytest.raises(GspoError, match=r"model of .* has changed"):
        toy.train(own, ram / "study")


def test_other_versions_are_said_and_recorded(start: Path, run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["packages"]["torch"] = "1.0"
    (run / "run.json").write_text(json.dumps(record))
    toy.train(recipe(start, "gspo"), run.parent)
    (event,) = toy.events(run, "resume_inexact")
    assert event["differ"]["packages"]["was"]["torch"] == "1.0"


def test_a_repeated_line_that_differs_is_an_event(start: Path, run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[-1] = lines[-1].replace('"step":4', '"step":9')
    (run / "metrics.jsonl").write_text("".join(lines))
    toy.train(recipe(start, "gspo"), run.parent)
    assert len(toy.events(run, "resume_diverged")) == 1


def test_a_run_in_use_is_refused_with_its_holder(start: Path, run: Path, ram: Path) -> None:
    with locked(run):
        error = toy.in_child(lambda: toy.train(recipe(start, "gspo"), run.parent), ram / "said")
    assert error == 2 and f"process {__import__('os').getpid()} on " in (ram / "said").read_text()


def test_a_kill_frees_the_lock_though_a_forked_child_lives_on(ram: Path) -> None:
    ready, told = os.pipe()
    holder = os.fork()
    if not holder:
        with locked(ram / "run"):
            worker = os.fork()
            if worker:
                os.write(told, worker.to_bytes(8))
            time.sleep(300)
        os._exit(1)
    worker = int.from_bytes(os.read(ready, 8))
    try:
        with pytest.raises(GspoError, match="in use"), locked(ram / "run"):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with locked(ram / "run"):
            os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)


def test_fewer_updates_than_planned_is_an_error(start: Path, run: Path) -> None:
    newest = run / "checkpoints" / "step-000002"
    state = json.loads((newest / "state.json").read_text())
    (newest / "state.json").write_text(json.dumps(state | {"updates": state["updates"] - 1}, indent=1))
    (newest / "MANIFEST.json").unlink()
    (newest / "MANIFEST.json").write_text(checkpoint_folder.describe(newest, 2).text())
    with pytest.raises(GspoError, match="planned") as caught:
        toy.train(recipe(start, "gspo"), run.parent)
    assert caught.value.code is ExitCode.UNEXPECTED


def test_the_best_checkpoint_is_kept_too(start: Path, ram: Path) -> None:
    best = toy.recipe(start, train={"steps": 6}, checkpoint={"every": 1, "best": "reward/mean"})
    run = toy.train(best, ram / "study")
    lines = [line for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "rollout"]
    rewards = {line["step"]: line["metrics"]["reward/mean"] for line in lines}
    assert toy.checkpoints(run) == sorted({5, 6} | {max(rewards, key=lambda k: rewards[k])})
