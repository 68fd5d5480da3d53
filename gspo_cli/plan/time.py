"""Seconds of one rollout batch, phase by phase: the hardware's limit, and the range to expect.

P = parameters, S = GPUs, F = operations of a token's forward pass, N = tokens of the batch, V H = the head
"""

import math
from dataclasses import dataclass

from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.memory import running
from gspo_cli.plan.workload import PROMPT_TOKENS, Gpu, Workload


@dataclass(frozen=True)
class Efficiency:
    """The share of a hardware limit that is reached, from the least to the most to expect."""

    least: float
    most: float
    source: str

    @property
    def text(self) -> str:
        """A line of the assumptions."""
        return f"{self.least:g} to {self.most:g} of the limit: {self.source}"


TRAIN_EXPERTS = Efficiency(
    0.03, 0.28, "published for Qwen3-30B-A3B on 8 H100: prime-rl (RL, passes of 16k) to Automodel (expert parallel)"
)
TRAIN_DENSE = Efficiency(
    0.12,
    0.34,
    "without torch.compile, recomputed layers counted; most: published, Qwen3-8B, FSDP over 8 H100 "
    "(verl#3870); least: half of the least published (0.24, torchtitan#1690)",
)
TRAIN_FLOAT32 = Efficiency(0.3, 0.8, "a guess: float32 off the tensor cores is easily kept busy")
DECODE_ONE = Efficiency(0.62, 0.74, "vLLM on one H100 (ml-energy), context assumed")
DECODE_SPREAD = Efficiency(0.45, 0.55, "vLLM on two H100 (ml-energy, about one half)")
DECODE_BUILT_IN = Efficiency(0.01, 0.1, "a guess from 0.012 of transformers' own generate (sglang#12614, one sequence)")
LINKS = Efficiency(0.1, 0.67, "most: 300 of 450 GB/s, assumed; between nodes of cluster.network_gbps; least: a guess")
HOST = Efficiency(0.5, 1.0, "laying out passes, measured here on one core of a CPU; least: a core half as fast")
STORAGE = Efficiency(0.1, 1.0, "0.2 to 2 GB/s, which all ranks together reach")
TO_HOST = Efficiency(0.1, 0.7, "a guess: copies into fresh memory reach 2.5 to 18 of 25 GB/s")
HOST_S, DISK, HOST_COPY = 0.5e-6, 2e9, 25e9
"""Seconds of processor time per token of a rank's passes (0.49 measured: `make_mini_batches`); bytes a second to the
disk, and from a GPU to its host."""
ANSWERS = {"aime24": (30, 32), "aime25": (30, 16), "math500": (500, 1), "gsm8k": (1319, 1)}
"""Problems of a benchmark and answers to each (evals/benchmarks); others count as `OTHERS`."""
OTHERS = (500, 1)
COPIES = Efficiency(0.01, 0.67, "least: 15.8 s for 30B between 16 and 16 GPUs (published, verl); most: as the links")
ADAM = Efficiency(0.5, 0.9, "a guess: a fused optimizer reads and writes memory and nothing else")

WHOLE_STEP = 0.043
"""Of a whole step's limit for arithmetic: NeMo-RL's 1,102 tokens/s per GPU against 25.7k (Qwen3-30B-A3B, 32 H100)."""


def training_efficiency(workload: Workload) -> Efficiency:
    """Of the peak arithmetic, in forward and backward passes."""
    if workload.computed == 4:
        return TRAIN_FLOAT32
    return TRAIN_EXPERTS if workload.model.moe_layers else TRAIN_DENSE


def decode_efficiency(workload: Workload) -> Efficiency:
    """Of the memory bandwidth, while sampling."""
    if workload.recipe.rollout.engine != "vllm":
        return DECODE_BUILT_IN
    return DECODE_ONE if workload.parallel == 1 else DECODE_SPREAD


@dataclass(frozen=True)
class Phase:
    """One part of a rollout batch's time."""

    name: str
    limit_s: float
    """At the hardware's peak."""
    efficiency: Efficiency
    note: str

    @property
    def low_s(self) -> float:
        """The fast end of the range."""
        return self.limit_s / self.efficiency.most

    @property
    def high_s(self) -> float:
        """The slow end."""
        return self.limit_s / self.efficiency.least


def decode_bytes(model: Architecture, rows: float, context: float, itemsize: int) -> float:
    """Bytes read from memory for one token of each of `rows` responses.

    w (P - P_e - V H + P_e (1 - (1 - k / E)^B)) + B c KV: the embedding is looked up, not read (if tied, it is read as
    the head), and of the experts those that any of the B tokens chose, if choices are independent.
    """
    experts = model.expert_parameters
    met = experts * (1 - (1 - model.top_k / model.experts) ** rows) if experts else 0.0
    plain = model.parameters - experts - (0 if model.tied else model.head)
    return itemsize * (plain + met) + rows * context * model.kv_bytes(itemsize)


def decode(workload: Workload, gpu: Gpu) -> Phase:
    """Waves of `running` responses, or the longest response alone, whichever takes longer."""
    rows, parallel, itemsize = running(workload), workload.parallel, workload.engine_itemsize
    share = workload.responses * parallel / workload.ranks
    rate = parallel * gpu.bandwidth
    full = decode_bytes(workload.model, rows, PROMPT_TOKENS + workload.mean_response / 2, itemsize) / rate
    alone = decode_bytes(workload.model, 1, workload.longest / 2, itemsize) / rate
    waves, tail = share / rows * workload.mean_response * full, workload.recipe.rollout.max_new_tokens * alone
    note = f"{rows} at a time an engine: {waves:.3g}; the longest alone: {tail:.3g}"
    return Phase("sampling", max(waves, tail), decode_efficiency(workload), note)


def passes(workload: Workload) -> dict[str, float]:
    """Arithmetic per token of the batch, in forward passes.

    Training 3, or 4 with recomputation; the old policy 1 - 1 / mini-batches; a reference 1.
    """
    algo = workload.recipe.algo
    old = 1 - 1 / workload.recipe.minibatches if algo.old_log_probs == "trainer" or algo.replay == "r2" else 0.0
    return {"old policy": old + (1 if algo.kl.coef > 0 else 0), "training": 4 if workload.recipe.train.recompute else 3}


def micro_steps(workload: Workload) -> int:
    """Passes of each rank in a rollout batch: a mini-batch's tokens over ranks and largest pass, at least one each."""
    each = workload.batch_tokens / workload.recipe.minibatches / workload.ranks
    return workload.recipe.minibatches * math.ceil(each / workload.micro_tokens)


def traffic(workload: Workload) -> float:
    """Bytes that each rank receives: (g c P + 4 P)(S - 1) / S per training pass, and c P more for an old-policy pass.

    There are g = 2 gathers of the weights, 3 with recomputation, and one exchange of the gradients in float32.
    """
    old = passes(workload)["old policy"]
    gathers = (3 if workload.recipe.train.recompute else 2) * workload.computed
    each = (gathers + (old > 0) * workload.computed) * workload.model.parameters + 4 * workload.trained
    return micro_steps(workload) * each * (workload.ranks - 1) / workload.ranks


def exchange(workload: Workload, gpu: Gpu) -> Phase:
    """Within a node over its links, and between nodes over all adapters of a node, whichever takes longer.

    Sharded over all ranks, (N - 1) / N of every gather crosses the network once for each node. Sharded within nodes,
    only a rank's share of the gradients does, there and back.
    """
    cluster = workload.recipe.cluster
    assert cluster is not None
    received, nodes = traffic(workload), cluster.nodes
    if workload.shards == workload.ranks:
        between = received * (nodes - 1) / nodes
    else:
        between = 2 * 4 * workload.trained * workload.recipe.minibatches * (nodes - 1) / nodes
    network = between / (cluster.network_gbps * 1e9 / 8 * cluster.gpus_per_node)
    note = f"{received / 1e12:.2g} TB a GPU in {micro_steps(workload)} passes; between nodes {network:.3g}; overlaps"
    return Phase("exchange", max(received / gpu.link, network), LINKS, note)


def beside(workload: Workload, gpu: Gpu) -> list[Phase]:
    """What a batch costs beside itself: the host's work, its share of checkpoints and of evaluations."""
    recipe = workload.recipe
    found = [Phase("host", HOST_S * workload.batch_tokens / workload.ranks, HOST, "laying out a rank's passes")]
    if every := recipe.checkpoint.every:
        size = workload.stored * (workload.model.parameters + 2 * workload.trained)
        waits, note = 1 / every, f"{size / 1e9:.3g} GB, every {every} batches"
        if workload.ranks > 1:
            each, waits = size / workload.shards, (1 + recipe.checkpoint.start) / recipe.train.steps
            found.append(Phase("copy to the host", each / HOST_COPY / every, TO_HOST, f"{each / 1e9:.3g} GB a GPU"))
            note = f"{note}, written meanwhile; it waits for the first and the last"
        found.append(Phase("checkpoint", waits * size / DISK, STORAGE, note))
    if recipe.eval.bench:
        count = recipe.train.steps // recipe.eval.every + 1 if recipe.eval.every else 1
        limit = recipe.eval.limit or 10**9
        sizes = [ANSWERS.get(name, OTHERS) for name in recipe.eval.bench]
        answers = sum(min(limit, problems) * (recipe.eval.samples or usual) for problems, usual in sizes)
        share = decode(workload, gpu).limit_s / workload.responses * answers * count / recipe.train.steps
        note = f"{count} times {answers} answers, as long as the batch's"
        found.append(Phase("evaluation", share, decode_efficiency(workload), note))
    return found


def phases(workload: Workload) -> list[Phase]:
    """All phases in order; none if the recipe names no machine."""
    gpu = workload.gpu
    if gpu is None:
        return []
    flop = workload.model.forward_flop(workload.mean_row) * workload.batch_tokens
    rate, reached = workload.ranks * gpu.flops(workload.computed), training_efficiency(workload)
    steps, step_bytes = workload.recipe.minibatches, 7 * workload.stored
    weights = workload.engine_itemsize * workload.model.parameters
    found = [
        decode(workload, gpu),
        *(Phase(name, n * flop / rate, reached, f"{n:g} forward passes") for name, n in passes(workload).items() if n),
        Phase("optimizer", steps * step_bytes * workload.trained / workload.shards / gpu.bandwidth, ADAM,
              f"{steps} steps, {step_bytes} bytes a parameter"),
    ]  # fmt: skip
    if workload.ranks > 1:
        found.append(exchange(workload, gpu))
    if workload.recipe.rollout.engine == "vllm":
        rate = gpu.link if workload.ranks > 1 else gpu.bandwidth
        found.append(Phase("weights to the engine", weights / rate, COPIES, "once a batch"))
    return found + beside(workload, gpu)


def total(found: list[Phase]) -> tuple[float, float, float]:
    """Limit, fast and slow end of a batch. Passes hide the exchange, except at the slow end, where all of it counts."""
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


def anchored(workload: Workload) -> float | None:
    """Seconds of a whole batch by the one published step: (1 + passes) F N / S operations at `WHOLE_STEP` of the peak.

    Sampling counts as one pass, recomputation not at all. None where that step does not apply: for a dense model, or in
    float32.
    """
    if workload.gpu is None or not workload.model.moe_layers or workload.computed != 2:
        return None
    forward = 1 + passes(workload)["old policy"] + 3
    flop = forward * workload.model.forward_flop(workload.mean_row) * workload.batch_tokens
    return flop / (workload.ranks * workload.gpu.flops(2)) / WHOLE_STEP
