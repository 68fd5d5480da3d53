"""The scripts that compare training curves with TRL's: what the other side gets, and what is logged of it.

Everything here runs without TRL; tests/docs/test_other_trainers.py runs its loss.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo_cli.models.tiny import character_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "results" / "programs"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The job of the quickstart, without building its start model."""
    character_tokenizer().save_pretrained(tmp_path / "start")
    monkeypatch.setattr("gspo_cli.training.cold_start.start_model", lambda *_: tmp_path / "start")
    return import_module("same_curves").job("quickstart", "gspo", seed=3, batches=2)  # type: ignore[no-any-return]


def test_the_peer_gets_the_recipe_in_its_own_terms(shared: dict[str, Any]) -> None:
    peer = import_module("peer_curves")
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
    peer = import_module("peer_curves")
    found = peer.log_ratio_moments(new_BT, inputs)
    assert found["ratio/token_log_mean"] == pytest.approx(0.2)  # (0.1 + 0.3 + 0.2) / 3
    assert found["ratio/seq_log_mean"] == pytest.approx(0.2)  # of 0.2 and 0.2
    assert found["ratio/token_log_std"] == pytest.approx(0.1, abs=1e-6)
    assert found["ratio/seq_log_std"] == pytest.approx(0.0, abs=1e-6)
    none = peer.log_ratio_moments(new_BT, inputs | {"advantages": torch.zeros(3)})
    assert set(none.values()) == {None}
