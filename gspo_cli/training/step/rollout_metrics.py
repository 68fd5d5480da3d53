"""Metrics of a rollout batch: rewards, groups and lengths, and how engine and trainer differ.

B = responses, G = groups, N = loss tokens, T = token positions
"""

from dataclasses import replace

import torch
from torch import Tensor

from gspo_cli.algorithms.metrics import spread
from gspo_cli.algorithms.ops import with_spread
from gspo_cli.moe.replay import sampler_route_metrics
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.runlog.schema import PART
from gspo_cli.training.step.batches import rewards_and_groups
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.update import Learner, log_bounds
from gspo_cli.types import Extreme, Mean, MiniBatch, Reduced, RolloutBatch, RootMean

AS_LAG = {
    "kl/sampler_trainer_k1": "lag/kl_k1",
    "kl/sampler_trainer_k3": "lag/kl_k3",
    "mismatch/token_floor": "lag/token_gap",
    "mismatch/floor": "lag/seq_gap",
    "mismatch/floor_mean": "lag/seq_gap_mean",
    "mismatch/floor_of_band": "lag/seq_gap_of_band",
    "mismatch/outside_band_frac": "lag/outside_band_frac",
}
"""The mismatch metrics on a batch that older weights sampled: there the policy's own movement is in them."""


def rollout_metrics(batch: RolloutBatch, advantages_B: Tensor, dynamic_sampling: bool = False) -> dict[str, Reduced]:
    """The reward/*, group/*, adv/* and length/* metrics.

    `reward/mean` counts the groups that dynamic sampling put aside, too. Without them it would say how hard the kept
    prompts are, not how good the policy is, and no other arm could be compared with it.
    """
    rewards_B, groups_B = rewards_and_groups(batch)
    known_B = rewards_B[~rewards_B.isnan()]
    aside_B, _ = rewards_and_groups(replace(batch, groups=batch.dropped))
    sampled_B = torch.cat([known_B, aside_B[~aside_B.isnan()]])
    samples = [s for g in batch.groups for s in g.samples]
    length_B = torch.tensor([len(s.token_ids) for s in samples], dtype=torch.float64)
    truncated_B = torch.tensor([s.finish == "length" for s in samples])
    positive_B, negative_B = advantages_B > 0, advantages_B < 0
    num_groups, num_dropped = len(batch.groups), len(batch.dropped)
    return {
        "reward/mean": Mean(sampled_B.sum(), len(sampled_B)),
        **({"reward/mean_kept": Mean(known_B.sum(), len(known_B))} if dynamic_sampling else {}),
        **part_metrics(batch),
        "reward/std": spread(known_B),
        **group_metrics(rewards_B, groups_B, num_groups),
        "group/dropped_frac": Mean(torch.tensor(float(num_dropped)), num_groups + num_dropped),
        "adv/abs_mean": Mean(advantages_B.abs().sum(), len(advantages_B)),
        "adv/abs_max": Extreme(advantages_B.abs().max(), 1),
        "length/mean": Mean(length_B.sum(), len(length_B)),
        "length/std": spread(length_B),
        "length/max": Extreme(length_B.max(), 1),
        "length/mean_pos": Mean(length_B[positive_B].sum(), positive_B.sum()),
        "length/mean_neg": Mean(length_B[negative_B].sum(), negative_B.sum()),
        "length/truncated_frac": Mean(truncated_B.sum(), len(truncated_B)),
    }


def part_metrics(batch: RolloutBatch) -> dict[str, Reduced]:
    """The mean of each of several rewards over the responses that it scored, of all sampled groups."""
    values: dict[str, list[float]] = {}
    for group in (*batch.groups, *batch.dropped):
        for score in group.scores:
            for label, value in score.parts:
                values.setdefault(label, []).extend([] if value is None else [value])
    return {
        f"{PART}{label}": Mean(torch.tensor(known, dtype=torch.float64).sum(), len(known))
        for label, known in values.items()
    }


def group_metrics(rewards_B: Tensor, groups_B: Tensor, num_groups: int) -> dict[str, Reduced]:
    """How many groups carry a signal, and how strong it is; unscored responses (NaN) are left out."""
    scored_B = ~rewards_B.isnan()
    values_B = torch.where(scored_B, rewards_B, 0.0)

    def group_sum(terms_B: Tensor) -> Tensor:
        return torch.zeros(num_groups, dtype=torch.float64).index_add_(0, groups_B, terms_B.double())

    count_G = group_sum(scored_B)
    mean_G = group_sum(values_B) / count_G.clamp(min=1)
    centred_B = torch.where(scored_B, values_B - mean_G[groups_B], 0.0)
    std_G = (group_sum(centred_B.square()) / (count_G - 1).clamp(min=1)).sqrt()
    flat_G = ~with_spread(values_B, scored_B, groups_B, num_groups)
    known_B = rewards_B[scored_B]
    best, worst = (known_B.max(), known_B.min()) if len(known_B) else (mean_G.max(), mean_G.max())
    differ = (best > worst) & flat_G & (count_G > 0)
    return {
        "reward/group_std": Mean(torch.where(flat_G, 0.0, std_G).sum(), num_groups),
        "group/zero_std_frac": Mean(flat_G.sum(), num_groups),
        "group/all_best_frac": Mean((differ & torch.isclose(mean_G, best)).sum(), num_groups),
        "group/all_worst_frac": Mean((differ & torch.isclose(mean_G, worst)).sum(), num_groups),
    }


def sampler_metrics(batch: RolloutBatch, mini_batches: list[MiniBatch], learner: Learner) -> Accumulator:
    """The engine against the trainer, on this rank's rows; on a batch of older weights, how far the policy moved."""
    metrics, stale = Accumulator(), any(batch.lags)
    mismatch = mismatch_metrics(mini_batches, log_bounds(learner.params))
    metrics.add(as_lag(mismatch) if stale else mismatch)
    if learner.routing is not None and not stale:
        metrics.add(sampler_route_metrics(mini_batches, learner.routing.missing))
    return metrics


def mismatch_metrics(mini_batches: list[MiniBatch], bounds: tuple[float, float] | None) -> dict[str, Reduced]:
    """The engine's log-probabilities against the trainer's before any update, where both are known.

    `bounds` = the algorithm's clip range for a log-ratio, if it has one.
    """
    micro_batches = [m for mini in mini_batches for m in mini.own if m.trainer_log_probs_BT is not None]
    if not micro_batches:
        return {}
    token_gaps, row_gaps, probabilities = [], [], []
    for micro in micro_batches:
        assert micro.trainer_log_probs_BT is not None
        trainer_BT, mask_BT, loss_M = micro.trainer_log_probs_BT, micro.mask_BT, micro.loss_M
        gap_BT = torch.where(mask_BT, trainer_BT - micro.sampler_log_probs_BT, 0.0).double()
        token_gaps.append(gap_BT.flatten()[loss_M])
        row_gaps.append(gap_BT.sum(-1) / mask_BT.sum(-1))
        differences_BT = trainer_BT.exp() - micro.sampler_log_probs_BT.exp()
        probabilities.append(differences_BT.flatten()[loss_M].abs().double())
    gap_N, gap_B, difference_N = torch.cat(token_gaps), torch.cat(row_gaps), torch.cat(probabilities)
    tokens, rows = len(gap_N), len(gap_B)
    metrics: dict[str, Reduced] = {
        "kl/sampler_trainer_k1": Mean(-gap_N.sum(), tokens),
        "kl/sampler_trainer_k3": Mean((gap_N.exp() - 1 - gap_N).sum(), tokens),
        "mismatch/floor": RootMean(gap_B.square().sum(), rows),
        "mismatch/floor_mean": Mean(gap_B.sum(), rows),
        "mismatch/floor_std": spread(gap_B),
        "mismatch/token_floor": RootMean(gap_N.square().sum(), tokens),
        "mismatch/prob_absdiff_mean": Mean(difference_N.sum(), tokens),
        "mismatch/prob_absdiff_max": Extreme(difference_N.max(), 1),
    }
    if bounds is not None:
        nearer = min(-bounds[0], bounds[1])
        metrics["mismatch/floor_of_band"] = RootMean((gap_B / nearer).square().sum(), rows)
        metrics["mismatch/outside_band_frac"] = Mean(((gap_B < bounds[0]) | (gap_B > bounds[1])).sum(), rows)
    return metrics


def as_lag(mismatch: dict[str, Reduced]) -> dict[str, Reduced]:
    """The same values under the names for a batch of older weights."""
    return {AS_LAG[name]: value for name, value in mismatch.items() if name in AS_LAG}


def lag_metrics(batch: RolloutBatch, max_lag: int) -> dict[str, Reduced]:
    """Age of the weights that sampled the responses; nothing where no lag is allowed."""
    if not max_lag:
        return {}
    lag_B = torch.tensor(batch.lags, dtype=torch.float64)
    return {"lag/mean": Mean(lag_B.sum(), len(lag_B)), "lag/max": Extreme(lag_B.max(), 1)}


def sync_metrics(report: SyncReport | None) -> dict[str, Reduced]:
    """What the check after a weight transfer measured; nothing where the engine uses the trainer's own weights."""
    if report is None:
        return {}
    return {
        "mismatch/sync_absdiff_max": Extreme(torch.tensor(report.absdiff_max, dtype=torch.float64), 1),
        "mismatch/sync_absdiff_mean": Mean(torch.tensor(report.absdiff_mean, dtype=torch.float64), 1),
    }
