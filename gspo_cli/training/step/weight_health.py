"""How far an update's importance ratios can be trusted, and whom its clip hits: metrics of one micro-batch.

B = responses, T = token positions, Q = quarters of a mini-batch by length
"""

import torch
from torch import Tensor

from gspo_cli.algorithms import LossOutput
from gspo_cli.algorithms.metrics import weight_metrics
from gspo_cli.algorithms.ops import per_token, sequence_log_ratio, token_log_ratio
from gspo_cli.stats.pareto import LONGEST
from gspo_cli.types import Mean, MicroBatch, MiniBatch, Reduced, Tail

QUARTERS = (0.25, 0.5, 0.75)
DUAL_CLIP = 3.0
"""Where PPO's dual clip is usually set (arXiv 1912.09729)."""


def length_edges(mini_batch: MiniBatch) -> tuple[float, ...]:
    """The quartiles of the mini-batch's response lengths, over all ranks; empty without responses."""
    lengths_B = mini_batch.mask_BT.sum(-1).float()
    return tuple(torch.quantile(lengths_B, torch.tensor(QUARTERS)).tolist()) if lengths_B.numel() else ()


@torch.no_grad()
def health_metrics(
    log_probs_BT: Tensor, micro: MicroBatch, output: LossOutput, at_one_BT: Tensor, edges: tuple[float, ...]
) -> dict[str, Reduced]:
    """Second moments and tails of the log-ratios, effective share of the tokens, clip by sign and by length.

    `at_one_BT`: the gradient weights where all ratios are 1. `edges`: see `length_edges`.
    """
    assert micro.old_log_probs_BT is not None
    mask_BT = micro.mask_BT
    log_w_BT = token_log_ratio(log_probs_BT, micro.old_log_probs_BT, mask_BT)
    log_s_B = sequence_log_ratio(log_probs_BT, micro.old_log_probs_BT, mask_BT)[:, 0]
    log_w_N = log_w_BT.flatten()[micro.loss_M]
    has_tokens_B = mask_BT.any(-1)
    responses = has_tokens_B.sum()
    metrics: dict[str, Reduced] = {
        "ratio/token_log_square": Mean(log_w_N.double().square().sum(), log_w_N.numel()),
        "ratio/seq_log_square": Mean(log_s_B.double().square().sum(), responses),
        "ratio/token_pareto_k": tail(log_w_N, log_w_N.numel()),
        "ratio/seq_pareto_k": tail(log_s_B.masked_fill(~has_tokens_B, -torch.inf), responses),
        **weight_metrics(output.gradient_weight_BT, at_one_BT),
        "weight/negative_tail_frac": negative_tail(output.gradient_weight_BT, at_one_BT),
    }
    if output.clipped_BT is not None:
        metrics |= clip_metrics(output.clipped_BT & mask_BT, micro.advantages, mask_BT, edges)
    return metrics


def negative_tail(weight_BT: Tensor, at_one_BT: Tensor) -> Mean:
    """What a dual clip at 3 would bound: the share of the sum of |gradient weight| on tokens with a negative advantage
    that weigh more than 3 times as much as at ratio 1."""
    heavy_BT = weight_BT < torch.where(at_one_BT < 0, DUAL_CLIP * at_one_BT, -torch.inf)
    return Mean(torch.where(heavy_BT, -weight_BT, 0.0).double().sum(), weight_BT.abs().double().sum())


def tail(log_ratio_N: Tensor, num: Tensor | int) -> Tail:
    """The largest log-ratios, as many as a fit of Pareto k may need."""
    return Tail((log_ratio_N.topk(min(LONGEST + 1, log_ratio_N.numel()), sorted=False).values,), num)


def clip_metrics(
    clipped_BT: Tensor, advantages: Tensor, mask_BT: Tensor, edges: tuple[float, ...]
) -> dict[str, Reduced]:
    """Shares of the tokens with an advantage that the clip stops: by its sign, and by quarter of the lengths."""
    sign_BT = per_token(advantages).expand_as(mask_BT)
    up_BT, down_BT = mask_BT & (sign_BT > 0), mask_BT & (sign_BT < 0)
    length_B = mask_BT.sum(-1)
    quarter_B = sum(((length_B > edge).long() for edge in edges), torch.zeros_like(length_B))
    inside_QB = quarter_B == torch.arange(len(QUARTERS) + 1, device=length_B.device)[:, None]
    clipped_Q = (inside_QB * clipped_BT.sum(-1)).sum(-1)
    active_Q = (inside_QB * (up_BT | down_BT).sum(-1)).sum(-1)
    return {
        "clip/pos_frac": Mean((clipped_BT & up_BT).sum(), up_BT.sum()),
        "clip/neg_frac": Mean((clipped_BT & down_BT).sum(), down_BT.sum()),
        **{f"clip/length_q{q + 1}_frac": Mean(clipped_Q[q], active_Q[q]) for q in range(len(QUARTERS) + 1)},
    }
