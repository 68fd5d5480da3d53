"""Measure how each update changes expert choices, on a few responses of the rollout batch.

L = MoE layers, N = tokens that predict a loss token, K = experts per token, R = rows of the routers, E = experts
"""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.models.admission import paths_of
from gspo_cli.models.sharding import run_forward
from gspo_cli.models.trunk import last_hidden, trunk_of
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.replay import compare_routes
from gspo_cli.moe.routers import Routing
from gspo_cli.moe.volatility import router_entropy, slot_churn, weighted_churn
from gspo_cli.training.step.batches import Row, lay_out
from gspo_cli.training.step.metrics import Accumulator, merge_ranks
from gspo_cli.types import LayerMeans, Reduced, RolloutBatch

NUM_RESPONSES = 16


class RouterState(NamedTuple):
    """The routers' output for the probe's tokens."""

    routes_LNK: Tensor
    gates_LNK: Tensor
    entropy: LayerMeans


class Probe:
    """Expert volatility of one update, on responses that stay the same over a rollout batch (arXiv 2507.18071, §5.3).

    Its passes use the policy's own routing, even under Routing Replay.
    """

    def __init__(
        self, model: PreTrainedModel, routing: Routing | None, batch: RolloutBatch, ranks: Ranks = SINGLE_PROCESS
    ) -> None:
        self.model, self.routing = model, routing
        stride = max(1, len(batch.groups) // NUM_RESPONSES)
        rows = [Row(g.prompt.token_ids, g.samples[0], 0.0) for g in batch.groups[::stride][:NUM_RESPONSES]]
        self.ranks = ranks if len(rows) >= ranks.size else SINGLE_PROCESS  # with too few rows each rank takes all
        self.rows = lay_out(self.ranks.shard(rows), model.device, packed=paths_of(model).packed)
        self.start = self.last = self._read()

    def churn(self) -> dict[str, Reduced]:
        """The moe/*_step metrics since the last call, and the change since the start; nothing for a dense model."""
        before, self.last = self.last, self._read()
        if before is None or self.last is None or self.start is None:
            return {}
        now, metrics = self.last, Accumulator()
        metrics.add(compare_routes("moe/", before.routes_LNK, now.routes_LNK, suffix="_step"))
        metrics.add(
            {
                "moe/slot_churn_weighted_step": weighted_churn(*before[:2], *now[:2]),
                "moe/slot_churn_probe": slot_churn(self.start.routes_LNK, now.routes_LNK),
                "moe/router_entropy": now.entropy,
            }
        )
        return merge_ranks(metrics, self.ranks).values

    @torch.no_grad()
    def _read(self) -> RouterState | None:
        with tapped(self.routing) as tap:
            if tap is None:
                return None
            run_forward(self.model, lambda m: last_hidden(trunk_of(m), self.rows.input_ids_BT, self.rows.packing))
            predicting = self.rows.positions_N[self.rows.predicts_M]
            return RouterState(
                tap.natural_LRK[:, predicting],
                tap.gates_LRK[:, predicting],
                router_entropy(tap.logits_LRE[:, predicting]),
            )
