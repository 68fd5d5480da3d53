"""`gspo train --sweep`: a study for each cell, planned before it trains, resumed as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from program import Gspo

SWEEP = ("--sweep", "noise.token=0,0.3", "--seeds", "0-1", "--steps", "1", "--algo", "grpo,gspo")


def test_a_dry_run_counts_the_runs_and_writes_nothing(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    done = gspo_here("train", smoke, *SWEEP, "--dry-run", "--out", tmp_path / "out", "--name", "noise")
    assert done.code == 0, done.err
    assert "2 cells, 8 runs" in done.err and "token-0.3: 4 runs, noise.token=0.3" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_cells_train_resume_and_make_a_map(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    place = ("--out", tmp_path)
    assert gspo_here("train", smoke, *SWEEP, *place, "--name", "noise").code == 0
    cells = [tmp_path / "noise" / name for name in ("token-0", "token-0.3")]
    for cell, noise in zip(cells, (0.0, 0.3), strict=True):
        assert {run.parent.name for run in cell.glob("*/run.json")} == {"grpo-s0", "grpo-s1", "gspo-s0", "gspo-s1"}
        config = json.loads((cell / "gspo-s0" / "config.json").read_text())
        assert config["noise"]["token"] == noise and config["name"] == cell.name
    kept = (cells[0] / "grpo-s0" / "metrics.jsonl").read_bytes()
    shutil.rmtree(cells[1] / "gspo-s1")  # as if the second cell had been cut off before its last run
    assert gspo_here("train", "--resume", tmp_path / "noise").code == 0
    assert (cells[1] / "gspo-s1" / "metrics.jsonl").is_file()
    assert (cells[0] / "grpo-s0" / "metrics.jsonl").read_bytes() == kept
    done = gspo_here("report", "map", "noise", *place, "--figures", tmp_path / "map", "--json")
    found = json.loads(done.out)
    assert found["axes"] == ["noise.token"] and [cell["values"] for cell in found["cells"]] == [
        {"noise.token": 0.0},
        {"noise.token": 0.3},
    ]
    assert {cell["comparison"]["verdict"] for cell in found["cells"]} == {"no_claim"}  # two seeds
    for run in cells[1].glob("*-s*"):
        shutil.rmtree(run)  # the map of a sweep whose second cell has not begun has the same axis
    done = gspo_here("report", "map", "noise", *place, "--figures", tmp_path / "map", "--json")
    assert json.loads(done.out)["axes"] == ["noise.token"], done.err
    assert json.loads(done.out)["cells"][1]["why"] == "no run has begun"
