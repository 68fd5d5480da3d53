"""DPPO with the binary KL divergence: a token is bounded by how far its probability moves, in nats.

J = 1/T sum_i sum_t M_it sg[min(w_it, cap)] A_i l_it
M_it = 0 where KL(Bernoulli(q) || Bernoulli(p)) > delta, and p > q for A_i > 0 or p < q for A_i < 0
                                                                                                arXiv 2602.04879, Eq. 14

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
EPS = 1e-8
"""Added to 1 - p and 1 - q, as in verl and SkyRL: a token that became certain has a finite divergence."""
SUMMARY = Summary(
    ratio="token w; weight <= {cap}",
    positive="KL(q || p) <= {delta_high} if p > q",
    negative="KL(q || p) <= {delta_low} if p < q",
)


@dataclass(frozen=True)
class Params:
    """The threshold of the authors' example in verl (examples/dppo_trainer), which SkyRL recommends, too."""

    delta_low: float = 0.05
    delta_high: float = 0.05
    """Largest divergence for A < 0, and for A > 0; in nats."""
    cap: float = 20.0
    """Largest weight (§5.4, verl)."""

    def __post_init__(self) -> None:
        if min(self.delta_low, self.delta_high) <= 0:
            raise ValueError("delta_low and delta_high must be positive (they are divergences in nats)")
        ops.check_cap(self.cap)


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                   arXiv 2602.04879, Eq. 14

    Differs from the paper: weights are capped, as in verl. The loss value depends on l and means nothing.
    """
    mask_BT = inputs.mask_BT
    now_BT, old_BT = (ops.log_probability(x, mask_BT) for x in (inputs.log_probs_BT, inputs.old_log_probs_BT))
    p_BT, q_BT = now_BT.exp(), old_BT.exp()
    kl_BT = q_BT * (old_BT - now_BT) + (1 - q_BT) * ((1 - q_BT + EPS) / (1 - p_BT + EPS)).log()
    return trust_region_loss((p_BT - q_BT).sign() * kl_BT, inputs, params, denominator(mask_BT, params))
