"""GRPO: every token has its own importance ratio and its own clip.

J = 1/N sum_i 1/|y_i| sum_t min(w_it A_i, clip(w_it) A_i)             arXiv 2402.03300, Eq. 3; 2507.18071, Eq. 2

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
    sum_of_token_means,
    token_log_ratio,
    token_shares,
)

UNIT: Literal["token", "sequence"] = "token"
REDUCTION = "seq-mean-token-mean"
token_terms = sum_of_token_means


@dataclass(frozen=True)
class Params:
    """The GSPO paper's tuned baseline (arXiv 2507.18071, §5.1); its Routing Replay is a recipe's choice."""

    clip: Clip = Clip(low=0.2, high=0.27)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The group z-score: see `group_advantage`."""
    return group_advantage(rewards_B, groups_B)


def denominator(mask_BT: Tensor, params: Params) -> Tensor:
    """N, the number of responses."""
    return num_responses(mask_BT)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2507.18071, Eq. 2

    Differs from the paper: clipped in log space; the KL term is a separate modifier (0 by default).
    """
    mask_BT = inputs.mask_BT
    log_ratio = token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, mask_BT)
    advantages = per_token(inputs.advantages)
    surrogate = clipped_surrogate(log_ratio, advantages, params.clip, params.dual_clip, inputs.weights)
    return clipped_output(
        surrogate, log_ratio, inputs, params.clip.log_bounds,
        objective=sum_of_token_means(surrogate.value, mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=token_shares(surrogate.weight, mask_BT),
    )  # fmt: skip
