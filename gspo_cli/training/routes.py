"""Expert choices of the training passes: captured, replayed, compared.

L = MoE layers, N = tokens of a micro-batch but each row's last, K = experts per token
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gspo_cli.config import AlgoConfig
from gspo_cli.moe.replay import before_last, place, replay_metrics, take, violations
from gspo_cli.moe.tap import RouterTap
from gspo_cli.moe.volatility import loads, router_differs, slot_churn, token_any_layer
from gspo_cli.types import MicroBatch, MiniBatch, Reduced


def record_to_replay(algo: AlgoConfig, micro: MicroBatch) -> Tensor | None:
    """The choices [L, N, K] that a pass over this micro-batch must use; None = the routers' own.

    Under `r2` there is none before the first update: that pass is the old policy's, and makes the record.
    """
    return {"none": None, "r2": micro.old_routes_LNK, "r3": micro.sampler_routes_LNK}[algo.replay]


@contextmanager
def routed(tap: RouterTap | None, micro: MicroBatch, record_LNK: Tensor | None) -> Iterator[None]:
    """Forward and backward within the context use the record; without one, the routers' own choices."""
    if tap is None or record_LNK is None:
        yield
        return
    placed = place(record_LNK, micro.positions_N, fed(micro), tap.routing.missing)
    with tap.replaying(placed):
        yield


def fed(micro: MicroBatch) -> int:
    """Tokens that the model is fed, padding included."""
    return (micro.input_ids_BT if micro.packing is None else micro.packing.input_ids).numel()


def tokens_replayed(micro: MicroBatch) -> Tensor:
    """Which of the tokens fed must use recorded experts, found anew from the loss mask: int64, rising."""
    known_BT = before_last(micro.mask_BT)
    if micro.packing is None:
        return known_BT.flatten().nonzero()[:, 0]
    tokens_N: Tensor = micro.packing.index_BT[known_BT].unique()  # type: ignore[no-untyped-call]
    return tokens_N


def natural_routes(tap: RouterTap | None, micro: MicroBatch) -> Tensor | None:
    """What the routers chose by themselves in the last pass, under replay too: [L, N, K]."""
    if tap is None:
        return None
    return take(tap.natural_LRK, micro.positions_N, tap.routing.dtype)


def route_metrics(
    algo: AlgoConfig, tap: RouterTap | None, micro: MicroBatch, record_LNK: Tensor | None
) -> dict[str, Reduced]:
    """The moe/* and replay/* metrics of the last training pass; nothing for a dense model."""
    natural_LNK = natural_routes(tap, micro)
    if tap is None or natural_LNK is None:
        return {}
    missing, experts = tap.routing.missing, tap.routing.num_experts
    if record_LNK is not None:
        used_LNK = take(tap.used_LRK, micro.positions_N, tap.routing.dtype)
        return {
            "moe/load_max_violation": loads(used_LNK[:, micro.predicts_M], experts),
            "replay/violations": violations(tap.used_LRK, record_LNK, tokens_replayed(micro), missing),
            **replay_metrics(natural_LNK[:, micro.predicts_M], record_LNK[:, micro.predicts_M], missing),
        }
    now_LNK = natural_LNK[:, micro.predicts_M]
    found: dict[str, Reduced] = {"moe/load_max_violation": loads(now_LNK, experts)}
    # under replay a layer's input is not what the policy's own routing would give it: such churn would mean little
    if algo.replay == "none" and micro.old_routes_LNK is not None:
        found |= compared("moe/", micro.old_routes_LNK[:, micro.predicts_M], now_LNK)
    return found


def compared(prefix: str, before_LNK: Tensor, after_LNK: Tensor, suffix: str = "") -> dict[str, Reduced]:
    """The three ways to say how much two choices of experts differ."""
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
            theirs_LNK, ours_LNK = (r[:, micro.predicts_M] for r in (micro.sampler_routes_LNK, micro.old_routes_LNK))
            known_N = theirs_LNK[0, :, 0] != missing
            from_engine.append(theirs_LNK[:, known_N])
            from_trainer.append(ours_LNK[:, known_N])
    if not sum(part.shape[1] for part in from_engine):
        return {}
    return compared("moe/sampler_", torch.cat(from_engine, 1), torch.cat(from_trainer, 1))
