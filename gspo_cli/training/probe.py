"""The probe: a few responses of the rollout batch on which expert choices are compared before and after each update."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.moe.routing import captured_routes
from gspo_cli.moe.volatility import at_predicting_positions, slot_churn
from gspo_cli.training.batches import Row, pad
from gspo_cli.types import Reduced, RolloutBatch

SIZE = 16  # responses


class Probe:
    """Expert churn of one update, on responses that stay the same over a rollout batch (arXiv 2507.18071, §5.3)."""

    def __init__(self, model: PreTrainedModel, batch: RolloutBatch) -> None:
        self.model = model
        stride = max(1, len(batch.groups) // SIZE)
        rows = [Row(g.prompt.token_ids, g.samples[0], 0.0) for g in batch.groups[::stride][:SIZE]]
        self.rows = pad(rows, model.device)
        self.routes_LNK = self._routes()

    def churn(self) -> dict[str, Reduced]:
        """`moe/slot_churn_step` since the last call (or since the start); nothing for a dense model."""
        before, self.routes_LNK = self.routes_LNK, self._routes()
        if before is None or self.routes_LNK is None:
            return {}
        return {"moe/slot_churn_step": slot_churn(before, self.routes_LNK)}

    @torch.no_grad()
    def _routes(self) -> Tensor | None:
        with captured_routes(self.model) as routes:
            if routes is None:
                return None
            self.model.base_model(input_ids=self.rows.input_ids_BT, attention_mask=None, use_cache=False)
            return at_predicting_positions(routes.stacked(len(self.rows.mask_BT)), self.rows.mask_BT)
