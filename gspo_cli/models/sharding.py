"""A model whose weights are divided over the ranks: torch's FSDP2, one group a decoder layer, the rest in the root.

Each rank keeps its rows of every weight, with gradient and moments; a layer is gathered for as long as it computes.
Divided over the ranks of a machine alone, every machine has all rows once, and only gradients travel between machines.
Gradients are summed over the ranks, not averaged: losses are divided by the mini-batch's global denominator already.

Differs from transformers' own FSDP2 plan: the root group (embedding, last norm, head) is gathered anew for each pass,
so that a pass without backward leaves no stale copy behind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from gspo_cli.models.value import ValueModel

Model: TypeAlias = PreTrainedModel | ValueModel
T = TypeVar("T")


@cache
def ranks_mesh(device: str, size: int, together: int) -> DeviceMesh:
    """The ranks over which weights are divided: all `size` of them, or each `together` neighbours (a machine's) once,
    with the same rows on every machine."""
    if together == size:
        return init_device_mesh(device, (size,))
    return init_device_mesh(device, (size // together, together), mesh_dim_names=("machine", "rank"))


def divide(skeleton: Model, source: Model | None, device: torch.device, compute: torch.dtype, together: int) -> None:
    """Gives a model without memory (on `meta`) its weights, layer by layer, each divided as soon as it is there.

    `source` = the whole model on rank 0, None on the others: at no time does a rank hold more than one layer and its
    share. Passes are made in the precision `compute`, a critic's head in its own; gradients are summed in float32 at
    least. `together` = ranks over which to divide (see `ranks_mesh`). Afterwards the model computes within `inside`
    only.
    """
    exact = torch.promote_types(skeleton.base_model.dtype, torch.float32)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=exact, cast_forward_inputs=False)
    mesh = ranks_mesh(device.type, dist.get_world_size(), together)
    weights = {} if source is None else dict(source.named_parameters()) | dict(source.named_buffers())
    names = {module: name for name, module in skeleton.named_modules()}
    layers = list(skeleton.base_model.layers)
    inner = {module for layer in layers for module in layer.modules()}
    for layer in layers:
        fill(layer, f"{names[layer]}.", weights, device)
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in set(skeleton.modules()) - inner:
        module.to_empty(device=device, recurse=False)
    if isinstance(skeleton, PreTrainedModel):
        skeleton.tie_weights()
    outer = [module for module in skeleton.modules() if module not in inner]
    for module in outer:
        fill(module, f"{names[module]}." if names[module] else "", weights, device, recurse=False)
    if isinstance(skeleton, ValueModel):
        fully_shard(skeleton.head, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    skeleton.forward = lambda function, *args: function(skeleton, *args)
    skeleton.pass_dtype = compute
    fully_shard(skeleton, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in skeleton.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            if device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


@torch.no_grad()
def fill(
    module: nn.Module, prefix: str, weights: dict[str, Tensor], device: torch.device, recurse: bool = True
) -> None:
    """Memory for a module's weights and buffers, and rank 0's values in it on every rank."""
    if recurse:
        module.to_empty(device=device)
    tensors = [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]
    for name, tensor in tensors:
        if weights:
            tensor.copy_(weights[_known(prefix + name, weights)])
        dist.broadcast(tensor.detach(), 0)


def _known(name: str, weights: dict[str, Tensor]) -> str:
    """A tied head has its weight under the embedding's name."""
    return name if name in weights else next(n for n in weights if n.endswith("embed_tokens.weight"))


@torch.no_grad()
def copy_from_first(source: PreTrainedModel | None, model: PreTrainedModel) -> None:
    """Copies the weights of rank 0's whole `source` into a divided model; all ranks must call it."""
    known = {} if source is None else dict(source.named_parameters())
    for name, parameter in model.named_parameters():
        rows = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        if known:
            rows.copy_(known[name])
        dist.broadcast(rows, 0)
        parameter.copy_(like(parameter, rows))


@torch.no_grad()
def copy_whole(model: PreTrainedModel, replica: PreTrainedModel, frozen: bool = True) -> None:
    """Copies the weights of a divided model into a whole one; all ranks must call it. `frozen` = those too that are
    not trained."""
    for parameter, target in zip(model.parameters(), replica.parameters(), strict=True):
        if frozen or parameter.requires_grad:
            target.copy_(whole(parameter))


def is_sharded(model: nn.Module) -> bool:
    """Whether it is divided."""
    return isinstance(model, FSDPModule)


def precision(model: PreTrainedModel) -> torch.dtype:
    """What its passes are made in."""
    dtype: torch.dtype = getattr(model, "pass_dtype", model.dtype)
    return dtype


def inside(model: nn.Module, function: Callable[..., T], *args: Any) -> T:
    """`function(model, *args)` as the model's forward pass, for which a divided model gathers its weights.

    All ranks must call it equally often, since each gathers what all hold.
    """
    found: T = model(function, *args) if is_sharded(model) else function(model, *args)
    return found


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor that may be divided; all ranks must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, rows: Tensor) -> Tensor:
    """A whole tensor, the same on all ranks, divided like another one."""
    if not isinstance(tensor, DTensor):
        return rows
    rows = rows.to(tensor.device)
    return distribute_tensor(rows, tensor.device_mesh, tensor.placements, src_data_rank=None)
