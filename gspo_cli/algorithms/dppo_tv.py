"""DPPO with the binary total variation: bounded is how far a token's probability moves, not by which factor.

J = 1/T sum_i sum_t M_it sg[min(w_it, cap)] A_i l_it
M_it = 0 where A_i > 0 and p - q > delta_high, or A_i < 0 and q - p > delta_low             arXiv 2602.04879, Eq. 13

p = the token's probability now, q = under the policy that sampled.

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import trust_region_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_tokens
PRESET = {"old_log_probs": "sampler"}
"""§5.2: distances are taken from the policy that sampled."""
SUMMARY = Summary(
    ratio="token w; weight <= {cap}",
    positive="p - q <= {delta_high}",
    negative="q - p <= {delta_low}",
    default_of="prime-rl (r - mean, delta 0.2, and the pull of ipo)",
)


@dataclass(frozen=True)
class Params:
    """The threshold of the authors' example in verl (examples/dppo_trainer); prime-rl and SkyRL have 0.2."""

    delta_low: float = 0.15
    delta_high: float = 0.15
    """How far a probability may fall for A < 0, and rise for A > 0."""
    cap: float = 20.0
    """Largest weight (§5.4, verl)."""

    def __post_init__(self) -> None:
        if not (0 < self.delta_low < 1 and 0 < self.delta_high < 1):
            raise ValueError("delta_low and delta_high must lie between 0 and 1 (they are changes of a probability)")
        ops.check_cap(self.cap)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                   arXiv 2602.04879, Eq. 13

    Differs from the paper: weights are capped, as in verl. The loss value depends on l and means nothing.
    """
    mask_BT = inputs.mask_BT
    now_BT, old_BT = (ops.log_probability(x, mask_BT).exp() for x in (inputs.log_probs_BT, inputs.old_log_probs_BT))
    return trust_region_loss(now_BT - old_BT, inputs, params, denominator(mask_BT, params))
