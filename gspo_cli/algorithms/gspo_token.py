"""GSPO-token: the ratio of the sequence, the gradient of the token, so that tokens may have advantages of their own.

J = 1/N sum_i 1/|y_i| sum_t min(s_it A_it, clip(s_it) A_it),  s_it = sg[s_i] pi_it / sg[pi_it]   2507.18071, Eq. 13-14

B = responses, T = token positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gspo_cli.algorithms.contract import Clip, LossInputs, LossOutput
from gspo_cli.algorithms.metrics import clipped_output
from gspo_cli.algorithms.ops import (
    clipped_surrogate,
    group_advantage,
    num_responses,
    per_token,
    sequence_token_log_ratio,
    sum_of_token_means,
    token_shares,
)

UNIT: Literal["token", "sequence"] = "sequence"
REDUCTION = "seq-mean-token-mean"
token_terms = sum_of_token_means


@dataclass(frozen=True)
class Params:
    """As GSPO (arXiv 2507.18071, §5.1)."""

    clip: Clip = Clip(low=3e-4, high=4e-4)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The group z-score: see `group_advantage`."""
    return group_advantage(rewards_B, groups_B)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """N, the number of responses."""
    return num_responses(mask_BT)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                   arXiv 2507.18071, Eq. 13

    Differs from the paper: clipped in log space. Equals GSPO in value, clip and gradient where A_it = A_i.
    """
    mask_BT = inputs.mask_BT
    log_ratio = sequence_token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    advantages = per_token(inputs.advantages)
    surrogate = clipped_surrogate(log_ratio, advantages, params.clip, params.dual_clip, inputs.weights)
    return clipped_output(
        surrogate, log_ratio, inputs, params.clip.log_bounds,
        objective=sum_of_token_means(surrogate.value, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=token_shares(surrogate.weight, mask_BT),
    )  # fmt: skip
