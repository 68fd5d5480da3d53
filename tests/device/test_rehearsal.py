"""The GPU benchmark, rehearsed on a CPU in small shapes: nothing but the device is new when there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EXPECTED = {
    "numbers": {"dense", "moe", "determinism"}, "sampling": {"rows", "launches_per_token"},
    "step": {"matrix_peak_tflops", "runs"}, "rollout": {"ours_s"}, "learning": {"float32", "bfloat16", "deep_moe"},
    "sharding": {"backend", "token_max", "gradient_norms"},
}  # fmt: skip


def rehearse(tmp_path: Path, *options: str) -> dict[str, Any]:
    output = tmp_path / "gpu.json"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--tiny", "--device", "cpu", "--minutes", "60"]
    done = subprocess.run([*command, "--json", str(output), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("point", EXPECTED)
def test_each_point_runs_on_a_cpu(point: str, tmp_path: Path) -> None:
    found = rehearse(tmp_path, "--points", point)["points"][point]
    assert "error" not in found and found.keys() >= EXPECTED[point], found
    if point == "numbers":
        assert all(found[model]["float32_within_1e-4"] for model in ("dense", "moe"))
        assert all(found[model]["same_seed_same_bytes"] for model in ("dense", "moe"))
    if point == "sampling":
        launches, compiled = found["launches_per_token"], found.get("compiled_error", "C++")
        assert 1000 < launches["ours"] < 2500 and "C++" in compiled
        assert "compiled_error" in found or launches["compiled"] < 60
    if point == "learning":
        runs = [found[name] for name in EXPECTED[point]]
        assert all(len(run["reward/mean"]) == 2 and 0 < max(run["reward/mean"]) < 1 for run in runs), found
        assert all(max(run["moe/slot_churn_step"]) > 0 for run in runs), found  # there were updates
    if point == "sharding":
        assert found["token_max"] < 1e-4 and found["gradient_norms"][0] == pytest.approx(found["gradient_norms"][1])


@pytest.mark.slow
def test_a_late_point_leaves_out_what_it_cannot_begin() -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu_points.py"), "numbers", "--tiny", "--device", "cpu"]
    done = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1])["left_out"] == ["dense", "moe"], done.stderr


@pytest.mark.slow
def test_a_point_that_fails_is_an_error_in_the_report(tmp_path: Path) -> None:
    found = rehearse(tmp_path, "--points", "step", "--minutes", "0.0001")
    assert "not done within" in found["points"]["step"]["error"] and "torch" in found["versions"]
