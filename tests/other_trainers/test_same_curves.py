"""The scripts that compare training curves with TRL's: what both sides get, and how the curves are judged.

Everything here runs without TRL; tests/docs/test_other_trainers.py runs its loss.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gspo_cli.models.tiny import character_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "results" / "programs"


def script(name: str) -> ModuleType:
    """A benchmark script as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


report, driver, peer = script("curves_report"), script("same_curves"), script("peer_curves")


def made_up(algo: str, seed: int, side: str, shift: float, batches: int = 6) -> dict[str, Any]:
    """A finished run: its reward rises from 0.4 to 0.6, plus `shift`; the first of four updates never clips."""
    updates = [0.0, 0.1, 0.2, 0.3] * batches
    names = ("clip/token_frac", "clip/seq_frac", "grad/norm")
    ratios = [f"ratio/{unit}_log_{what}" for unit in ("token", "seq") for what in ("mean", "std")]
    series: dict[str, Any] = {"reward/mean": list(np.linspace(0.4, 0.6, batches) + shift), "batch_s": [2.0] * batches}
    series |= {"length/mean": [10.0] * batches} | {f"updates/{name}": updates for name in [*names, *ratios]}
    settings = {"algo": algo, "seed": seed, "batches": batches, "minibatches": 4}
    return {"side": side, "settings": settings, "series": series, "cpu_s": 60.0, "held_out": {"average": 0.5 + shift}}


def write_study(folder: Path, shifts: dict[int, float], algo: str = "gspo") -> None:
    """Pairs of runs whose curves differ by `shifts[seed]`."""
    for seed, shift in shifts.items():
        for side, its_shift in (("ours", shift), ("peer", 0.0)):
            (folder / f"{algo}-s{seed}-{side}.json").write_text(json.dumps(made_up(algo, seed, side, its_shift)))


def judged(folder: Path) -> dict[str, Any]:
    return report.judged(report.read_pairs(folder)["gspo"])  # type: ignore[no-any-return]


def test_equal_curves_are_equivalent_and_shifted_ones_are_not(tmp_path: Path) -> None:
    noise = {0: 0.004, 1: -0.006, 2: 0.002, 3: -0.003, 4: 0.005, 5: -0.001}
    write_study(tmp_path, noise)
    found = judged(tmp_path)
    # by hand: mean 0.0167 points, sd 0.4262; t(.95, 5) = 2.015; 0.0167 +- 2.015 x 0.4262 / sqrt(6)
    assert found["reward_points"]["interval_90"] == pytest.approx([-0.3340, 0.3673], abs=1e-3)
    assert found["equivalent"] and found["finished"]
    write_study(tmp_path, {seed: shift + 0.03 for seed, shift in noise.items()})
    moved = judged(tmp_path)
    assert moved["reward_points"]["mean"] == pytest.approx(3.0167, abs=1e-3)
    assert not moved["equivalent"]
    assert moved["held_out_points"]["mean"] == pytest.approx(3.0167, abs=1e-3)


def test_runs_with_other_settings_are_refused(tmp_path: Path) -> None:
    write_study(tmp_path, {0: 0.0})
    other = made_up("gspo", 0, "peer", 0.0)
    other["settings"]["minibatches"] = 2
    (tmp_path / "gspo-s0-peer.json").write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="same settings"):
        report.read_pairs(tmp_path)


# What the two sides get


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder that holds only a tokenizer."""
    character_tokenizer().save_pretrained(tmp_path / "start")
    return tmp_path / "start"


@pytest.fixture
def shared(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The job of the quickstart, without building its start model."""
    monkeypatch.setattr("gspo_cli.training.cold_start.start_model", lambda *_: tokenizer)
    return driver.job("quickstart", "gspo", seed=3, batches=2)  # type: ignore[no-any-return]


def test_the_peer_gets_the_recipe_in_its_own_terms(shared: dict[str, Any]) -> None:
    settings = peer.peer_settings(shared, "out")
    assert settings["per_device_train_batch_size"] * settings["steps_per_generation"] == 32 * 16
    assert settings["max_steps"] == 2 * 4 and settings["num_generations"] == 16
    assert (settings["epsilon"], settings["epsilon_high"]) == (3e-4, 4e-4)
    assert settings["importance_sampling_level"] == "sequence" and settings["loss_type"] == "grpo"
    assert (settings["learning_rate"], settings["adam_beta2"], settings["seed"]) == (1e-4, 0.95, 3)
    assert settings["router_aux_loss_coef"] == 0.0
    dense = peer.peer_settings(shared | {"experts": None, "algo": "grpo"}, "out")
    assert "router_aux_loss_coef" not in dense and dense["importance_sampling_level"] == "token"


def test_log_ratios_are_those_of_responses_with_an_advantage() -> None:
    new_BT = torch.tensor([[0.1, 0.3, 9.0], [0.2, 0.0, 0.0], [5.0, 5.0, 5.0]])
    inputs = {
        "advantages": torch.tensor([1.0, -1.0, 0.0]),
        "completion_mask": torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]),
        "old_per_token_logps": torch.zeros(3, 3),
    }
    found = peer.log_ratio_moments(new_BT, inputs)
    assert found["ratio/token_log_mean"] == pytest.approx(0.2)  # (0.1 + 0.3 + 0.2) / 3
    assert found["ratio/seq_log_mean"] == pytest.approx(0.2)  # of 0.2 and 0.2
    assert found["ratio/token_log_std"] == pytest.approx(0.1, abs=1e-6)
    assert found["ratio/seq_log_std"] == pytest.approx(0.0, abs=1e-6)
    none = peer.log_ratio_moments(new_BT, inputs | {"advantages": torch.zeros(3)})
    assert set(none.values()) == {None}
