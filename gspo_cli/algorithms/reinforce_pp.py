"""REINFORCE++: advantages that are whitened over the tokens of the whole rollout batch, not of a group.

J = 1/T sum_i sum_t min(w_it A_i, clip(w_it) A_i),  A = (r - mean of the group) whitened                arXiv 2501.03262

B = responses, T = token positions
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
denominator = ops.num_tokens
WHITEN = True
SUMMARY = Summary(advantage="r - mean, whitened over the batch")


@dataclass(frozen=True)
class Params:
    """PPO's clip. The paper's KL in the reward (without groups: k1, with groups: k2) is `algo.kl` here."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None
    group_baseline: bool = True
    """The variant called REINFORCE++-baseline in the paper; without it, rewards alone are whitened."""


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """r - mean of the group, or r itself without `group_baseline`; the run whitens it (`WHITEN`)."""
    if params.group_baseline:
        return ops.group_advantage(rewards_B, groups_B, scale=False)
    return torch.where(rewards_B.isnan(), 0.0, rewards_B).float()


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                           arXiv 2501.03262

    Differs from the paper: clipped in log space; the KL term is a separate modifier (0 by default).
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
