"""GRPO: every token has its own importance ratio and its own clip.

J = 1/N sum_i 1/|y_i| sum_t min(w_it A_i, clip(w_it) A_i)             arXiv 2402.03300, Eq. 3; 2507.18071, Eq. 2

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput

UNIT = "token"
REDUCTION = "seq-mean-token-mean"
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses


@dataclass(frozen=True)
class Params:
    """The GSPO paper's tuned baseline (arXiv 2507.18071, §5.1); its Routing Replay is a recipe's choice."""

    clip: Clip = Clip(low=0.2, high=0.27)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2507.18071, Eq. 2

    Differs from the paper: clipped in log space; the KL term is a separate modifier (0 by default).
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_token_means, denominator(inputs.mask_BT, params))
