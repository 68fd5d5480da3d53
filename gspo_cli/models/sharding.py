"""Shard a model's weights over the ranks with torch's FSDP2: one group per decoder layer, the rest in the root.

Each rank keeps its rows of every weight, with their gradients and moments; a layer is gathered only while it computes.
Sharded over the ranks of a machine alone, every machine holds all rows, and only gradients travel between machines.
Gradients are summed over the ranks, not averaged: losses are divided by the mini-batch's global denominator already.

Differs from transformers' own FSDP2 plan: the root group (embedding, last norm, head) is gathered again for each pass,
so that a pass without backward leaves no stale copy behind.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from gspo_cli.models.precision import compute_in, computing
from gspo_cli.models.trunk import ValueModel, head_of, layers_of

Model: TypeAlias = PreTrainedModel | ValueModel
T = TypeVar("T")


@cache
def rank_mesh(device: str, size: int, shards: int) -> DeviceMesh:
    """The ranks that share weights: all `size` of them, or each group of `shards` neighbours (a machine's), with the
    same rows on every machine."""
    if shards == size:
        return init_device_mesh(device, (size,))
    return init_device_mesh(device, (size // shards, shards), mesh_dim_names=("machine", "rank"))


def shard(
    skeleton: Model, source: Model | None, device: torch.device, compute: torch.dtype, shards: int,
    float32_head: bool = False,
) -> None:  # fmt: skip
    """Gives a model on `meta` its weights, layer by layer, each sharded as soon as it is loaded.

    `source` = the full model on rank 0, None on the others: no rank ever holds more than one layer and its share.
    Passes run in the precision `compute`, a critic's head in its own; gradients are summed in float32 at least.
    `shards` = number of ranks to shard over (see `rank_mesh`). Afterwards the model computes only in `run_forward`.
    """
    exact = torch.promote_types(skeleton.base_model.dtype, torch.float32)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=exact, cast_forward_inputs=False)
    mesh = rank_mesh(device.type, dist.get_world_size(), shards)
    # a tied head is in a state dictionary under both names
    weights = {} if source is None else dict(source.named_buffers()) | source.state_dict()
    names = {module: name for name, module in skeleton.named_modules()}
    layers = list(layers_of(skeleton))
    inner = {module for layer in layers for module in layer.modules()}
    for layer in layers:
        load_weights(layer, f"{names[layer]}.", weights, device)
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in set(skeleton.modules()) - inner:
        module.to_empty(device=device, recurse=False)
    if isinstance(skeleton, PreTrainedModel):
        skeleton.tie_weights()
    outer = [module for module in skeleton.modules() if module not in inner]
    for module in outer:
        load_weights(module, f"{names[module]}." if names[module] else "", weights, device, recurse=False)
    if isinstance(skeleton, ValueModel):
        fully_shard(skeleton.head, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    skeleton.forward = partial(forward_within, skeleton)
    skeleton.compute_dtype = compute
    if float32_head and isinstance(skeleton, PreTrainedModel):  # then the root's weights are rounded here
        compute_in(skeleton, compute, head_of(skeleton))
        precision = replace(precision, param_dtype=exact)
    fully_shard(skeleton, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
    for module in skeleton.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            if device.type == "cpu":
                module.set_force_sum_reduction_for_comms(True)  # gloo supports no other


def forward_within(skeleton: Model, function: Callable[..., T], *args: Any) -> T:
    """The forward pass of a sharded model. FSDP has rounded its weights, but for those of its root if the head is in
    float32."""
    with computing(skeleton):
        return function(skeleton, *args)


@torch.no_grad()
def load_weights(
    module: nn.Module, prefix: str, weights: dict[str, Tensor], device: torch.device, recurse: bool = True
) -> None:
    """Allocates a module's parameters and buffers, and fills them on every rank with rank 0's values."""
    if recurse:
        module.to_empty(device=device)
    for name, tensor in [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]:
        if weights:
            tensor.copy_(weights[prefix + name])
        dist.broadcast(tensor.detach(), 0)


@torch.no_grad()
def copy_from_rank0(source: PreTrainedModel | None, model: PreTrainedModel) -> None:
    """Copies the weights of rank 0's full `source` into a sharded model; all ranks must call it."""
    known = {} if source is None else dict(source.named_parameters())
    for name, parameter in model.named_parameters():
        rows = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        if known:
            rows.copy_(known[name])
        dist.broadcast(rows, 0)
        parameter.copy_(shard_like(parameter, rows))


@torch.no_grad()
def copy_full(model: PreTrainedModel, replica: PreTrainedModel, frozen: bool = True) -> None:
    """Copies the weights of a sharded model into a full one; all ranks must call it. `frozen` = copy weights that are
    not trained as well."""
    for parameter, target in zip(model.parameters(), replica.parameters(), strict=True):
        if frozen or parameter.requires_grad:
            target.copy_(full_tensor(parameter))


def is_sharded(model: nn.Module) -> bool:
    """Whether its weights are sharded over the ranks."""
    return isinstance(model, FSDPModule)


def run_forward(model: nn.Module, function: Callable[..., T], *args: Any) -> T:
    """`function(model, *args)` as the model's forward pass, in which a sharded model gathers its weights, and any other
    rounds them if it computes in another precision.

    All ranks must call it equally often, since each gathers what all hold.
    """
    if is_sharded(model):
        result: T = model(function, *args)
        return result
    with computing(model.trunk if isinstance(model, ValueModel) else model):
        return function(model, *args)


def full_tensor(tensor: Tensor) -> Tensor:
    """All rows of a tensor that may be sharded; all ranks must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, rows: Tensor) -> Tensor:
    """This rank's part of a full tensor that is the same on all ranks, sharded like `tensor`."""
    if not isinstance(tensor, DTensor):
        return rows
    rows = rows.to(tensor.device)
    return distribute_tensor(rows, tensor.device_mesh, tensor.placements, src_data_rank=None)
