"""The GPU benchmark, rehearsed on a CPU in small shapes: nothing but the device is new when there is one."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "results" / "programs"
EXPECTED = {
    "numbers": {"dense", "moe", "determinism"}, "sampling": {"rows", "launches_per_token"},
    "step": {"matrix_peak_tflops", "runs"}, "rollout": {"ours_s"}, "learning": {"float32", "bfloat16", "deep_moe"},
    "sharding": {"backend", "token_max", "gradient_norms"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("point", EXPECTED)
def test_each_point_runs_on_a_cpu(point: str, tmp_path: Path) -> None:
    options = ["--minutes", "60", "--points", point, "--json", tmp_path / "gpu.json"]
    command = [sys.executable, BENCHMARKS / "gpu.py", "--tiny", "--device", "cpu", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())["points"][point]
    assert "error" not in found and found.keys() >= EXPECTED[point], found
    if point == "numbers":
        checks = ("float32_within_1e-4", "same_seed_same_bytes", "same_seed_same_tokens")
        assert all(found[model][check] for model in ("dense", "moe") for check in checks)
    if point == "learning":
        runs = [found[name] for name in EXPECTED[point]]
        assert all(len(run["reward/mean"]) == 2 and 0 < max(run["reward/mean"]) < 1 for run in runs), found
        # a number where there was an update, even if it moved no expert
        assert all(value is not None for run in runs for value in run["moe/slot_churn_step"]), found
        assert max(found["float32"]["moe/slot_churn_step"]) > 0, found
    if point == "sharding":
        assert found["token_max"] < 1e-4 and found["gradient_norms"][0] == pytest.approx(found["gradient_norms"][1])


def test_lines_that_wait_are_counted_by_torchs_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch warns of each, if asked to; nothing asks it afterwards."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_workload

    modes = list[str]()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def work() -> None:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("cumsum_cuda_kernel does not have a deterministic implementation, but", stacklevel=1)

    (place,) = (found := gpu_workload.places_of_waits(work, "cuda"))
    assert place.startswith("test_rehearsal.py:") and found[place] == 3 and modes == ["warn", "default"]
    (named,) = gpu_workload.not_deterministic(work)
    assert named.startswith("cumsum_cuda_kernel")
