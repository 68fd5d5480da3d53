"""GSPO-token: the ratio of the sequence, the gradient of the token, so that tokens may have advantages of their own.

J = 1/N sum_i 1/|y_i| sum_t min(s_it A_it, clip(s_it) A_it),  s_it = sg[s_i] pi_it / sg[pi_it]   2507.18071, Eq. 13-14

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "sequence"
REDUCTION = "seq-mean-token-mean"
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses
SUMMARY = Summary(ratio="sequence s, gradient per token")


@dataclass(frozen=True)
class Params:
    """As GSPO (arXiv 2507.18071, §5.1)."""

    clip: Clip = Clip(low=3e-4, high=4e-4)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                   arXiv 2507.18071, Eq. 13

    Differs from the paper: clipped in log space. Equals GSPO in value, clip and gradient where A_it = A_i.
    """
    log_ratio = ops.sequence_token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_token_means, denominator(inputs.mask_BT, params))
