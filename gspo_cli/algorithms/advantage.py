"""Group advantages.

B = responses of a rollout batch
"""

import torch
from torch import Tensor

ZERO_SPREAD = 1e-9  # relative to the largest reward: a narrower group carries rounding, not signal


def group_advantage(rewards_B: Tensor, groups_B: Tensor, scale: bool = True) -> Tensor:
    """A_i = (r_i - mean) / std over the response's group.                     arXiv 2402.03300 §4.1; 2507.18071, Eq. 3

    Shapes: rewards float [B], NaN for a response that could not be scored; groups int64 [B], 0..number of groups - 1
        -> float32 [B]. `scale=False` gives r_i - mean (arXiv 2503.20783).
    Differs from the paper: it does not name the kind of standard deviation; this is the sample's (n - 1), two-pass in
        float64, without the usual epsilon. A group without spread gets exactly 0 instead of a rounding error divided by
        another one. Unscored responses leave mean and deviation and get 0, and so does a group with fewer than two
        scored ones.
    """
    scored_B = ~rewards_B.isnan()
    rewards_B = torch.where(scored_B, rewards_B.double(), 0.0)
    num_groups = int(groups_B.max()) + 1

    def group_sum(values_B: Tensor) -> Tensor:
        return torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups_B, values_B.double())

    counts = group_sum(scored_B)
    centred_B = torch.where(scored_B, rewards_B - (group_sum(rewards_B) / counts.clamp(min=1))[groups_B], 0.0)
    std = (group_sum(centred_B.square()) / (counts - 1).clamp(min=1)).sqrt()
    has_signal_B = scored_B & with_spread(rewards_B, scored_B, groups_B, num_groups)[groups_B]
    advantages_B = torch.where(has_signal_B, centred_B / std[groups_B] if scale else centred_B, 0.0)
    return advantages_B.float()


def with_spread(rewards_B: Tensor, scored_B: Tensor, groups_B: Tensor, num_groups: int) -> Tensor:
    """Whether each group has at least two scored responses with different rewards: bool [number of groups]."""
    lowest, highest = torch.full((2, num_groups), float("inf"), dtype=torch.float64)
    highest = -highest
    lowest = lowest.scatter_reduce(0, groups_B, torch.where(scored_B, rewards_B.double(), float("inf")), "amin")
    highest = highest.scatter_reduce(0, groups_B, torch.where(scored_B, rewards_B.double(), -float("inf")), "amax")
    largest = torch.maximum(lowest.abs(), highest.abs()).clamp(min=1.0)
    return torch.gt(highest - lowest, ZERO_SPREAD * largest)
