"""GSPO: a response has one importance ratio, and is clipped as a whole.

J = 1/N sum_i min(s_i A_i, clip(s_i) A_i),  s_i = (pi(y_i) / pi_old(y_i)) ^ (1/|y_i|)       arXiv 2507.18071, Eq. 5, 7

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput

UNIT = "sequence"
REDUCTION = "seq-mean"
ONE_ADVANTAGE = True
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses


@dataclass(frozen=True)
class Params:
    """The paper's setting (arXiv 2507.18071, §5.1), with 4 mini-batches a rollout batch and no KL."""

    clip: Clip = Clip(low=3e-4, high=4e-4)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2507.18071, Eq. 5

    Shapes: advantages [B].
    Differs from the paper: clipped in log space.
    """
    log_ratio = ops.sequence_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_sequences, denominator(inputs.mask_BT, params))
