"""The pretended device itself: it fails where a GPU fails, allows what a GPU allows, and sees every transfer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pretend_device import MixedDevices, PretendDevice
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CUDA = torch.device("cuda")


def here(*shape: int) -> Tensor:
    return torch.ones(shape)


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device=CUDA)


MIXED: dict[str, Callable[[], object]] = {
    "matmul": lambda: there(2, 3) @ here(3, 2),
    "a mask from the CPU": lambda: there(2, 3) @ there(3, 2).masked_fill(here(3, 2).bool(), 0.0),
    "add": lambda: there(3) + here(3),
    "stack of scalars": lambda: torch.stack([there(3).sum(), here(3).sum()]),
    "where": lambda: torch.where(here(3).bool(), there(3), 0.0),
    "gather": lambda: there(3).gather(0, torch.tensor([0])),
    "embedding": lambda: torch.nn.functional.embedding(torch.tensor([0]), there(3, 2)),
    "device indices of a CPU tensor": lambda: here(3)[torch.zeros(1, dtype=torch.long, device=CUDA)],
    "a device scalar added to a CPU tensor in place": lambda: here(3).add_(there(1)),
    "numpy": lambda: there(3).numpy(),
    "a CPU generator": lambda: torch.rand(3, device=CUDA, generator=torch.Generator()),
    "a CPU generator in place": lambda: there(3).normal_(generator=torch.Generator()),
    "a device generator": lambda: torch.rand(3, generator=torch.Generator("cuda")),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_fails_on_a_gpu_fails(name: str) -> None:
    with PretendDevice(), pytest.raises((MixedDevices, TypeError)):
        MIXED[name]()


def test_what_a_gpu_allows_passes() -> None:
    with PretendDevice() as device:
        scalar = torch.tensor(2.0)
        assert (there(3) * scalar).is_cuda and (there(3) * 2 + 1).device == torch.device("cuda", 0)
        assert torch.where(there(3) > scalar, there(3), scalar).is_cuda
        assert torch.zeros_like(there(3)).new_zeros(2).is_cuda and not there(3).new_zeros(2, device="cpu").is_cuda
        assert torch.rand(3, device=CUDA, generator=torch.Generator("cuda")).is_cuda
        assert there(4).view(2, 2)[0].is_cuda and torch.nn.Linear(2, 2).to(CUDA)(there(1, 2)).is_cuda
        assert not any(t.waits for t in device.transfers if "Linear" not in t.what and t.what != "to(cuda)")


WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: there(1).item(),
    "tolist": lambda: there(3).tolist(),
    "cpu": lambda: there(3).cpu(),
    "to": lambda: there(3).to("cpu"),
    "bool": lambda: bool(there(1)),
    "float": lambda: float(there(1)),
    "a copy": lambda: here(3).copy_(there(3)),
    "upload": lambda: here(3).to(CUDA),
    "upload without pinning": lambda: here(3).to(CUDA, non_blocking=True),
    "from a list": lambda: torch.tensor([1, 2], device=CUDA),
    "a mask as an index": lambda: there(3)[there(3) > 0],
    "CPU indices": lambda: there(3)[torch.tensor([0])],
    "nonzero": lambda: there(3).nonzero(),
    "unique": lambda: there(3).unique(),
    "equal": lambda: torch.equal(there(3), there(3)),
}


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_is_noted_once(name: str) -> None:
    with PretendDevice() as device:
        WAITS[name]()
    assert [t.waits for t in device.transfers] == [True]


def test_a_copy_from_pinned_memory_does_not_wait() -> None:
    with PretendDevice() as device:
        assert here(3).pin_memory().to(CUDA, non_blocking=True).is_cuda
        there(3).copy_(here(3).pin_memory(), non_blocking=True)
    assert [t.waits for t in device.transfers] == [False, False]


def test_work_on_the_cpu_is_not_noted() -> None:
    with PretendDevice() as device:
        assert here(3)[here(3) > 0].tolist() == [1.0] * 3 and float(here(2).sum()) == 2.0
    assert device.transfers == []


def test_backward_stays_on_the_device_also_where_it_recomputes() -> None:
    with PretendDevice():
        layer = torch.nn.Linear(3, 3).to(CUDA)

        def block(x: Tensor) -> Tensor:
            return layer(x + torch.zeros(3, device=x.device))

        checkpoint(block, there(2, 3), use_reentrant=False).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.is_cuda
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.optim.AdamW(layer.parameters(), fused=True).step()


def test_outside_nothing_is_changed() -> None:
    with PretendDevice():
        kept = there(3)
    assert kept.device.type == "cpu" and not torch.cuda.is_available()
