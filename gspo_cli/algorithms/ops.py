"""Operations that the algorithms share: reductions, importance ratios and group advantages.

Those that serve as an algorithm's `advantage` or `denominator` take its `params`, of which they read nothing.

B = responses, T = token positions
"""

from typing import Any, Literal

import torch
from torch import Tensor

from gspo_cli.algorithms.contract import LossInputs, LossOutput
from gspo_cli.types import Reduced


def num_responses(mask_BT: Tensor, params: Any = None) -> Tensor:
    """N, the number of responses: those with at least one loss token."""
    return mask_BT.any(-1).sum()


def num_tokens(mask_BT: Tensor, params: Any = None) -> Tensor:
    """T, the number of loss tokens."""
    return mask_BT.sum()


def sum_of_tokens(terms: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i sum_t x_it; over T this is `token-mean`, over N `seq-mean-token-sum`."""
    return torch.where(mask_BT, terms, 0.0).sum()


def sum_of_token_means(terms: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i 1/|y_i| sum_t x_it, for terms [B, T]; over N this is `seq-mean-token-mean`."""
    lengths_B = mask_BT.sum(-1).clamp(min=1)
    return (torch.where(mask_BT, terms, 0.0).sum(-1) / lengths_B).sum()


def sum_of_sequences(terms_B1: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i x_i over responses with at least one loss token, for terms [B, 1]; over N this is `seq-mean`."""
    return torch.where(mask_BT.any(-1, keepdim=True), terms_B1, 0.0).sum()


def token_shares(weight: Tensor, mask_BT: Tensor) -> Tensor:
    """weight / |y_i| at loss tokens, 0 elsewhere: [B, T]; how a per-response mean reaches each token's gradient."""
    return torch.where(mask_BT, weight / mask_BT.sum(-1, keepdim=True).clamp(min=1), 0.0)


def score_terms(weight: Tensor, log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """weight * l at loss tokens, 0 elsewhere: [B, T]; for algorithms whose gradient is a detached weight on grad l."""
    return torch.where(mask_BT, weight, 0.0) * torch.where(mask_BT, log_probs_BT, 0.0)


def score_loss(
    weight: Tensor,
    inputs: LossInputs,
    denominator: Tensor,
    clipped_BT: Tensor | None = None,
    metrics: dict[str, Reduced] | None = None,
) -> LossOutput:
    """-J = -sum_i sum_t weight l_it: the gradient is a detached weight on grad l, the value means nothing."""
    numerator = -sum_of_tokens(score_terms(weight, inputs.log_probs_BT, inputs.mask_BT), inputs.mask_BT)
    return LossOutput(numerator, denominator, torch.where(inputs.mask_BT, weight, 0.0), clipped_BT, metrics or {})


def per_token(advantages: Tensor) -> Tensor:
    """Advantages per response as a column [B, 1]; advantages per token unchanged, [B, T]."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


def weighted_advantages(inputs: LossInputs) -> Tensor:
    """Advantages times the sampler correction's weights, if there are any: [B, 1] or [B, T]."""
    advantages = per_token(inputs.advantages)
    return advantages if inputs.weights is None else advantages * per_token(inputs.weights)


SATURATION = 20.0  # a log-ratio beyond this is taken as the constant +-20: exp() stays finite, the gradient is 0


def saturate(log_ratio: Tensor) -> Tensor:
    """The log-ratio limited to +-20, with no gradient beyond."""
    return log_ratio.clamp(-SATURATION, SATURATION)


def token_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log w_it = l_it - o_it at loss tokens, 0 elsewhere: [B, T].                               arXiv 2507.18071, Eq. 2

    Errors: asserts float32 or better; 1 + 4e-4 is exactly 1 in half precision, so such a ratio never clips.
    """
    assert log_probs_BT.dtype in (torch.float32, torch.float64), "log-probabilities must be float32 or better"
    # NaN or infinity in padding survives a product with 0, in value and in gradient: select first, then subtract
    return torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)


def sequence_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log s_i = 1/|y_i| * sum_t (l_it - o_it): [B, 1]; 0 for a response without tokens.      arXiv 2507.18071, Eq. 7"""
    log_ratio_BT = token_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)
    return log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def sequence_token_log_ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log s_it = (l_it - sg[l_it]) + sg[log s_i]: [B, T].                                      arXiv 2507.18071, Eq. 14

    Its value is the sequence's log-ratio to the bit, its gradient the token's.
    """
    log_s_B1 = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT).detach()
    log_probs_BT = torch.where(mask_BT, log_probs_BT, 0.0)
    # in this order: (sg[log s] + l) - sg[l] would lose the digits that decide a clip
    return (log_probs_BT - log_probs_BT.detach()) + log_s_B1


def log_probability(log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Log-probabilities, 0 outside the mask, detached: [B, T].

    Recorded ones can exceed 0 where a recipe puts noise on them; a probability does not exceed 1.
    """
    return torch.where(mask_BT, log_probs_BT.detach(), 0.0).clamp(max=0.0)


def check_cap(cap: float) -> None:
    """Errors: ValueError for a largest weight below 1."""
    if cap < 1:
        raise ValueError("cap must be at least 1 (it bounds the weight itself, not its distance from 1)")


def capped_weight(log_ratio: Tensor, cap: float) -> Tensor:
    """sg[min(x, cap)]: bounds a token's influence without dropping the token."""
    return saturate(log_ratio).exp().clamp(max=cap).detach()


ZERO_SPREAD = 1e-9  # relative to the largest reward: a narrower group carries rounding, not signal


def group_advantage(
    rewards_B: Tensor, groups_B: Tensor, params: Any = None, *, scale: bool | Literal["mean", "others"] = True
) -> Tensor:
    """A_i = (r_i - mean) / std over the response's group.                     arXiv 2402.03300 §4.1; 2507.18071, Eq. 3

    Shapes: rewards float [B], NaN for a response that could not be scored; groups int64 [B], 0..number of groups - 1
        -> float32 [B]. `scale=False` gives r_i - mean (arXiv 2503.20783), "others" r_i - mean of the others
        (2402.14740), "mean" (r_i - mean) / mean and 0 where the mean is not positive (2602.02710).
    Differs from the paper: it does not say which standard deviation; this is the sample's (n - 1), two-pass in float64,
        without the usual epsilon. A group without spread gets exactly 0 instead of one rounding error divided by
        another. Unscored responses are left out of mean and deviation and get 0, as does a group with fewer than two
        scored ones.
    """
    scored_B = ~rewards_B.isnan()
    rewards_B = torch.where(scored_B, rewards_B.double(), 0.0)
    num_groups = int(groups_B.max()) + 1

    def group_sum(values_B: Tensor) -> Tensor:
        return torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups_B, values_B.double())

    counts = group_sum(scored_B)
    mean = group_sum(rewards_B) / counts.clamp(min=1)
    centred_B = torch.where(scored_B, rewards_B - mean[groups_B], 0.0)
    signal = with_spread(rewards_B, scored_B, groups_B, num_groups)
    if scale == "mean":
        divisor, signal = mean, signal & (mean > 0)
    elif scale == "others":
        divisor = (counts - 1) / counts
    else:
        std = (group_sum(centred_B.square()) / (counts - 1).clamp(min=1)).sqrt()
        divisor = std if scale else torch.ones_like(mean)
    return torch.where(scored_B & signal[groups_B], centred_B / divisor[groups_B], 0.0).float()


def with_spread(rewards_B: Tensor, scored_B: Tensor, groups_B: Tensor, num_groups: int) -> Tensor:
    """Whether each group has at least two scored responses with different rewards: bool [number of groups]."""
    inf = float("inf")
    lowest, highest = (torch.full((num_groups,), limit, dtype=torch.float64) for limit in (inf, -inf))
    lowest = lowest.scatter_reduce(0, groups_B, torch.where(scored_B, rewards_B.double(), inf), "amin")
    highest = highest.scatter_reduce(0, groups_B, torch.where(scored_B, rewards_B.double(), -inf), "amax")
    largest = torch.maximum(lowest.abs(), highest.abs()).clamp(min=1.0)
    return torch.gt(highest - lowest, ZERO_SPREAD * largest)
