"""RLOO: each response is compared with the mean of the others to the same prompt.

J = 1/T sum_i sum_t min(w_it A_i, clip(w_it) A_i),  A_i = r_i - mean of the others                      arXiv 2402.14740

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
SUMMARY = Summary(advantage="r - mean of the others")


@dataclass(frozen=True)
class Params:
    """The clip of verl, whose `rloo` this is; the paper makes one step per batch and clips nothing."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """r - mean of the group's other responses, which is G / (G - 1) (r - mean).     arXiv 2402.14740"""
    return ops.group_advantage(rewards_B, groups_B, scale="others")


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                           arXiv 2402.14740

    Differs from the paper: clipped (in log space), and a mean over all tokens in place of each response's sum, as in
        verl. With `minibatches = 1` no ratio leaves 1 and nothing is clipped.
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
