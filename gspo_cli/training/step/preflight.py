"""Check the first rollout batch before any update: do engine and trainer compute the same thing?

B = responses, T = token positions, N = loss tokens
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from gspo_cli.algorithms.ops import sequence_log_ratio, token_log_ratio
from gspo_cli.errors import GspoError
from gspo_cli.models.precision import compute_dtype, exactly
from gspo_cli.models.sharding import is_sharded
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.replay import record_to_replay, routed
from gspo_cli.training.step.update import Learner, log_bounds, scored
from gspo_cli.types import MiniBatch, Reduced, RolloutBatch, RootMean

TOKEN_TOLERANCE = 0.1
"""Nats of RMS difference per token: far beyond rounding."""


@dataclass
class PreflightReport:
    """What the checks measured, and what they warn of."""

    metrics: dict[str, Reduced] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@torch.no_grad()
def preflight(
    learner: Learner, batch: RolloutBatch, mini_batches: list[MiniBatch], stop_ids: tuple[int, ...]
) -> PreflightReport:
    """Scores the first mini-batch that has rows twice: trainer against itself and the engine, EOS, clip range.

    Errors: GspoError when the recipe takes the engine's log-probabilities as the old ones, and they differ from the
    trainer's by more than the clip range.
    """
    report, bounds = PreflightReport(), log_bounds(learner.params)
    band = min(-bounds[0], bounds[1]) if bounds is not None else None
    check_ends(batch, stop_ids, report)
    if band is not None and len(mini_batches) == 1:
        report.warnings.append("one mini-batch per rollout batch: every ratio is 1, so nothing will ever be clipped")
    if learner.algo.replay == "r2" and len(mini_batches) == 1:
        report.warnings.append("replay = r2 with one mini-batch per rollout batch replays nothing: no update is stale")
    micro_batches = next((part.micro_batches for part in mini_batches if part.micro_batches), None)
    if micro_batches is None:
        report.warnings.append("no response of the first rollout batch is trained on, so nothing could be compared")
        return report
    again = squares = tokens_squared = k1 = k3 = torch.zeros((), dtype=torch.float64, device=learner.model.device)
    rounded = tokens_rounded = again
    rows = tokens = 0
    half = compute_dtype(learner.model).itemsize <= 2 and not is_sharded(learner.model)
    for micro in micro_batches:
        with tapped(learner.routing) as tap, routed(tap, micro, record_to_replay(learner.algo, micro)):
            first, second = (scored(learner.model, micro, learner.temperature).log_probs_BT for _ in range(2))
            with exactly(learner.model) if half else nullcontext():
                exact = scored(learner.model, micro, learner.temperature).log_probs_BT if half else first
        if micro.filler:
            continue
        sampled_BT = micro.sampler_log_probs_BT
        again = again + sequence_log_ratio(second, first, micro.mask_BT).double().square().sum()
        rounded = rounded + sequence_log_ratio(first, exact, micro.mask_BT).double().square().sum()
        rounded_N = token_log_ratio(first, exact, micro.mask_BT).flatten()[micro.loss_M].double()
        tokens_rounded = tokens_rounded + rounded_N.square().sum()
        squares = squares + sequence_log_ratio(first, sampled_BT, micro.mask_BT).double().square().sum()
        gap_N = token_log_ratio(first, sampled_BT, micro.mask_BT).flatten()[micro.loss_M].double()
        tokens_squared = tokens_squared + gap_N.square().sum()
        k1, k3 = k1 - gap_N.sum(), k3 + (gap_N.expm1() - gap_N).sum()
        rows, tokens = rows + len(micro.mask_BT), tokens + micro.loss_M.numel()
    sums = [float(x) for x in (again, squares, rounded, rows, tokens_squared, tokens_rounded, k1, k3, tokens)]
    again_sum, squares_sum, rounded_sum, num_rows, *of_tokens, num_tokens = learner.ranks.all_sum(sums)
    tokens_sum, tokens_rounded_sum, k1_sum, k3_sum = of_tokens
    report.metrics["mismatch/self_floor"] = RootMean(torch.tensor(again_sum, dtype=torch.float64), int(num_rows))
    report.values = {
        "self_floor": math.sqrt(again_sum / num_rows),
        "floor": math.sqrt(squares_sum / num_rows),
        "token_floor": math.sqrt(tokens_sum / num_tokens),
        "kl_k1": k1_sum / num_tokens,
        "kl_k3": k3_sum / num_tokens,
    }
    report.values |= {"band": band} if band else {}
    if half:
        report.values["rounding"] = math.sqrt(rounded_sum / num_rows)
        report.values["token_rounding"] = math.sqrt(tokens_rounded_sum / num_tokens)
    if report.values["token_floor"] > TOKEN_TOLERANCE:
        report.warnings.append(
            f"engine and trainer differ by {report.values['token_floor']:.2g} nats per token (RMS): does the engine "
            f"run the same weights and the same code, at temperature {learner.temperature:g}?"
        )
    check_floors(learner, report, band)
    return report


def check_ends(batch: RolloutBatch, stop_ids: tuple[int, ...], report: PreflightReport) -> None:
    """A response that stopped ends with EOS; one that was cut off has the full length."""
    samples = [s for g in batch.groups for s in g.samples]
    wrong = [
        s for s in samples
        if (s.finish == "stop") != (s.token_ids[-1] in stop_ids)
        or (s.finish == "length" and len(s.token_ids) != batch.max_new_tokens)
    ]  # fmt: skip
    if wrong:
        report.warnings.append(f"{len(wrong)} of {len(samples)} responses do not end as they say: EOS may be missing")


def check_floors(learner: Learner, report: PreflightReport, band: float | None) -> None:
    """Warns of, or refuses, differences that were there without any update.

    `band` = distance from 0 of the clip range's nearer edge, in nats; None without a hard clip.
    """
    floor, self_floor = (report.values[k] for k in ("floor", "self_floor"))
    if band is None:
        return
    if self_floor > band / 10:
        report.warnings.append(
            f"two passes of the trainer differ by {self_floor:.2g} nats, over a tenth of the clip range"
        )
    if learner.algo.old_log_probs == "sampler" and floor > band and not learner.algo.accept_mismatch_floor:
        raise GspoError(
            f"the engine's log-probabilities cannot stand for the old policy's with {learner.algo.name}",
            f"without any update they differ from the trainer's by {floor:.2g} nats per response (RMS), and the clip "
            f"range ends at {band:.2g}",
            "old_log_probs = 'trainer', or algo.accept_mismatch_floor = true to study just that",
        )
    if floor > band / 10:
        why, dtype = "", str(compute_dtype(learner.model)).removeprefix("torch.")
        if rounding := report.values.get("rounding"):
            why = f"; rounding to {dtype} alone moves the trainer's by {rounding / band:.2g} times that"
        report.warnings.append(
            f"engine and trainer differ by {floor / band:.2g} times the clip range's nearer edge{why}"
        )
