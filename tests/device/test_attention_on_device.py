"""What torch's attention needs on a GPU: kernels of linear memory for grouped heads, and deterministic ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pretend_device import PretendDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gspo_cli.models.attention import attend

CUDA = torch.device("cuda")
BAND = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]


def heads(number: int, dtype: torch.dtype, seed: int) -> Tensor:
    """[2, heads, 6, 8]."""
    return torch.randn(2, number, 6, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "mask", "window", "repeated"),
    [
        (torch.float32, None, None, True), (torch.bfloat16, None, None, False),
        (torch.bfloat16, BAND, None, True), (torch.bfloat16, None, 3, True),
    ],
)  # fmt: skip
def test_grouped_heads_are_repeated_for_kernels(
    dtype: torch.dtype, mask: Tensor | None, window: int | None, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flash kernel takes grouped heads, but neither float32 nor a mask; the other takes both, but not those."""
    seen, plain = list[int](), F.scaled_dot_product_attention

    def spied(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(key.shape[1])
        return plain(query, key, *args, **kwargs)

    inputs = [heads(4, dtype, 0), heads(2, dtype, 1), heads(2, dtype, 2)]
    expected = attend(*inputs, mask, None, True, window, None, None)
    monkeypatch.setattr(F, "scaled_dot_product_attention", spied)
    with PretendDevice():
        there = None if mask is None else mask.to(CUDA)
        found = attend(*(x.to(CUDA) for x in inputs), there, None, True, window, None, None)
    assert seen == [4 if repeated else 2]
    torch.testing.assert_close(found, expected)


class Flags(TorchDispatchMode):
    """Which operations run while those without a deterministic kernel fail, and while they warn."""

    def __init__(self) -> None:
        super().__init__()
        self.fail, self.warn = set[str](), set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        (self.warn if warns else self.fail).add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def warn_only() -> Iterator[None]:
    """As on a machine with a GPU."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.usefixtures("warn_only")
def test_attention_alone_runs_without_the_permission_to_only_warn() -> None:
    """With it, torch's kernels for attention's backward pass are not deterministic; without it, `cumsum` fails."""
    with PretendDevice(), Flags() as flags:
        query, key, value = (heads(4, torch.float32, i).to(CUDA).requires_grad_() for i in range(3))
        out = attend(2 * query, key, value, None, None, True, None, None, None)
        out.square().cumsum(-1).sum().backward()
    assert query.grad is not None and torch.is_deterministic_algorithms_warn_only_enabled()
    assert {name for name in flags.fail if "scaled_dot_product" not in name} <= {"empty_like", "detach"}, flags.fail
    assert any(name.endswith("backward") for name in flags.fail) and {"cumsum", "mul"} <= flags.warn
    assert not any("scaled_dot_product" in name for name in flags.warn)
