"""DAPO: GRPO with a higher upper clip and one mean over all tokens.

J = 1/T sum_i sum_t min(w_it A_i, clip(w_it) A_i)                                       arXiv 2503.14476, Eq. 8

B = responses, T = token positions
"""

from dataclasses import dataclass

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "token"
REDUCTION = "token-mean"
token_terms = ops.sum_of_tokens
advantage = ops.group_advantage
denominator = ops.num_tokens
PRESET = {"dynamic_sampling": True, "truncation": "mask", "overlong_cache_frac": 0.2}
"""§3.2 (drop groups without spread, sample on), §3.4 (overlong filter; penalty over the last fifth of the length)."""
SUMMARY = Summary(default_of="TRL, SkyRL (both clip 0.2 / 0.2)")


@dataclass(frozen=True)
class Params:
    """Clip-Higher (arXiv 2503.14476, §3.1); published with 16 optimizer steps a rollout batch."""

    clip: Clip = Clip(low=0.2, high=0.28)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 2503.14476, Eq. 8

    Differs from the paper: clipped in log space; the paper's dynamic sampling, overlong filter and penalty are
        general `[algo]` keys that `PRESET` switches on.
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_tokens, denominator(inputs.mask_BT, params))
