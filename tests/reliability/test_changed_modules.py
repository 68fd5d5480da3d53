"""A reward whose file changed while a run waited: refused on resume, or allowed and named by every report."""

import json
import sys
from pathlib import Path

import pytest
from program import Gspo, ok, strict_lines

REWARD = "def reward(completion, answer):\n    return 1.0 * (completion[:1] == str(answer)[:1])\n"
SETTINGS = ("model.threads=1", "model.tiny.hidden=16", "model.tiny.layers=1", "rollout.prompts=2", "rollout.samples=2",
            "rollout.max_new_tokens=4", "train.minibatches=1", "cold_start.steps=2", "eval.bench=[]",
            "checkpoint.every=1", "checkpoint.keep_optimizer=true")  # fmt: skip


def test_a_reward_that_changes_midway_is_noticed(
    gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"midway_{len(sys.modules)}"
    file = tmp_path / f"{name}.py"
    file.write_text(REWARD)
    sets = [f"--set={key}" for key in (*SETTINGS, f"task.reward={name}:reward")]
    ok(gspo_here("train", *sets, "--steps", "2", "--algo", "grpo,gspo", "--seed", "0", "--name", "s"))
    run = tmp_path / "results/s/gspo-s0"
    assert json.loads((run / "run.json").read_text())["plugins"][f"{name}:reward"]["path"] == str(file)

    more = ("train", "--resume", run, "--steps", "3", "--allow-change", "train.steps")
    file.write_text(REWARD.replace("1.0", "100.0"))
    done = gspo_here(*more)
    assert done.code == 2 and f"{name}:reward changed since" in done.err and "--allow-change plugins" in done.err
    done = gspo_here("runs", "verify", run)
    assert done.code == 0 and "is no longer the file that it was trained with" in done.out + done.err
    ok(gspo_here(*more, "--allow-change", "plugins"))
    [event] = [e for e in strict_lines(run / "events.jsonl") if e["event"] == "plugins_changed"]
    assert event["step"] == 2 and list(event["plugins"]) == [f"{name}:reward"]

    said = f"{name}:reward after rollout batch 2"
    assert said in gspo_here("runs", "show", run).out.replace("\n", " ")
    done = gspo_here("runs", "verify", run)
    assert done.code == 0 and "changed while it was trained" in done.out + done.err
    done = gspo_here("report", "compare", "s", "--json")
    assert f"{name}:reward after rollout batch 2" in done.out + done.err
    ok(gspo_here("train", "--resume", run, "--steps", "4", "--allow-change", "train.steps"))  # allowed once is enough
    assert len([e for e in strict_lines(run / "events.jsonl") if e["event"] == "plugins_changed"]) == 1
