"""What is checked on the first rollout batch, before any update: that both sides compute the same thing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from gspo_cli.algorithms.ratio import sequence_log_ratio, token_log_ratio
from gspo_cli.errors import GspoError
from gspo_cli.moe.tap import tapped
from gspo_cli.training.routes import record_to_replay, routed
from gspo_cli.training.update import Learner, log_bounds, scored
from gspo_cli.types import MiniBatch, Reduced, RolloutBatch, RootMean

TOKEN_TOLERANCE = 0.1  # nats of RMS difference a token: far beyond rounding, typical of a temperature on one side only


@dataclass
class Findings:
    """What the checks measured and what they object to."""

    metrics: dict[str, Reduced] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@torch.no_grad()
def preflight(
    learner: Learner, batch: RolloutBatch, mini_batches: list[MiniBatch], stop_ids: tuple[int, ...]
) -> Findings:
    """Scores the first mini-batch twice and compares: trainer with itself, trainer with engine, EOS, band.

    Errors: GspoError when the engine's log-probabilities are to be the old ones and differ from the trainer's by more
    than the clip range.
    """
    found = Findings()
    check_ends(batch, stop_ids, found)
    band = narrow_edge(learner.params)
    if band is not None and len(mini_batches) == 1:
        found.warnings.append("one mini-batch a rollout batch: every ratio is 1, so nothing will ever be clipped")
    if learner.algo.replay == "r2" and len(mini_batches) == 1:
        found.warnings.append("replay = r2 with one mini-batch a rollout batch replays nothing: no update is stale")
    micro_batches = mini_batches[0].micro_batches
    if not micro_batches:
        return found
    again = squares = tokens_squared = k1 = k3 = torch.zeros((), dtype=torch.float64)
    rows = tokens = 0
    for micro in micro_batches:
        with tapped(learner.routing) as tap, routed(tap, micro, record_to_replay(learner.algo, micro)):
            first, second = (scored(learner.model, micro, learner.temperature).log_probs_BT for _ in range(2))
        if micro.filler:
            continue
        sampled_BT = micro.sampler_log_probs_BT
        again = again + sequence_log_ratio(second, first, micro.mask_BT).double().cpu().square().sum()
        squares = squares + sequence_log_ratio(first, sampled_BT, micro.mask_BT).double().cpu().square().sum()
        gap_N = token_log_ratio(first, sampled_BT, micro.mask_BT)[micro.mask_BT].double().cpu()
        tokens_squared = tokens_squared + gap_N.square().sum()
        k1, k3 = k1 - gap_N.sum(), k3 + (gap_N.expm1() - gap_N).sum()
        rows, tokens = rows + len(micro.mask_BT), tokens + int(micro.mask_BT.sum())
    sums = [float(x) for x in (again, squares, tokens_squared, k1, k3, rows, tokens)]
    again_sum, squares_sum, tokens_sum, k1_sum, k3_sum, num_rows, num_tokens = learner.ranks.total(sums)
    found.metrics["mismatch/self_floor"] = RootMean(torch.tensor(again_sum, dtype=torch.float64), int(num_rows))
    found.values = {
        "self_floor": math.sqrt(again_sum / num_rows),
        "floor": math.sqrt(squares_sum / num_rows),
        "token_floor": math.sqrt(tokens_sum / num_tokens),
        "kl_k1": k1_sum / num_tokens,
        "kl_k3": k3_sum / num_tokens,
    } | ({"band": band} if band else {})
    judge(learner, found, band)
    return found


def judge(learner: Learner, found: Findings, band: float | None) -> None:
    """Turns the measured floors into warnings, or into a refusal."""
    floor, token_floor, self_floor = (found.values[k] for k in ("floor", "token_floor", "self_floor"))
    if token_floor > TOKEN_TOLERANCE:
        found.warnings.append(
            f"engine and trainer differ by {token_floor:.2g} nats a token (RMS): is the temperature "
            f"({learner.temperature}) applied on both sides?"
        )
    if band is None:
        return
    if self_floor > band / 10:
        found.warnings.append(
            f"two passes of the trainer differ by {self_floor:.2g} nats, over a tenth of the clip range"
        )
    if learner.algo.old_log_probs == "sampler" and floor > band and not learner.algo.accept_mismatch_floor:
        raise GspoError(
            f"the engine's log-probabilities cannot stand for the old policy's with {learner.algo.name}",
            f"without any update they differ from the trainer's by {floor:.2g} nats a response (RMS), and the clip "
            f"range ends at {band:.2g}",
            "old_log_probs = 'trainer', or algo.accept_mismatch_floor = true to study just that",
        )
    if floor > band / 10:
        found.warnings.append(f"engine and trainer differ by {floor / band:.2g} times the clip range's nearer edge")


def narrow_edge(params: Any) -> float | None:
    """The distance from 0 of the nearer edge of the clip range, in nats; None without a hard clip."""
    bounds = log_bounds(params)
    return min(-bounds[0], bounds[1]) if bounds is not None else None


def check_ends(batch: RolloutBatch, stop_ids: tuple[int, ...], found: Findings) -> None:
    """A response that stopped holds its EOS as its last token, and one that was cut off has the full length."""
    samples = [s for g in batch.groups for s in g.samples]
    wrong = [
        s for s in samples
        if (s.finish == "stop") != (s.token_ids[-1] in stop_ids)
        or (s.finish == "length" and len(s.token_ids) != batch.max_new_tokens)
    ]  # fmt: skip
    if wrong:
        found.warnings.append(f"{len(wrong)} of {len(samples)} responses do not end as they say: EOS may be missing")
