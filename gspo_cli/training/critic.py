"""PPO's critic: a copy of the start model with a scalar head, trained beside the policy (with LoRA, by adapters of
its own).

B = responses, T = token positions, R = tokens fed
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.algorithms import Algorithm
from gspo_cli.algorithms.critic import value_loss
from gspo_cli.checkpoint.tensors import optimizer_tensors, restore_optimizer, restore_parameters
from gspo_cli.models.packing import last_hidden, take_rows
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.types import Mean, MicroBatch, MiniBatch, Reduced


class Critic:
    """V(prompt and response so far): the value before each response token. Its head starts at 0, in float32."""

    def __init__(self, policy: PreTrainedModel, lr: float, grad_clip: float) -> None:
        self.trunk = copy.deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1).to(policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.parameters = [p for part in (self.trunk, self.head) for p in part.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.grad_clip = grad_clip

    def values(self, micro: MicroBatch) -> Tensor:
        """The value at each loss token, 0 elsewhere: [B, T]; like the log-probability, read one position earlier."""
        values_R1 = self.head(last_hidden(self.trunk, micro.input_ids_BT, micro.packing).float())
        if micro.packing is None:
            values_BT = values_R1.view(micro.mask_BT.shape)
        else:
            values_BT = take_rows(values_R1, micro.packing.index_BT)[..., 0]
        shifted_BT = torch.cat([torch.zeros_like(values_BT[:, :1]), values_BT[:, :-1]], dim=1)
        return torch.where(micro.mask_BT, shifted_BT, 0.0)

    @torch.no_grad()
    def set_advantages(self, algorithm: Algorithm, params: Any, mini_batches: list[MiniBatch]) -> None:
        """Once per rollout batch: old values, returns and whitened advantages of every token.

        Until here a row's advantage is its reward. Advantages are whitened over the whole rollout batch, so all rows
        are laid into one matrix.
        """
        micro_batches = [m for mini in mini_batches for m in mini.micro_batches]
        if not micro_batches:
            return
        old_values = [self.values(m) for m in micro_batches]
        for micro, mine_BT in zip(micro_batches, old_values, strict=True):
            micro.old_values_BT = mine_BT
        width = max(m.mask_BT.shape[1] for m in micro_batches)
        mask_BT, values_BT = (
            torch.cat([nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])
            for tensors in ([m.mask_BT for m in micro_batches], old_values)
        )
        rewards_B = torch.cat([m.advantages for m in micro_batches])
        advantages_BT, returns_BT = algorithm.token_advantages(rewards_B, values_BT, mask_BT, params)  # type: ignore[attr-defined]
        sizes = [len(m.mask_BT) for m in micro_batches]
        for micro, mine_BT, target_BT in zip(
            micro_batches, advantages_BT.split(sizes), returns_BT.split(sizes), strict=True
        ):
            micro.advantages, micro.returns_BT = (t[:, : micro.mask_BT.shape[1]] for t in (mine_BT, target_BT))

    def update(self, mini_batch: MiniBatch, params: Any) -> dict[str, Reduced]:
        """One optimizer step of the critic on a mini-batch, with the value/* metrics."""
        metrics = Accumulator()
        total = sum(int(m.mask_BT.sum()) for m in mini_batch.micro_batches)
        for micro in mini_batch.micro_batches:
            assert micro.old_values_BT is not None and micro.returns_BT is not None
            numerator, _, found = value_loss(
                self.values(micro), micro.old_values_BT, micro.returns_BT, micro.mask_BT, params.value_clip
            )
            (numerator / total).backward()
            metrics.add(found)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.grad_clip)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        metrics.add({"value/grad_norm": Mean(norm, 1)})
        return metrics.values

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Trunk and head."""
        parts = {"trunk": self.trunk, "head": self.head}
        return [(f"{part}.{name}", p) for part, module in parts.items() for name, p in module.named_parameters()]

    def tensors(self) -> dict[str, Tensor]:
        """All of its state, for a checkpoint."""
        weights = {name: p.detach().cpu().contiguous() for name, p in self.named_parameters()}
        return weights | optimizer_tensors(self.optimizer, self.named_parameters())

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Puts that back.

        Errors: ValueError for a state of another critic.
        """
        moments = {name: t for name, t in saved.items() if "|" in name}
        restore_parameters(self.named_parameters(), {n: t for n, t in saved.items() if n not in moments})
        restore_optimizer(self.optimizer, self.named_parameters(), moments)
