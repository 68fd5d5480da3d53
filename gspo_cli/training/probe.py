"""The probe: a few responses of the rollout batch on which expert choices are compared before and after each update.

L = MoE layers, N = tokens that predict a loss token, K = experts per token
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.models.packing import last_hidden, packs
from gspo_cli.models.sharding import inside
from gspo_cli.moe.routers import Routing
from gspo_cli.moe.tap import tapped
from gspo_cli.moe.volatility import router_entropy, slot_churn, weighted_churn
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.batches import Row, lay_out
from gspo_cli.training.merge import merged
from gspo_cli.training.routes import compared
from gspo_cli.types import LayerMeans, Reduced, RolloutBatch

SIZE = 16  # responses


class Choice(NamedTuple):
    """What the routers chose for the probe's tokens."""

    routes_LNK: Tensor
    gates_LNK: Tensor
    entropy: LayerMeans


class Probe:
    """Expert volatility of one update, on responses that stay the same over a rollout batch (arXiv 2507.18071, §5.3).

    Its passes use the policy's own routing, under Routing Replay too.
    """

    def __init__(
        self, model: PreTrainedModel, routing: Routing | None, batch: RolloutBatch, ranks: Ranks = ALONE
    ) -> None:
        self.model, self.routing = model, routing
        stride = max(1, len(batch.groups) // SIZE)
        rows = [Row(g.prompt.token_ids, g.samples[0], 0.0) for g in batch.groups[::stride][:SIZE]]
        self.ranks = ranks if len(rows) >= ranks.size else ALONE  # with more ranks than rows each looks at all
        self.rows = lay_out(self.ranks.share(rows), model.device, packed=packs(model))
        self.old = self.last = self._choose()

    def churn(self) -> dict[str, Reduced]:
        """The moe/*_step metrics since the last call, and what has changed since the start; nothing for a dense
        model."""
        before, self.last = self.last, self._choose()
        if before is None or self.last is None or self.old is None:
            return {}
        now = self.last
        found = Accumulator()
        found.add(compared("moe/", before.routes_LNK, now.routes_LNK, suffix="_step"))
        found.add(
            {
                "moe/slot_churn_weighted_step": weighted_churn(*before[:2], *now[:2]),
                "moe/slot_churn_probe": slot_churn(self.old.routes_LNK, now.routes_LNK),
                "moe/router_entropy": now.entropy,
            }
        )
        return merged(found, self.ranks).values

    @torch.no_grad()
    def _choose(self) -> Choice | None:
        with tapped(self.routing) as tap:
            if tap is None:
                return None
            inside(self.model, lambda m: last_hidden(m.base_model, self.rows.input_ids_BT, self.rows.packing))
            predicting = self.rows.positions_N[self.rows.predicts_M]
            return Choice(
                tap.natural_LRK[:, predicting],
                tap.gates_LRK[:, predicting],
                router_entropy(tap.logits_LRE[:, predicting]),
            )
