"""Every command that runs a model, on the pretended device: cold start, training with a prompt template, stop strings
and several rewards, evaluation of its checkpoint, sampling with it, the report on gradients, the check of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pretend_device import PretendDevice
from program import Gspo

RECIPE = """
extends = "{smoke}"
name = "on-device"
[model]
device = "cuda"
compute = "bfloat16"
float32_matmul = "high"
[cold_start]
steps = 2
[task]
template = "{{question}}"
rewards = [{{ name = "task" }}, {{ name = "length", weight = 0.5, tokens = [1, 6] }}]
[rollout]
prompts = 2
samples = 4
max_new_tokens = 6
stop = ["+"]
[eval]
bench = []
"""


@pytest.mark.slow
def test_commands_that_run_a_model(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    file, study = tmp_path / "on-device.toml", tmp_path / "study"
    file.write_text(RECIPE.format(smoke=smoke))
    with PretendDevice():
        done = gspo_here("train", file, "--algo", "gspo", "--steps", "1", "--seeds", "0", "--out", study)
        assert done.code == 0, done.err
        run = next(study.rglob("run.json")).parent
        for command in (
            ("eval", "benchmarks", run, "--bench", "arithmetic", "--limit", "2", "--samples", "1"),
            ("rollout", run, "--out", tmp_path / "batch"),
            ("report", "fidelity", file, "--algo", "grpo,gspo", "--updates", "1", "--noise", "0.5", "--seeds", "0",
             "--batches", "1", "--reference", "2", "--out", tmp_path / "fidelity"),
            ("doctor", "--model", next(run.glob("checkpoints/*/model"))),
        ):  # fmt: skip
            done = gspo_here(*command)
            assert done.code == 0, (command, done.err)
    record = json.loads((run / "run.json").read_text())
    assert record["determinism"]["float32_matmul"] == "high"
    (summary,) = run.glob("eval/**/summary.json")
    assert "bfloat16" in summary.read_text()
