"""A model that values what has been written so far: what PPO's critic trains.

R = tokens fed
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.models.packing import Packing, last_hidden


class ValueModel(nn.Module):
    """A trunk with a scalar head, which starts at 0 and is in float32 whatever the trunk is in."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(trunk.config.hidden_size, 1).to(trunk.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def base_model(self) -> PreTrainedModel:
        """The trunk, under the name that it has in a language model."""
        return self.trunk


def token_values(model: ValueModel, input_ids_BT: Tensor, packing: Packing | None) -> Tensor:
    """The value after each position fed: [R, 1] in float32. For a divided model call it within `sharding.inside`."""
    values_R1: Tensor = model.head(last_hidden(model.trunk, input_ids_BT, packing).float())
    return values_R1
