"""Processes that train one run together, as the program starts them: the paper's recipe made small, a kill, a resume on
another number of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from program import GSPO, Gspo, strict_lines

SMALL = [
    "real/qwen3-30b-a3b-8xh200", "--algo", "gspo", "--steps", "4",
    "--set", "model={tiny = {hidden = 16, layers = 2, experts = 4}, threads = 1}",  # passes in bfloat16, as the recipe
    "--set", "cold_start={steps = 150, batch = 32, lr = 3e-2}", "--set", "task.name=arithmetic",
    "--set", "rollout={engine = 'transformers', prompts = 4, samples = 16, max_new_tokens = 12}",
    "--set", "eval={bench = ['arithmetic'], limit = 8, samples = 1, max_new_tokens = 12}",
    "--set", "checkpoint.every=1",
]  # fmt: skip


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children if "gspo_cli" in Path(f"/proc/{child}/cmdline").read_text()]


@pytest.mark.slow
def test_the_papers_recipe_on_two_ranks_is_killed_and_goes_on_with_one(gspo: Gspo, tmp_path: Path) -> None:
    command = [str(GSPO), "train", *SMALL, "--out", str(tmp_path), "--launcher", "torchrun"]
    launcher = subprocess.Popen([*command, "--nproc", "2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not (found := list(tmp_path.glob("*/gspo-s0/checkpoints/step-000001/MANIFEST.json"))):
            assert launcher.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run = found[0].parents[2]
        ranks = ranks_of(launcher.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=120)
    finally:
        launcher.kill()
    assert launcher.returncode == 5, said.decode()
    done = gspo("train", "--resume", run, "--launcher", "torchrun", "--nproc", "3", "--json")
    assert done.code == 0, done.err
    assert [json.loads(line)["arm"] for line in done.out.splitlines()] == ["gspo"]  # the first rank alone speaks
    lines = strict_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4]
    assert gspo("runs", "verify", run.parent).code == 0


@pytest.mark.slow
def test_what_is_refused_is_said_once(gspo: Gspo, tmp_path: Path) -> None:
    done = gspo("train", "--algo", "ppo", "--launcher", "torchrun", "--nproc", "2", "--out", tmp_path)
    assert done.code == 2 and done.err.count("ppo with 2 ranks") == 1
    assert not list(tmp_path.iterdir())


def test_several_runs_at_once_are_refused_under_torchrun(
    gspo: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in (["--jobs", "2"], ["--launcher", "ray"]):
        done = gspo("train", *options, "--out", tmp_path)
        assert done.code == 2 and "each of its processes" in done.err
    assert not list(tmp_path.iterdir())


def test_options_of_another_launcher_are_refused(gspo: Gspo, tmp_path: Path) -> None:
    for options in (["--nproc", "2"], ["--launcher", "torchrun", "--jobs", "2"], ["--gpus-per-run", "1"]):
        done = gspo("train", *options, "--out", tmp_path)
        assert done.code == 2 and "why:" in done.err
    assert not list(tmp_path.iterdir())
