"""REINFORCE with a group baseline: no ratio, no clip; everyone's gradient as long as the policy has not moved.

J = 1/N sum_i 1/|y_i| sum_t A_i l_it                             Williams 1992, Eq. 11, with the mean over each response

B = responses, T = token positions
"""

from dataclasses import dataclass
from typing import Any

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.contract import LossInputs, LossOutput
from gspo_cli.algorithms.correction import MASKS
from gspo_cli.errors import GspoError

UNIT = "token"
REDUCTION = "seq-mean-token-mean"
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses
PRESET = {"minibatches": 1}
"""It has nothing against stale data, so a rollout batch is one optimizer step."""
HAS_RATIO = False


@dataclass(frozen=True)
class Params:
    """Nothing to set but the consent to more than one optimizer step a rollout batch."""

    allow_stale: bool = False


def check(recipe: Any, params: Params) -> None:
    """Refuses stale data, unless `allow_stale` asks for it.

    Errors: GspoError.
    """
    if params.allow_stale:
        return
    if recipe.minibatches > 1:
        raise GspoError(
            f"{recipe.algo.name} with {recipe.minibatches} mini-batches per rollout batch",
            "it has no ratio, so every update after the first would use stale data as if it were fresh",
            "algo.minibatches = 1, or algo.allow_stale = true to study just that",
        )
    if recipe.rollout.max_lag > 0 and recipe.algo.correction.kind in MASKS:
        raise GspoError(
            f"{recipe.algo.name} with rollout.max_lag = {recipe.rollout.max_lag}",
            "it has no ratio, so responses of older weights would count as if the policy had just drawn them",
            "algo.correction = { kind = 'tis' }, or algo.allow_stale = true to study just that",
        )


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                  arXiv 2402.03300, Eq. 21

    Differs from the paper: the mean over each response, as in GRPO. The loss value depends on l and means nothing.
    """
    mask_BT, scale = inputs.mask_BT, ops.weighted_advantages(inputs)
    return LossOutput(
        loss_numerator=-ops.sum_of_token_means(ops.score_terms(scale, inputs.log_probs_BT, mask_BT), mask_BT),
        denominator=denominator(mask_BT, params),
        gradient_weight_BT=ops.token_shares(scale, mask_BT),
        clipped_BT=None,
    )
