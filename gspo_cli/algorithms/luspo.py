"""LUSPO: GSPO without its length normalisation of the objective.

J = 1/N sum_i |y_i| min(s_i A_i, clip(s_i) A_i)                                                       arXiv 2602.05261

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput

UNIT = "sequence"
ONE_ADVANTAGE = True
REDUCTION = "seq-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_responses


@dataclass(frozen=True)
class Params:
    """The published setting (arXiv 2602.05261)."""

    clip: Clip = Clip(low=2e-3, high=2.5e-3)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                          arXiv 2602.05261, its objective

    Shapes: advantages [B].
    Differs from the paper: clipped in log space. The gradient norm is about |y| times GSPO's, so a
        fixed gradient clip is always active.
    """
    log_ratio = ops.sequence_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
