"""The pretended device itself: it fails where a GPU fails, allows what a GPU allows, and sees every transfer."""

from collections.abc import Callable
from contextvars import ContextVar

import pytest
import torch
import torch.nn.functional as F
from pretend_device import DeviceAssert, HostRace, MixedDevices, PretendDevice
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CUDA = torch.device("cuda")


def here(*shape: int) -> Tensor:
    return torch.ones(shape)


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device=CUDA)


def at(*index: int) -> Tensor:
    """Indices on the device, without a copy to it."""
    return torch.stack([torch.full((), i, device=CUDA) for i in index])


def assigned(target: Tensor, where: object, value: object) -> Tensor:
    target[where] = value  # type: ignore[index]
    return target


MIXED: dict[str, Callable[[], object]] = {
    "matmul": lambda: there(2, 3) @ here(3, 2),
    "a mask from the CPU": lambda: there(2, 3) @ there(3, 2).masked_fill(here(3, 2).bool(), 0.0),
    "stack of scalars": lambda: torch.stack([there(3).sum(), here(3).sum()]),
    "gather": lambda: there(3).gather(0, torch.tensor([0])),
    "device indices of a CPU tensor": lambda: here(3)[torch.zeros(1, dtype=torch.long, device=CUDA)],
    "a device scalar added to a CPU tensor in place": lambda: here(3).add_(there(1)),
    "a CPU mask in attention": lambda: F.scaled_dot_product_attention(
        *[there(1, 1, 2, 4)] * 3, torch.ones(2, 2, dtype=torch.bool)
    ),
    "numpy": lambda: there(3).numpy(),
    "a CPU generator within torch's own function": lambda: torch.nn.init.normal_(there(3), generator=torch.Generator()),
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
        assert torch.where(there(3) > scalar, there(3), 0.0).is_cuda and torch.minimum(there(3), scalar).is_cuda
        assert assigned(there(3), there(3) > 0, 0.0).is_cuda and there(3).masked_fill(there(3) > 0, scalar).is_cuda
        assert there(3).repeat_interleave(at(1, 1, 1), output_size=3).is_cuda
        assert (F.one_hot(at(0, 1), 3) + there(3)).is_cuda and torch.zeros(3, device=0).is_cuda
        assert torch.zeros_like(there(3)).new_zeros(2).is_cuda and not there(3).new_zeros(2, device="cpu").is_cuda
        assert torch.rand(3, device=CUDA, generator=torch.Generator("cuda")).is_cuda
        assert there(4).view(2, 2)[0].is_cuda and torch.nn.Linear(2, 2).to(CUDA)(there(1, 2)).is_cuda
        assert not [t for t in device.transfers if t.waits and "Linear" not in t.what and t.what != "to(cuda)"]


WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: there(1).item(), "to": lambda: there(3).to("cpu"), "bool": lambda: bool(there(1)),
    "a copy": lambda: here(3).copy_(there(3)), "upload": lambda: here(3).to(CUDA),
    "upload without pinning": lambda: here(3).to(CUDA, non_blocking=True),
    "upload with gaps": lambda: here(3, 4).pin_memory()[:, :2].to(CUDA, non_blocking=True),
    "from a list": lambda: torch.tensor([1, 2], device=CUDA), "a list of one tensor": lambda: torch.tensor([there()]),
    "an element": lambda: assigned(there(3), 0, 1.0), "a number at indices": lambda: assigned(there(3), at(0, 1), 0.0),
    "a number from the device where a mask is": lambda: assigned(there(3), there(3) > 0, there()),
    "classes that are not given": lambda: F.one_hot(at(0, 1)), "a mask as an index": lambda: there(3)[there(3) > 0],
    "CPU indices": lambda: there(3)[torch.tensor([0])], "nonzero": lambda: there(3).nonzero(),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_every_wait_is_noted_once(name: str) -> None:
    with PretendDevice() as device:
        WAITS[name]()
    assert [t.waits for t in device.transfers] == [True]


def test_pinned_memory_from_the_start_and_a_copy_to_the_host() -> None:
    with PretendDevice() as device:
        pinned = torch.zeros(3, pin_memory=True)
        assert pinned.is_pinned() and not here(3).is_pinned() and pinned.to(CUDA, non_blocking=True).is_cuda
        assert there(3).to("cpu", non_blocking=True).is_pinned()
        there(3).copy_(here(3).pin_memory(), non_blocking=True)
    assert [t.waits for t in device.transfers] == [False, False, False]
    with PretendDevice(), pytest.raises(RuntimeError, match="single memory location"):
        here(1).expand(3).pin_memory()


def reused_too_early() -> None:
    staging = here(3).pin_memory()
    staging.to(CUDA, non_blocking=True)
    staging.fill_(2.0)


RACES: dict[str, Callable[[], object]] = {
    "pinned memory used again": reused_too_early,
    "a sum of what has not arrived": lambda: there(3).to("cpu", non_blocking=True).sum(),
    "an array of what has not arrived": lambda: there(3).to("cpu", non_blocking=True).numpy(),
}


@pytest.mark.parametrize("name", RACES)
def test_host_memory_used_during_a_copy_fails(name: str) -> None:
    with PretendDevice(), pytest.raises(HostRace):
        RACES[name]()


def test_after_a_wait_host_memory_may_be_used() -> None:
    with PretendDevice():
        staging = here(3).pin_memory()
        back = staging.to(CUDA, non_blocking=True).to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        assert float(back.sum()) == 3.0 and float(staging.fill_(2.0).sum()) == 6.0


def test_an_index_out_of_range_ends_the_process() -> None:
    for use in (lambda: F.embedding(at(9), there(3, 2)), lambda: there(3)[at(9)], lambda: there(3).gather(0, at(9))):
        with PretendDevice(), pytest.raises(DeviceAssert):
            use()
    with PretendDevice(), pytest.raises(IndexError):
        there(3)[9]  # which the host knows


def test_what_a_gpu_has_no_kernel_for_fails() -> None:
    with PretendDevice(), pytest.raises(NotImplementedError):
        at(1, 2) @ at(1, 2)
    with PretendDevice(), pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(3, device="cuda:1")


def test_backward_knows_no_context_variables() -> None:
    """On a GPU it runs in a thread of its own."""
    variable, seen = ContextVar("variable", default="none"), list[str]()
    for device in (CUDA, torch.device("cpu")):
        with PretendDevice():
            x = torch.ones(3, device=device, requires_grad=True)
            x.register_hook(lambda _: seen.append(variable.get()))
            token = variable.set("ours")
            (2 * x).sum().backward()
            variable.reset(token)
    assert seen == ["none", "ours"]


def test_backward_stays_on_the_device_also_where_it_recomputes() -> None:
    with PretendDevice():
        layer = torch.nn.Linear(3, 3).to(CUDA)

        def block(x: Tensor) -> Tensor:
            return layer(x + torch.zeros(3, device=x.device))

        checkpoint(block, there(2, 3), use_reentrant=False).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.is_cuda
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.optim.AdamW(layer.parameters(), fused=True).step()
