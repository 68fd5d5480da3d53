"""Which GPU is used: the one that is named, and none by a run on the CPU."""

from __future__ import annotations

import pytest
import torch
from pretend_device import PretendDevice

from gspo_cli.errors import GspoError
from gspo_cli.models.device import pick_device
from gspo_cli.training.state.tensors import generator_tensors


@pytest.mark.parametrize(("name", "current"), [("auto", []), ("cuda", []), ("cuda:0", [0]), ("cpu", [])])
def test_a_named_gpu_becomes_the_current_one(name: str, current: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else memory would be read of the first, and pinned for it."""
    found = list[int | None]()
    with PretendDevice(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "set_device", lambda device: found.append(device.index))
        assert pick_device(name).type == ("cpu" if name == "cpu" else "cuda")
    assert found == current


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with PretendDevice(), pytest.raises(GspoError) as refused:
        pick_device("cuda:1")
    assert "invalid device ordinal" in refused.value.why


@pytest.mark.parametrize("used", [False, True])
def test_a_run_on_the_cpu_does_not_start_cuda_for_a_checkpoint(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take memory of the GPU, and the memory shown would be the GPU's."""
    asked = list[int]()

    def state(index: int) -> torch.Tensor:
        asked.append(index)
        return torch.zeros(16, dtype=torch.uint8)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "get_rng_state", state)
    assert {"cuda0", "cuda1"} <= set(generator_tensors()) if used else "cuda0" not in generator_tensors()
    assert asked == ([0, 1] if used else [])
