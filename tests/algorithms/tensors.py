"""Random batches as float64 tensors, and a loss with its gradient, for identities between algorithms.

B = responses, T = token positions, G = responses of a prompt
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS, LossOutput, loss_from_tensors
from gspo_cli.algorithms.clip import Clip
from gspo_cli.algorithms.ops import group_advantage
from gspo_cli.types import Mean

SEEDS = st.integers(0, 2**32 - 1)
drawn = settings(max_examples=25, deadline=None, database=None)


def with_parameter(key: str) -> list[str]:
    """The algorithms that have it."""
    return [name for name, one in ALGORITHMS.items() if key in {f.name for f in fields(one.Params)}]


HARD_CLIP = with_parameter("clip")
CLIPPING = [name for name, algorithm in ALGORITHMS.items() if hasattr(algorithm.Params(), "clip")]
"""With a clip range, gmpo's in nats too."""
ONE_ON_POLICY = [name for name, algorithm in ALGORITHMS.items() if not algorithm.WHOLE_GROUPS]
"""A token's weight is its advantage's at the old policy; a ratio to the group's is not 1 there."""
BANDS = (Clip(low=3e-4, high=4e-4), Clip(low=0.2, high=0.27))


@dataclass(frozen=True)
class Case:
    """What a loss reads."""

    log_probs_BT: Tensor
    old_BT: Tensor
    advantages: Tensor
    mask_BT: Tensor
    groups_B: Tensor | None = None
    """None = all of one prompt."""

    def rows(self, index: Any) -> Case:
        """Some of the responses, or all in another order."""
        groups_B = None if self.groups_B is None else self.groups_B[index]
        return Case(self.log_probs_BT[index], self.old_BT[index], self.advantages[index], self.mask_BT[index], groups_B)

    def with_ratios(self, log_ratio_BT: Tensor) -> Case:
        """The same old policy, `log_ratio_BT` away from the new one."""
        return replace(self, log_probs_BT=self.old_BT + log_ratio_BT)

    @property
    def length_B1(self) -> Tensor:
        """L_i."""
        return self.mask_BT.sum(-1, keepdim=True)


class Result(NamedTuple):
    """J, dJ/dl by autograd, and everything else a loss returns."""

    objective: Tensor
    gradient_BT: Tensor
    output: LossOutput


def random_case(seed: int, spread: float = 0.4, groups: int = 2, group_size: int = 4, tokens: int = 7) -> Case:
    """Whole groups with group advantages, masks with holes, at least one loss token a response."""
    g = torch.Generator().manual_seed(seed)
    shape = (groups * group_size, tokens)
    mask_BT = torch.rand(shape, generator=g) < 0.7
    mask_BT[torch.arange(shape[0]), torch.randint(0, tokens, (shape[0],), generator=g)] = True
    rewards_B = torch.rand(shape[0], generator=g, dtype=torch.float64)
    groups_B = torch.arange(shape[0]) // group_size
    old_BT = -3 * torch.rand(shape, generator=g, dtype=torch.float64) - 0.1
    drift_B1 = torch.randn(shape[0], 1, generator=g, dtype=torch.float64)
    noise_BT = torch.randn(shape, generator=g, dtype=torch.float64)
    advantages_B = group_advantage(rewards_B, groups_B).double()
    return Case(old_BT + spread * (drift_B1 + noise_BT) / 2, old_BT, advantages_B, mask_BT, groups_B)


def tensor(values: Any) -> Tensor:
    """Of float64."""
    return torch.tensor(values, dtype=torch.float64)


def one_token(log_ratio: float, advantage: float, dtype: torch.dtype = torch.float64) -> Case:
    """One response of one token; the old log-probability is 0, so that the log-ratio is given to the bit."""
    x = torch.tensor([[log_ratio]], dtype=dtype)
    return Case(x, torch.zeros_like(x), torch.tensor([advantage], dtype=dtype), torch.ones(1, 1, dtype=torch.bool))


def run(name: str, case: Case, params: Any = None, **extra: Tensor) -> Result:
    """One algorithm on one case; the sampler is the old policy unless `extra` says otherwise."""
    algorithm, groups_B = ALGORITHMS[name], case.groups_B
    if groups_B is None:
        groups_B = torch.zeros(len(case.mask_BT), dtype=torch.int64)
    log_probs_BT = case.log_probs_BT.detach().clone().requires_grad_()
    output = loss_from_tensors(
        algorithm, log_probs_BT, case.old_BT, case.advantages, case.mask_BT, params or algorithm.Params(),
        **{"groups_B": groups_B, "sampler_log_probs_BT": case.old_BT} | extra,
    )  # fmt: skip
    objective = -output.loss_numerator / output.denominator
    (gradient_BT,) = torch.autograd.grad(objective, log_probs_BT)
    return Result(objective.detach(), gradient_BT, output)


def with_band(name: str, band: Clip, **more: Any) -> Any:
    """An algorithm's parameters at this clip range."""
    return ALGORITHMS[name].Params(clip=band, **more)


def fraction(result: Result, metric: str) -> float:
    """A metric's value."""
    mean = result.output.metrics[metric]
    assert isinstance(mean, Mean)
    return float(mean.numerator) / float(mean.denominator)


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Equal within a relative and absolute tolerance."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
