"""MaxRL: rewards relative to the group's success rate, which makes the policy gradient one of the likelihood.

J = 1/T sum_i sum_t min(w_it A_i, clip(w_it) A_i),  A_i = (r_i - mean) / mean                          arXiv 2602.02710

B = responses, T = token positions
"""

from dataclasses import dataclass

from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
denominator = ops.num_tokens
SUMMARY = Summary(advantage="(r - mean) / mean")


@dataclass(frozen=True)
class Params:
    """The advantage is the paper's; the clip is PPO's, the default of SkyRL, which has it with any loss."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """(r - mean) / mean; 0 for a group whose mean is not positive.                                arXiv 2602.02710"""
    return ops.group_advantage(rewards_B, groups_B, scale="mean")


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                           arXiv 2602.02710

    Differs from the paper: clipped, in log space. Prime-rl combines the advantage with its DPPO loss.
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
