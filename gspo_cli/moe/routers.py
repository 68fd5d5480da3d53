"""The routers of a model: found by their structure, with the rule that turns logits into gate weights.

R = rows of the routers, E = experts, K = experts per token
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError

Gating = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(router, logits [R, E], experts [R, K]) -> gate weights [R, K], with gradient to the logits."""
PROBE_TOKENS = 64
SCALES = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
"""Names under which a router has the factor of its weights."""


def in_order(output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A router's output as (logits, gate weights, experts, ...): Granite's and Aria's begin with the experts."""
    return output if output[0].is_floating_point() else (*output[2::-1], *output[3:])


def share(score: Callable[[Tensor], Tensor], added: float | None = None) -> Gating:
    """The rule that takes each expert's score, over all experts: gathering from scores that top-k has zeroed would
    leave the router without gradient. With `added`, they are divided by their sum over the chosen ones + `added`."""

    def weights(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
        share_RK = score(logits_RE.float()).gather(-1, index_RK)
        if added is not None:
            share_RK = share_RK / (share_RK.sum(-1, keepdim=True) + added)
        return share_RK * _scale(gate)

    return weights


def softmax_of_chosen(gate: nn.Module, logits_RE: Tensor, index_RK: Tensor) -> Tensor:
    """The softmax over the chosen experts' logits alone."""
    return torch.softmax(logits_RE.gather(-1, index_RK), -1) * _scale(gate)


softmax = partial(torch.softmax, dim=-1)
GATINGS: dict[str, Gating] = {
    "softmax": share(softmax),  # DeepSeek-V2, OLMoE
    "softmax, normalised": share(softmax, 0.0),  # Qwen3-MoE, Mixtral
    "sigmoid": share(torch.sigmoid),  # dots.llm1
    "sigmoid, normalised": share(torch.sigmoid, 1e-20),  # DeepSeek-V3, GLM-4-MoE
    "sigmoid, normalised with 1e-6": share(torch.sigmoid, 1e-6),  # LFM2-MoE
    "root of softplus, normalised": share(lambda logits: nn.functional.softplus(logits).sqrt(), 1e-20),  # DeepSeek-V4
    "softmax of the chosen": softmax_of_chosen,  # gpt-oss, Granite
}


@torch.no_grad()
def gating_of(gates: Iterable[nn.Module]) -> Gating:
    """The rule that reproduces these routers' weights on random input, bit for bit. Errors: GspoError if none does.

    Their own weights do not matter, and need not be in memory: those of a fresh router may be zeros, which all rules
    weigh alike.
    """
    rules = list(GATINGS.values())
    for gate in {type(gate): gate for gate in gates}.values():
        copied = copy.deepcopy(gate).to("meta").to_empty(device="cpu")
        try:
            logits_RE, weights_RK, index_RK = _probed(copied)[:3]
            rules = [r for r in rules if torch.equal(r(copied, logits_RE, index_RK).to(weights_RK.dtype), weights_RK)]
        except Exception:  # a router is code of the model's authors
            rules = []
        if not rules:
            raise GspoError(
                f"Routing Replay does not know how {type(gate).__name__} weighs its experts",
                f"none of its rules ({'; '.join(GATINGS)}) gives its weights",
                "algo.replay = 'none', or add its rule to gspo_cli/moe/routers.py",
            )
    return rules[0]


def _probed(gate: nn.Module) -> tuple[Tensor, ...]:
    """What a router makes of random input with random weights, and zeros for what else it is given."""
    generator = torch.Generator().manual_seed(0)
    for weight in gate.parameters():
        weight.normal_(generator=generator)
    for buffer in gate.buffers():
        buffer.zero_()
    weight = next(weight for weight in gate.parameters() if weight.dim() == 2)
    hidden = torch.randn(PROBE_TOKENS, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
    zeros = {"input_ids": torch.zeros(PROBE_TOKENS, dtype=torch.int64), "bias": torch.zeros(len(weight))}
    names = list(signature(gate.forward).parameters)[1:]
    given = {name: zeros[kind] for name in names for kind in zeros if name.endswith(kind)}
    try:
        return in_order(gate(hidden.to(weight.dtype), **given))
    except ValueError:  # AFMoE's takes rows of tokens only
        return in_order(gate(hidden[None].to(weight.dtype), **given))


def _scale(gate: nn.Module) -> float:
    return next((float(getattr(gate, name)) for name in SCALES if hasattr(gate, name)), 1.0)


@dataclass(frozen=True)
class Routing:
    """The routers of a mixture-of-experts model, in layer order."""

    layers: tuple[int, ...]
    """The decoder layer (from 0) of each router: models may have dense layers in between."""
    gates: tuple[nn.Module, ...]
    """The routers: each returns what `in_order` orders, one row a token."""
    experts: tuple[nn.Module, ...]
    """The modules that the routers' choices go to."""
    num_experts: int
    top_k: int
    rule: Gating | None = None
    """How logits become gate weights; set where Routing Replay needs it."""

    @property
    def missing(self) -> int:
        """The index that stands for "no record"."""
        return self.num_experts

    @property
    def dtype(self) -> torch.dtype:
        """Of stored choices: one byte a slot up to 255 experts, else two."""
        return torch.uint8 if self.num_experts < 256 else torch.int16


def find_routing(model: PreTrainedModel) -> Routing | None:
    """The model's routers; None for a dense model, or one whose routers are built in another way.

    A block counts as mixture-of-experts if one child is a router, and another is named `experts` (Qwen3-MoE, Mixtral,
    OLMoE, DeepSeek, GLM, Granite, ...).
    """
    found = [
        (number, gate, block.experts)
        for number, layer in enumerate(getattr(model.base_model, "layers", ()))
        for block in layer.modules()
        if isinstance(getattr(block, "experts", None), nn.Module)
        for gate in block.children()
        if gate is not block.experts and num_choices(gate)
    ]
    shapes = {(num_choices(gate), int(gate.top_k)) for _, gate, _ in found}
    if len(shapes) != 1:  # records have one shape in all layers
        return None
    layers, gates, experts = zip(*found, strict=True)
    return Routing(layers, gates, experts, *shapes.pop())


def active_parameters(model: PreTrainedModel, trained: bool = False) -> int:
    """Parameters in the matrix products of one token: of all experts the chosen share; an embedding only if it is the
    head as well. `trained` = only those that are trained."""
    routing = find_routing(model)
    experts = {id(p) for block in routing.experts for p in block.parameters()} if routing else set()
    share = routing.top_k / routing.num_experts if routing else 1.0
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    counted = [p for p in model.parameters() if (tied or p is not embedding) and (p.requires_grad or not trained)]
    return int(sum(p.numel() * (share if id(p) in experts else 1.0) for p in counted))


def num_choices(module: nn.Module) -> int:
    """How many experts a module chooses from; 0 if it is no router. It has `top_k` and a weight, its own or a linear
    layer's, with a row for each expert: more than `num_experts` where some do nothing."""
    weights = [getattr(part, "weight", None) for part in (module, *module.children())]
    counts = {getattr(module, name, None) for name in ("num_experts", "n_routed_experts", "n_total_experts")}
    rows = [len(weight) for weight in weights if isinstance(weight, Tensor) and weight.dim() == 2]
    if not hasattr(module, "top_k") or not (rows and rows[0] in counts):
        return 0
    bias = getattr(module, "e_score_correction_bias", None)
    return rows[0] if bias is None else len(bias)  # a router may score shared experts as well, without a choice


def is_mixture(model: PreTrainedModel) -> bool:
    """Whether a model has experts, however its routers are built."""
    counts = (getattr(part, "num_experts", 0) for part in model.base_model.modules())
    return any(isinstance(count, int) and count > 1 for count in counts)


def needed_routing(model: PreTrainedModel, what: str) -> Routing:
    """The routers of a model that must have some; `what` = the setting that needs them.

    Errors: GspoError naming the model's class when it is dense or not supported.
    """
    routing = find_routing(model)
    if routing is None:
        name = type(model).__name__
        raise GspoError(
            f"{what} with {name}",
            f"the routers of {name} were not found: no block with `experts` and a router beside it"
            if is_mixture(model)
            else f"{name} is a dense model: it has no experts to route to",
            "remove it from the recipe, or use a model with routers such as Qwen3-MoE",
        )
    return routing


def replayable(model: PreTrainedModel, what: str) -> Routing:
    """The same with the rule for gate weights, which replay needs. Errors: as `needed_routing` and `gating_of`."""
    routing = needed_routing(model, what)
    return replace(routing, rule=gating_of(routing.gates))
