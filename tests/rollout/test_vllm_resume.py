"""A run with the real vLLM, killed and resumed: another engine process, the same tokens, rewards and log.

`pytest -m vllm` runs it with the interpreter that GSPO_VLLM_PYTHON names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from program import GSPO, Gspo, strict_lines
from vllm_models import PYTHON

pytestmark = pytest.mark.vllm
STEPS = 4


def command(smoke: Path, out: Path) -> list[str | Path]:
    """Four rollout batches, each saved."""
    keys = {
        "rollout.engine": "vllm", "rollout.vllm.python": PYTHON, "rollout.kv_budget_gb": 0.25, "model.tiny.hidden": 32,
        "model.tiny.head_dim": 32, "eval.bench": "[]", "checkpoint.every": 1, "checkpoint.keep": STEPS + 1,
        "train.steps": STEPS,
    }  # fmt: skip
    return ["train", smoke, "--out", out, "--name", "x", *(a for k, v in keys.items() for a in ("--set", f"{k}={v}"))]


def killed_after(step: int, arguments: list[str | Path], run: Path) -> None:
    """SIGKILL to the trainer while it works on the rollout batch after this step's checkpoint."""
    with subprocess.Popen(
        [GSPO, *map(str, arguments)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + 600
        while not (run / "checkpoints" / f"step-{step:06d}").exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)


def test_a_killed_run_goes_on_with_another_engine_as_if_nothing_had_been(
    gspo_here: Gspo, smoke: Path, tmp_path: Path
) -> None:
    whole, cut = (tmp_path / name / "x" / "gspo-s0" for name in ("whole", "cut"))
    done = gspo_here(*command(smoke, tmp_path / "whole"))
    assert done.code == 0, done.err
    killed_after(2, command(smoke, tmp_path / "cut"), cut)
    done = gspo_here("train", "--resume", cut)
    assert done.code == 0 and "resuming after rollout batch" in done.err, done.err
    (start,) = [e for e in strict_lines(cut / "events.jsonl") if "resumed_from" in e]
    assert start["resumed_from"] >= 2
    files = [p.relative_to(whole) for kind in ("rollouts", "checkpoints") for p in (whole / kind).rglob("*.*")]
    assert len(files) > 4 * STEPS
    for name in [*files, Path("metrics.jsonl")]:  # tokens, log-probabilities and rewards, weights and moments, log
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
