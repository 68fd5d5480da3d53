"""What a reader of the numbers of one batch must know."""

from __future__ import annotations

from gspo_cli.report.batch_gradients import SKETCH
from gspo_cli.report.batch_measure import Measured
from gspo_cli.report.batch_noise import DRAWS, MIN_GROUPS

FAR = 0.05
"""Nats (root mean square over tokens) by which sampler and trainer may differ before it is said."""


def notes(measured: Measured) -> list[str]:
    """One sentence or two each."""
    batch, lines = measured.batch, []
    if measured.later is None:
        lines.append(
            "On policy: without --against, l and o are of the same model, so every ratio is 1 and no clip can act."
        )
    if measured.mismatch > FAR:
        lines.append(
            f"The sampler's log-probabilities differ from the model's by {measured.mismatch:.3g} nat (root mean square "
            "over tokens): was it really this policy that sampled?"
        )
    limit, known = batch.max_length
    lines += [
        "Published settings; dr_grpo and minirl take r - mean as advantage, all others (r - mean) / std of the group.",
        "ppo has no critic here and takes the group advantage. dapo is its loss alone, without dynamic sampling and "
        "without the rules for overlong responses.",
        f"dr_grpo divides by the generation limit, {limit} tokens "
        + ("(known from responses that it ended)." if known else "(at least: the longest response; none was cut off)."),
        "The whole batch is one mini-batch.",
    ]
    scored = [r.reward for r in batch.responses if r.reward is not None]
    if len(scored) < len(batch.responses):
        lines.append(f"{len(batch.responses) - len(scored)} responses are unscored and left out of every mean.")
    flat = flat_groups(measured)
    if flat:
        lines.append(f"{flat} of {batch.num_groups} groups have equal rewards: advantage 0, counted in means.")
    lines.append(
        "|w| = |dJ/dl| of tokens with an advantage over its mean; cv = its spread within a response; n_eff = "
        "(sum |w|)^2 / sum w^2; noise = variance of the gradient over its squared norm; noise scale = groups at which "
        "both are equal, n/a where the batch does not tell the gradient from noise."
    )
    lines.append(
        f"Gradient noise: {DRAWS} bootstrap draws of whole groups, gradients of groups as random sketches of {SKETCH} "
        "numbers; norms and cosines are exact."
        + (f" No noise scale below {MIN_GROUPS} groups." if batch.num_groups < MIN_GROUPS else "")
    )
    return lines


def flat_groups(measured: Measured) -> int:
    """Groups all of whose advantages are 0."""
    advantages_B = measured.losses["reinforce"].advantages_B
    return sum(not advantages_B[measured.batch.of_group(group)].any() for group in range(measured.batch.num_groups))
