"""How much arithmetic a rollout batch took, from token counts: 2 P a forward token, 6 P a trained one.

P = parameters that take part in a token's matrix products; frozen ones need no gradient, so 4 P of a trained token.
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel

from gspo_cli.moe.routers import find_routing
from gspo_cli.training.update import Learner
from gspo_cli.types import MicroBatch, RolloutBatch


def active_parameters(model: PreTrainedModel, trained: bool = False) -> int:
    """Parameters in the matrix products of one token: the chosen experts' share of all experts; an embedding counts
    only where it is the head as well. `trained` = of these, the ones that are trained."""
    routing = find_routing(model)
    experts = {id(p) for block in routing.experts for p in block.parameters()} if routing else set()
    share = routing.top_k / routing.num_experts if routing else 1.0
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    counted = [p for p in model.parameters() if (tied or p is not embedding) and (p.requires_grad or not trained)]
    return int(sum(p.numel() * (share if id(p) in experts else 1.0) for p in counted))


def real_positions(micro_batches: list[MicroBatch]) -> int:
    """Prompt and response tokens that the model is fed, without padding."""
    return sum(real_tokens(m) for m in micro_batches)


def real_tokens(micro: MicroBatch) -> int:
    """Of one pass; the last loss token ends a row."""
    if micro.packing is not None:
        return micro.packing.input_ids.numel()
    return int((micro.mask_BT.long().cumsum(-1).argmax(-1) + 1).sum())


def batch_flops(learner: Learner, batch: RolloutBatch, passes: list[int]) -> int:
    """Floating-point operations of sampling, the old-policy and reference passes, training and the critic.

    `passes` = the tokens trained on in each mini-batch, without padding, over all ranks.
    Attention's own products are left out; dropped groups count, and so do only the passes that were made.
    """
    groups = (*batch.groups, *batch.dropped)
    sampled = sum(len(g.prompt.token_ids) + sum(len(s.token_ids) for s in g.samples) for g in groups)
    forward, trained = sampled, sum(passes)
    if learner.needs_old_pass:
        forward += sum(passes[1:])
    if learner.reference is not None:
        forward += trained
    flops = active_parameters(learner.model) * (2 * forward + 4 * trained)
    flops += active_parameters(learner.model, trained=True) * 2 * trained
    if learner.critic is not None:
        trunk = unembedded(learner.critic.model.trunk)
        flops += sum(p.numel() * (8 if p.requires_grad else 6) for p in trunk) * trained
    return flops


def unembedded(trunk: nn.Module) -> list[nn.Parameter]:
    """The parameters of a model without head, apart from its embedding."""
    embedding = trunk.get_input_embeddings().weight  # type: ignore[operator]
    return [p for p in trunk.parameters() if p is not embedding]
