"""Routing Replay: expert choices of the training passes, recorded, replayed and compared.

B = responses, T = token positions, L = MoE layers, R = rows of the routers (all input tokens), N = recorded tokens,
M = loss tokens, K = experts per token
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from gspo_cli.config import AlgoConfig
from gspo_cli.moe.hooks import RouterTap
from gspo_cli.moe.volatility import loads, router_differs, slot_churn, token_any_layer
from gspo_cli.types import LayerMeans, MicroBatch, MiniBatch, Reduced, Total


def record_to_replay(algo: AlgoConfig, micro: MicroBatch) -> Tensor | None:
    """The choices [L, N, K] that a pass over this micro-batch must use; None = the routers' own.

    Under `r2` there is none before the first update: that pass is the old policy's, and makes the record.
    """
    return {"none": None, "r2": micro.old_routes_LNK, "r3": micro.sampler_routes_LNK}[algo.replay]


def routed(tap: RouterTap | None, micro: MicroBatch, record_LNK: Tensor | None) -> AbstractContextManager[None]:
    """Within the context, forward and backward use the record; without a record, the routers' own choices."""
    if tap is None or record_LNK is None:
        return nullcontext()
    return tap.replaying(place(record_LNK, micro.positions_N, num_input_tokens(micro), tap.routing.missing))


def place(record_LNK: Tensor, positions_N: Tensor, num_positions: int, missing: int) -> Tensor:
    """A record in the layout of a forward pass, `missing` where there is none: int64 [L, R, K]."""
    layers, _, top_k = record_LNK.shape
    placed = torch.full((layers, num_positions, top_k), missing, dtype=torch.int64, device=record_LNK.device)
    placed[:, positions_N] = record_LNK.long()
    return placed


def take(routes_LRK: Tensor, positions_N: Tensor, dtype: torch.dtype) -> Tensor:
    """The choices at the recorded tokens, in the small type that is stored: [L, N, K]."""
    return routes_LRK[:, positions_N].to(dtype)


def natural_routes(tap: RouterTap | None, micro: MicroBatch) -> Tensor | None:
    """The routers' own choices in the last pass, under replay too: [L, N, K]."""
    return None if tap is None else take(tap.natural_LRK, micro.positions_N, tap.routing.dtype)


def num_input_tokens(micro: MicroBatch) -> int:
    """Tokens that the model is fed, padding included."""
    return (micro.input_ids_BT if micro.packing is None else micro.packing.input_ids).numel()


def tokens_replayed(micro: MicroBatch) -> Tensor:
    """Which input tokens must use recorded experts, derived anew from the loss mask: bool [R]."""
    known_BT = before_last(micro.mask_BT)
    if micro.packing is None:
        return known_BT.flatten()
    count_R = torch.zeros(num_input_tokens(micro), dtype=torch.int64, device=known_BT.device)
    return count_R.index_add(0, micro.packing.index_BT.flatten(), known_BT.flatten().long()) > 0


def before_last(mask_BT: Tensor) -> Tensor:
    """True at prompt and response tokens but each row's last: bool [B, T]. The last loss token ends a row."""
    later_BT = mask_BT.long().flip(-1).cumsum(-1).flip(-1) - mask_BT.long()
    return later_BT > 0


def violations(used_LRK: Tensor, record_LNK: Tensor, replayed_R: Tensor, missing: int) -> Total:
    """(layer, token) pairs where the experts called are not the recorded ones. Must be 0.

    `replayed_R`: the tokens that must use the record, in its order. They must come from the loss mask, not from the
    positions that `place` was given, so that a shifted or misaligned layout shows; so does a record of another length.
    """
    layers, recorded = record_LNK.shape[:2]
    entry_R = (replayed_R.cumsum(0) - 1).clamp(0, recorded - 1)
    expected_LRK = record_LNK[:, entry_R]
    differs_LR = (used_LRK != expected_LRK).any(-1) & (expected_LRK[..., 0] != missing) & replayed_R
    return Total(differs_LR.sum() + layers * (replayed_R.sum() - recorded).abs())


def replay_metrics(natural_LNK: Tensor, record_LNK: Tensor, missing: int) -> dict[str, Reduced]:
    """Shares of (layer, token) pairs without a record, and with a record that equals the routers' own choice."""
    known_LN = record_LNK[..., 0] != missing
    same_LN = (natural_LNK[..., :, None] == record_LNK[..., None, :]).any(-1).all(-1) & known_LN
    tokens = record_LNK.shape[1]
    return {
        "replay/fallback_frac": LayerMeans((~known_LN).sum(-1), tokens),
        "replay/natural_agree_frac": LayerMeans(same_LN.sum(-1), tokens),
    }


def route_metrics(
    algo: AlgoConfig, tap: RouterTap | None, micro: MicroBatch, record_LNK: Tensor | None
) -> dict[str, Reduced]:
    """The moe/* and replay/* metrics of the last training pass; nothing for a dense model."""
    natural_LNK = natural_routes(tap, micro)
    if tap is None or natural_LNK is None:
        return {}
    missing, experts, natural_LMK = tap.routing.missing, tap.routing.num_experts, natural_LNK[:, micro.predicts_M]
    if record_LNK is not None:
        used_LMK = take(tap.used_LRK, micro.positions_N, tap.routing.dtype)[:, micro.predicts_M]
        return {
            "moe/load_max_violation": loads(used_LMK, experts),
            "replay/violations": violations(tap.used_LRK, record_LNK, tokens_replayed(micro), missing),
            **replay_metrics(natural_LMK, record_LNK[:, micro.predicts_M], missing),
        }
    metrics: dict[str, Reduced] = {"moe/load_max_violation": loads(natural_LMK, experts)}
    # under replay a layer's input is not what the policy's own routing would give it: such churn would mean little
    if algo.replay == "none" and micro.old_routes_LNK is not None:
        metrics |= compare_routes("moe/", micro.old_routes_LNK[:, micro.predicts_M], natural_LMK)
    return metrics


def compare_routes(prefix: str, before_LNK: Tensor, after_LNK: Tensor, suffix: str = "") -> dict[str, Reduced]:
    """Three measures of how much two sets of expert choices differ."""
    return {
        f"{prefix}slot_churn{suffix}": slot_churn(before_LNK, after_LNK),
        f"{prefix}router_differs_frac{suffix}": router_differs(before_LNK, after_LNK),
        f"{prefix}token_any_layer_frac{suffix}": token_any_layer(before_LNK, after_LNK),
    }


def sampler_route_metrics(mini_batches: list[MiniBatch], missing: int) -> dict[str, Reduced]:
    """The engine's choices against the trainer's under the same weights, where both are known."""
    from_engine, from_trainer = [], []
    for micro in (m for mini in mini_batches for m in mini.own):
        if micro.sampler_routes_LNK is not None and micro.old_routes_LNK is not None:
            theirs_LMK, ours_LMK = (r[:, micro.predicts_M] for r in (micro.sampler_routes_LNK, micro.old_routes_LNK))
            from_engine.append(theirs_LMK)
            from_trainer.append(ours_LMK)
    if not from_engine:
        return {}
    engine_LMK, trainer_LMK = torch.cat(from_engine, 1), torch.cat(from_trainer, 1)
    known_M = (engine_LMK[0, :, 0] != missing).nonzero()[:, 0]
    if not len(known_M):
        return {}
    return compare_routes("moe/sampler_", engine_LMK[:, known_M], trainer_LMK[:, known_M])
