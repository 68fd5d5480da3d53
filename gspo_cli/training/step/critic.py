"""PPO's critic: a copy of the start model with a scalar head, trained beside the policy, with its own adapters under
LoRA, and sharded over the ranks like the policy.

B = responses, T = token positions, R = input tokens
"""

from typing import Any

import torch
from torch import Tensor, nn

from gspo_cli.algorithms import AlgorithmSpec
from gspo_cli.algorithms.critic import value_loss
from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.models.packing import take_rows
from gspo_cli.models.sharding import full_tensor, run_forward
from gspo_cli.models.trunk import ValueModel, token_values
from gspo_cli.training.state.shards import Pieces, named_rows
from gspo_cli.training.state.tensors import optimizer_tensors, restore_optimizer, restore_parameters
from gspo_cli.training.step.loss_scale import after_step, loss_scaler
from gspo_cli.training.step.metrics import Accumulator, all_rows, merge_ranks
from gspo_cli.types import Mean, MicroBatch, MiniBatch, Reduced


class Critic:
    """Estimates V(prompt and response so far): the value before each response token."""

    def __init__(self, model: ValueModel, lr: float, grad_clip: float, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.model, self.grad_clip, self.ranks = model, grad_clip, ranks
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.scaler = loss_scaler(model.trunk)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def values(self, micro: MicroBatch) -> Tensor:
        """The value at each loss token, 0 elsewhere: [B, T]; like a log-probability, read one position earlier."""
        values_R1 = run_forward(self.model, token_values, micro.input_ids_BT, micro.packing)
        if micro.packing is None:
            values_BT = values_R1.view(micro.mask_BT.shape)
        else:
            values_BT = take_rows(values_R1, micro.packing.index_BT)[..., 0]
        shifted_BT = torch.cat([torch.zeros_like(values_BT[:, :1]), values_BT[:, :-1]], dim=1)
        return torch.where(micro.mask_BT, shifted_BT, 0.0)

    @torch.no_grad()
    def set_advantages(self, algorithm: AlgorithmSpec, params: Any, mini_batches: list[MiniBatch]) -> None:
        """Sets old values, returns and whitened advantages of every token, once per rollout batch.

        Until here a row's advantage is its reward. Whitening is over the whole rollout batch, so the rows of all ranks
        go into one matrix.
        """
        passes = [m for mini in mini_batches for m in mini.micro_batches]
        if not passes:
            return
        for micro in passes:
            micro.old_values_BT = self.values(micro)
        own = [m for m in passes if not m.filler]
        device, values = passes[0].mask_BT.device, [m.old_values_BT for m in own if m.old_values_BT is not None]
        rewards_B1, first = all_rows([m.advantages[:, None] for m in own], torch.float32, self.ranks)
        values_BT, _ = all_rows(values, torch.float32, self.ranks)
        mask_BT, _ = all_rows([m.mask_BT for m in own], torch.bool, self.ranks)
        assert algorithm.token_advantages is not None
        both = algorithm.token_advantages(rewards_B1[:, 0].to(device), values_BT.to(device), mask_BT.to(device), params)
        for micro in own:
            size, width = micro.mask_BT.shape
            micro.advantages, micro.returns_BT = (rows_BT[first : first + size, :width] for rows_BT in both)
            first += size

    def update(self, mini_batch: MiniBatch, params: Any) -> dict[str, Reduced]:
        """One optimizer step on a mini-batch. Returns the value/* metrics."""
        metrics = Accumulator()
        total = int(mini_batch.mask_BT.sum())
        for micro in mini_batch.micro_batches:
            values_BT = self.values(micro)
            if micro.filler:
                self.scaler.scale(0.0 * values_BT.sum()).backward()
                continue
            assert micro.old_values_BT is not None and micro.returns_BT is not None
            numerator, _, value_metrics = value_loss(
                values_BT, micro.old_values_BT, micro.returns_BT, micro.mask_BT, params.value_clip
            )
            self.scaler.scale(numerator / total).backward()
            metrics.add(value_metrics)
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = full_tensor(nn.utils.get_total_norm(gradients))
        nn.utils.clip_grads_with_norm_(self.parameters, self.grad_clip, norm)
        if finite := bool(torch.isfinite(norm)):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        found = merge_ranks(metrics, self.ranks).values
        scale, overflowed = after_step(self.scaler, finite)
        if scale is not None:
            found["value/overflow_frac"] = Mean(torch.tensor(float(overflowed)), 1)
        return found if overflowed else found | {"value/grad_norm": Mean(norm, 1)}

    def tensors(self) -> dict[str, Tensor]:
        """What this rank holds of its state, for a checkpoint."""
        named = list(self.model.named_parameters())
        weights = {key: rows for name, p in named for key, rows in named_rows(name, p).items()}
        return weights | optimizer_tensors(self.optimizer, named)

    def restore(self, pieces: Pieces) -> None:
        """Restores what all ranks saved. Errors: ValueError for a state of another critic."""
        moments = {name: t for name, t in pieces.items() if "|" in name}
        restore_parameters(self.model.named_parameters(), {n: t for n, t in pieces.items() if n not in moments})
        restore_optimizer(self.optimizer, self.model.named_parameters(), moments)
