"""Whether a short run's rewards carried a signal, in plain sentences: for a first try, with nothing to compare."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from gspo_cli.report.runs.reader import LogReader

NEEDED = 2
"""Fewest batches in each half for a standard error of their difference."""


def describe_signal(run: Path, num_groups: int) -> list[str]:
    """What a run's log says: groups with a signal, truncated responses, and whether its reward moved.

    `num_groups` = groups of a rollout batch. Errors: GspoError (exit code STORAGE) for a log that is not whole.
    """
    reader = LogReader(run / "metrics.jsonl")
    lines = [record for block in reader.blocks() for record in reader.parse(block) if record["kind"] == "rollout"]
    reader.refuse_damaged()
    return signal_sentences([line["metrics"] for line in lines], num_groups)


def signal_sentences(batches: Sequence[dict[str, float | None]], num_groups: int) -> list[str]:
    """The same from the metrics of each rollout batch."""
    if not batches:
        return ["no rollout batch was finished, so there is nothing to say about a signal"]
    rewards = [value for batch in batches if (value := batch.get("reward/mean")) is not None]
    flat = statistics.fmean(batch.get("group/zero_std_frac") or 0.0 for batch in batches)
    cut = statistics.fmean(batch.get("length/truncated_frac") or 0.0 for batch in batches)
    total = num_groups * len(batches)
    moving = round((1 - flat) * total)
    sentences = []
    if moving == 0:
        same = f"reward {rewards[0]:.3g}" if rewards and len(set(rewards)) == 1 else "the same reward"
        sentences.append(
            f"no signal: in all {total} groups every response got {same}, so no update moved the weights; "
            "make the problems easier or harder, or add a reward that some responses earn"
        )
    else:
        sentences.append(
            f"signal: in {moving} of {total} groups the rewards differed; the others cannot move the weights"
        )
    if cut >= 0.25:
        sentences.append(f"{cut:.0%} of the responses were cut at the length limit: raise rollout.max_new_tokens")
    if moving:
        sentences.append(reward_sentence(rewards))
    return sentences


def reward_sentence(rewards: Sequence[float]) -> str:
    """Whether the mean of the second half of the batches stands out from that of the first.

    Welch's standard error over batches, doubled; batches share their weights' history, so this is a rough guide.
    """
    half = len(rewards) // 2
    if half < NEEDED:
        batches = "1 batch is" if len(rewards) == 1 else f"{len(rewards)} batches are"
        return f"{batches} too few to say whether the reward moved"
    early, late = rewards[:half], rewards[-half:]
    change = statistics.fmean(late) - statistics.fmean(early)
    noise = 2 * math.sqrt((statistics.variance(early) + statistics.variance(late)) / half)
    halves = (
        f"from {statistics.fmean(early):.3f} in the first {half} batches to {statistics.fmean(late):.3f} in the last"
    )
    if abs(change) > noise > 0:
        return f"the reward moved {halves}; one run cannot say why: train several seeds and compare"
    return f"the reward went {halves} (noise: {noise:.3f}); that is no evidence of learning"
