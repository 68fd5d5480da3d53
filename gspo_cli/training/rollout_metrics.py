"""What a rollout batch is measured by: reward, groups, advantages, lengths, and the engine against the trainer.

B = responses
"""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_cli.algorithms.advantage import with_spread
from gspo_cli.algorithms.ratio_metrics import spread
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.training.batches import rewards_and_groups
from gspo_cli.types import Extreme, Mean, MiniBatch, Reduced, RolloutBatch, RootMean


def rollout_metrics(batch: RolloutBatch, advantages_B: Tensor) -> dict[str, Reduced]:
    """The reward/*, group/*, adv/* and length/* metrics."""
    rewards_B, groups_B = rewards_and_groups(batch)
    known_B = rewards_B[~rewards_B.isnan()]
    samples = [s for g in batch.groups for s in g.samples]
    length_B = torch.tensor([len(s.token_ids) for s in samples], dtype=torch.float64)
    truncated_B = torch.tensor([s.finish == "length" for s in samples])
    positive_B, negative_B = advantages_B > 0, advantages_B < 0
    num_groups, num_dropped = len(batch.groups), len(batch.dropped)
    return {
        "reward/mean": Mean(known_B.sum(), len(known_B)),
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


def sync_metrics(report: SyncReport | None) -> dict[str, Reduced]:
    """What the check after handing over the weights found; nothing where the engine has the trainer's own."""
    if report is None:
        return {}
    return {
        "mismatch/sync_absdiff_max": Extreme(torch.tensor(report.absdiff_max, dtype=torch.float64), 1),
        "mismatch/sync_absdiff_mean": Mean(torch.tensor(report.absdiff_mean, dtype=torch.float64), 1),
    }


def lag_metrics(batch: RolloutBatch, max_lag: int) -> dict[str, Reduced]:
    """How old the weights are that drew the responses; nothing where none may be old."""
    if not max_lag:
        return {}
    lag_B = torch.tensor(batch.lags, dtype=torch.float64)
    return {"lag/mean": Mean(lag_B.sum(), len(lag_B)), "lag/max": Extreme(lag_B.max(), 1)}


def mismatch_metrics(mini_batches: list[MiniBatch], bounds: tuple[float, float] | None) -> dict[str, Reduced]:
    """The engine's log-probabilities m against the trainer's o, before any update, over the rows where o is known.

    `bounds` = the algorithm's clip range for a log-ratio, if it has one.
    """
    micro_batches = [m for mini in mini_batches for m in mini.own if m.trainer_log_probs_BT is not None]
    if not micro_batches:
        return {}
    token_gaps, row_gaps, probabilities = [], [], []
    for micro in micro_batches:
        assert micro.trainer_log_probs_BT is not None
        old_BT, mask_BT = micro.trainer_log_probs_BT, micro.mask_BT
        gap_BT = torch.where(mask_BT, old_BT - micro.sampler_log_probs_BT, 0.0).double()
        token_gaps.append(gap_BT[mask_BT])
        row_gaps.append(gap_BT.sum(-1) / mask_BT.sum(-1))
        probabilities.append((old_BT.exp() - micro.sampler_log_probs_BT.exp())[mask_BT].abs().double())
    gap_N, gap_B, difference_N = torch.cat(token_gaps), torch.cat(row_gaps), torch.cat(probabilities)
    tokens, rows = len(gap_N), len(gap_B)
    found: dict[str, Reduced] = {
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
        edge = min(-bounds[0], bounds[1])
        found["mismatch/floor_of_band"] = RootMean((gap_B / edge).square().sum(), rows)
        found["mismatch/outside_band_frac"] = Mean(((gap_B < bounds[0]) | (gap_B > bounds[1])).sum(), rows)
    return found


GAPS = {
    "kl/sampler_trainer_k1": "lag/kl_k1",
    "kl/sampler_trainer_k3": "lag/kl_k3",
    "mismatch/token_floor": "lag/token_gap",
    "mismatch/floor": "lag/seq_gap",
    "mismatch/floor_mean": "lag/seq_gap_mean",
    "mismatch/floor_of_band": "lag/seq_gap_of_band",
    "mismatch/outside_band_frac": "lag/outside_band_frac",
}


def as_gap(mismatch: dict[str, Reduced]) -> dict[str, Reduced]:
    """The same comparison on a batch that older weights drew: what the policy moved since then is no mismatch."""
    return {GAPS[name]: value for name, value in mismatch.items() if name in GAPS}
