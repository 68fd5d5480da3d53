"""Seconds of one rollout batch, phase by phase: what the hardware's limits allow, and the range to expect.

P = parameters, S = GPUs, F = operations of a token's forward pass, N = tokens of the batch, V H = the head
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.efficiency import ADAM, COPIES, LINKS, WHOLE_STEP, Share, decode_share, training_share
from gspo_cli.plan.hardware import Gpu
from gspo_cli.plan.memory import running
from gspo_cli.plan.setup import PROMPT_TOKENS, Setup


@dataclass(frozen=True)
class Phase:
    """One part of a rollout batch's time."""

    name: str
    limit_s: float
    """With nothing but the hardware's peak in the way."""
    share: Share
    note: str

    @property
    def low_s(self) -> float:
        """The fast end of the range."""
        return self.limit_s / self.share.most

    @property
    def high_s(self) -> float:
        """The slow end."""
        return self.limit_s / self.share.least


def decode_bytes(model: Architecture, rows: float, context: float, itemsize: int) -> float:
    """Read from memory for one token of each of `rows` responses.

    w (P - P_e - V H + P_e (1 - (1 - k / E)^B)) + B c KV: the embedding is looked up, not read (tied, it is the head and
    is read), and of the experts those that any of the B tokens chose, were choices independent.
    """
    experts = model.expert_parameters
    met = experts * (1 - (1 - model.top_k / model.experts) ** rows) if experts else 0.0
    plain = model.parameters - experts - (0 if model.tied else model.head)
    return itemsize * (plain + met) + rows * context * model.kv_bytes(itemsize)


def decode(setup: Setup, gpu: Gpu) -> Phase:
    """Waves of `running` responses, or the longest response with few beside it, whichever takes longer."""
    rows, parallel, itemsize = running(setup), setup.parallel, setup.engine_itemsize
    share = setup.responses * parallel / setup.ranks
    rate = parallel * gpu.bandwidth
    full = decode_bytes(setup.model, rows, PROMPT_TOKENS + setup.mean_response / 2, itemsize) / rate
    alone = decode_bytes(setup.model, 1, setup.longest / 2, itemsize) / rate
    waves, tail = share / rows * setup.mean_response * full, setup.recipe.rollout.max_new_tokens * alone
    note = f"{rows} at a time an engine: {waves:.3g}; the longest alone: {tail:.3g}"
    return Phase("sampling", max(waves, tail), decode_share(setup), note)


def passes(setup: Setup) -> dict[str, float]:
    """Forward passes' worth of arithmetic for a token of the batch.

    Training 3, or 4 when layers are computed twice; the old policy's 1 - 1 / mini-batches; a reference's 1.
    """
    algo = setup.recipe.algo
    old = 1 - 1 / setup.minibatches if algo.old_log_probs == "trainer" or algo.replay == "r2" else 0.0
    return {"old policy": old + (1 if algo.kl.coef > 0 else 0), "training": 4 if setup.recipe.train.recompute else 3}


def micro_steps(setup: Setup) -> int:
    """Passes of each rank in a rollout batch: the tokens of a mini-batch over ranks and largest pass, at least one."""
    each = setup.batch_tokens / setup.minibatches / setup.ranks
    return setup.minibatches * math.ceil(each / setup.micro_tokens)


def traffic(setup: Setup) -> float:
    """Bytes each rank takes from the others: (g c P + 4 P)(S - 1) / S a training pass, and c P an old one's.

    g gathers of the weights, 2 or with recomputing 3, and one exchange of the gradients in float32.
    """
    old = passes(setup)["old policy"]
    gathers = (3 if setup.recipe.train.recompute else 2) * setup.computed
    each = (gathers + (old > 0) * setup.computed) * setup.model.parameters + 4 * setup.trained
    return micro_steps(setup) * each * (setup.ranks - 1) / setup.ranks


def phases(setup: Setup) -> list[Phase]:
    """All of them, in their order; empty where the machine is not said."""
    gpu = setup.gpu
    if gpu is None:
        return []
    flop = setup.model.forward_flop(setup.mean_row) * setup.batch_tokens
    rate, share = setup.ranks * gpu.flops(setup.computed), training_share(setup)
    weights = setup.engine_itemsize * setup.model.parameters
    found = [
        decode(setup, gpu),
        *(Phase(name, n * flop / rate, share, f"{n:g} forward passes") for name, n in passes(setup).items() if n),
        Phase("optimizer", setup.minibatches * 7 * setup.stored * setup.trained / setup.shards / gpu.bandwidth, ADAM,
              f"{setup.minibatches} steps, {7 * setup.stored} bytes a parameter"),
    ]  # fmt: skip
    if setup.ranks > 1:
        note = f"{micro_steps(setup)} passes a GPU; overlaps with them"
        found.append(Phase("exchange", traffic(setup) / gpu.link, LINKS, note))
    if setup.recipe.rollout.engine == "vllm":
        rate = gpu.link if setup.ranks > 1 else gpu.bandwidth
        found.append(Phase("weights to the engine", weights / rate, COPIES, "once a batch"))
    return found


def total(found: list[Phase]) -> tuple[float, float, float]:
    """Limit, fast and slow end of a batch; the exchange counts where it outlasts the passes (at the slow end, all)."""
    apart = sum((p.limit_s for p in found if p.name != "exchange"), 0.0)
    low, high = (sum(getattr(p, end) for p in found if p.name != "exchange") for end in ("low_s", "high_s"))
    exchange = next((p for p in found if p.name == "exchange"), None)
    if exchange is None:
        return apart, low, high
    hidden = [p for p in found if p.name in ("old policy", "training")]
    return (
        apart + max(0.0, exchange.limit_s - sum(p.limit_s for p in hidden)),
        low + max(0.0, exchange.low_s - sum(p.low_s for p in hidden)),
        high + exchange.high_s,
    )


def anchored(setup: Setup) -> float | None:
    """A whole batch by the one published whole step: (1 + passes) F N / S operations at `WHOLE_STEP` of the peak.

    Sampling counts as one pass, and recomputing not at all. None where that step says nothing: for a dense model, or
    in float32.
    """
    if setup.gpu is None or not setup.model.moe_layers or setup.computed != 2:
        return None
    forward = 1 + passes(setup)["old policy"] + 3
    flop = forward * setup.model.forward_flop(setup.mean_row) * setup.batch_tokens
    return flop / (setup.ranks * setup.gpu.flops(2)) / WHOLE_STEP
