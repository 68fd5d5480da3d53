"""Bytes on each GPU in the two phases with different peaks: training and sampling.

P = parameters, S = GPUs that share them, w = bytes of a parameter, c = of a number in a pass, T = tokens of a pass
"""

from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.workload import GIB, Workload

CHUNK_LOGITS = 1 << 24
"""Logits in memory at a time: `models.log_probs.CHUNK_LOGITS`, which cannot be imported without torch;"""
LOGITS_PER_HIDDEN = 4
"""or for each number of the hidden states, if that is more."""
KEPT_LOGITS = 1 << 27
"""Most log-probabilities that wait for the backward pass: `models.log_probs.KEPT_LOGITS`."""
LOGIT_BYTES = 12
"""Per logit of a chunk in its backward pass: log-softmax, its gradient and the logit's, in float32."""
IN_FLIGHT = 1.5
"""A layer in its backward pass: its saved tensors, and half as much for gradients."""
TRAINING_RESERVE = 3 * GIB
"""CUDA context and fragmentation: 74.6 GiB measured, the sum is 72 (Qwen3-30B-A3B, 8 GPUs; published, prime-rl)."""
ROLLOUT_RESERVE = 6 * GIB
"""The same, plus vLLM's graphs and workspace."""

ENGINE_ASLEEP, LINKS_ASLEEP = 1.5 * GIB, 1.0 * GIB
"""What vLLM keeps while it sleeps: CUDA graphs (1.4 GiB of 166 published in vllm#47654), and with several GPUs NCCL's
buffers (1 GiB, vllm#51485)."""
CHECK_TOKENS = 176
"""Of the trainer's pass that checks a weight transfer, while the engine is awake (rollout/vllm/sync_check.py)."""

Parts = dict[str, float]
"""Purpose -> bytes on each GPU."""


def layer_numbers(model: Architecture, half: bool) -> int:
    """Numbers per token that one layer saves for its backward pass.

    6 H + 5 q d + 4 kv d + 4 I; with experts k (2 H + 4 I) in place of 4 I. In half precision 2 H + q d + kv d more, as
    norms and rotations work in float32. Checked against what torch saves in tests/plan.
    """
    d, more = model.head_dim, int(half)
    attention = (6 + 2 * more) * model.hidden + (5 + more) * model.heads * d + (4 + more) * model.kv_heads * d
    block = model.top_k * (2 * model.hidden + 4 * model.expert_inner) if model.moe_layers else 4 * model.inner
    return attention + block


def state(workload: Workload) -> Parts:
    """Weights w P / S, gradients w P / S, Adam's two moments 2 w P / S: 16 P / S bytes in float32."""
    each = workload.stored / workload.shards
    return {
        "weights": each * workload.model.parameters,
        "gradients": each * workload.trained,
        "optimizer": 2 * each * workload.trained,
    }


def reference_and_critic(workload: Workload) -> Parts:
    """A frozen reference for the KL penalty (LoRA's base model is one already), a critic with its own optimizer."""
    algo, each = workload.recipe.algo, workload.stored * workload.model.parameters / workload.shards
    parts: Parts = {}
    if algo.kl.coef > 0 and workload.recipe.model.lora is None:
        parts["reference model"] = each
    if "critic_lr" in algo.params:  # every algorithm with a critic has this setting
        parts["critic"] = 4 * each
    return parts


def gathered(workload: Workload) -> Parts:
    """With several ranks: two full layers in the pass's precision and the gradient of one in float32; embedding and
    head, which are gathered together, once in each. With one: all weights in the pass's precision, if it is another."""
    if workload.ranks == 1:
        return rounded(workload)
    layer, ends = workload.model.largest_layer, workload.model.head * (1 if workload.model.tied else 2)
    return {"gathered layers": (2 * workload.computed + 4) * layer, "gathered ends": (workload.computed + 4) * ends}


def forward_weights(workload: Workload) -> float:
    """Of a pass without gradients: two gathered layers and the ends, or all weights if they are rounded for it."""
    ends = workload.model.head * (1 if workload.model.tied else 2)
    gathers = workload.computed * (2 * workload.model.largest_layer + ends) if workload.ranks > 1 else 0
    return gathers + sum(rounded(workload).values())


def rounded(workload: Workload) -> Parts:
    """One process that computes in another precision than its weights' has a copy of them during a pass."""
    if workload.ranks > 1 or workload.computed == workload.stored:
        return {}
    return {"rounded weights": float(workload.computed * workload.model.parameters)}


def activations(workload: Workload) -> float:
    """c T L n, with n of `layer_numbers`; recomputing keeps c T L H and one layer in flight."""
    model, tokens = workload.model, workload.micro_tokens * workload.computed
    kept = model.hidden if workload.recipe.train.recompute else layer_numbers(model, workload.computed == 2)
    return tokens * (model.layers * kept + 2 * model.hidden) + in_flight(workload)


def in_flight(workload: Workload) -> float:
    """The layer in its backward pass, beyond what is kept of every layer."""
    numbers = layer_numbers(workload.model, workload.computed == 2) * workload.micro_tokens
    return (IN_FLIGHT if workload.recipe.train.recompute else IN_FLIGHT - 1) * numbers * workload.computed


def logits(workload: Workload) -> float:
    """A chunk of logits, with the head's gradient of the chunk and of all in float32, as far as it exceeds the layer
    that is in flight afterwards; and what is kept for the backward pass."""
    model, tokens = workload.model, workload.micro_tokens
    count = tokens * model.vocabulary
    chunk = min(count, max(CHUNK_LOGITS, LOGITS_PER_HIDDEN * tokens * model.hidden))
    summed = (4 + workload.computed) * model.head if rounded(workload) else 0
    kept = 0 if workload.recipe.train.recompute else min(KEPT_LOGITS, count)
    return max(0.0, chunk * LOGIT_BYTES + summed - in_flight(workload)) + kept * 4


def training(workload: Workload) -> Parts:
    """The parts at the peak of an update."""
    peak = {"activations": activations(workload), "logits": logits(workload)} | routes(workload)
    return (
        state(workload)
        | reference_and_critic(workload)
        | gathered(workload)
        | kept_by_sampler(workload)
        | asleep(workload)
        | peak
        | reserve(workload, TRAINING_RESERVE)
    )


def asleep(workload: Workload) -> Parts:
    """What a sleeping vLLM does not give back."""
    if workload.recipe.rollout.engine != "vllm":
        return {}
    return {"sleeping engine": ENGINE_ASLEEP + (LINKS_ASLEEP if workload.parallel > 1 else 0.0)}


def kept_by_sampler(workload: Workload) -> Parts:
    """With `rollout.compile`, what the built-in sampler does not give back, as its graphs are bound to it."""
    if not workload.recipe.rollout.compile:
        return {}
    weights = {f"sampler's {name}": size for name, size in rounded(workload).items()}
    return {"sampler's cache": sampler_cache(workload)} | weights


def sampler_cache(workload: Workload) -> float:
    """Bytes of the built-in sampler's cache; with `rollout.compile`, rows and positions are each padded to less than
    twice as many."""
    exact = running(workload) * workload.longest * kv_token_bytes(workload)
    compiled = workload.recipe.rollout.compile
    return min(4 * exact, workload.recipe.rollout.kv_budget_gb * GIB) if compiled else exact


def routes(workload: Workload) -> Parts:
    """Routing Replay: a rank's share of the batch's records, and eight bytes per slot of the pass that uses them."""
    if workload.recipe.algo.replay == "none":
        return {}
    model, share = workload.model, workload.responses * workload.longest / workload.ranks
    return {"routes": model.routes_bytes * share + 8 * model.moe_layers * model.top_k * workload.micro_tokens}


def rollout(workload: Workload) -> Parts:
    """The parts while responses are sampled; there are no gradients then.

    The built-in engine samples from the trainer's weights, or on several ranks from a full copy on each. vLLM has its
    own weights, spread over `tensor_parallel` GPUs, beside the trainer's.
    """
    resting = {k: v for k, v in (state(workload) | reference_and_critic(workload)).items() if k != "gradients"}
    engine = workload.recipe.rollout.engine
    weights = workload.engine_itemsize * workload.model.parameters / workload.parallel
    own: Parts = (
        {"engine's weights": weights} if engine == "vllm" or (engine == "transformers" and workload.ranks > 1) else {}
    )
    own |= rounded(workload) if engine == "transformers" else {}
    cache: Parts = {}
    if engine == "vllm":
        checked = forward_weights(workload) + CHECK_TOKENS * workload.model.vocabulary * LOGIT_BYTES
        cache = {"KV cache": workload.recipe.rollout.kv_budget_gb * GIB, "check of the weights": checked}
    if engine == "transformers":
        rows = running(workload)
        cache = {"KV cache": sampler_cache(workload), "logits": rows * workload.model.vocabulary * float(LOGIT_BYTES)}
    return resting | own | cache | reserve(workload, ROLLOUT_RESERVE if engine == "vllm" else TRAINING_RESERVE)


def reserve(workload: Workload, size: float) -> Parts:
    """Memory kept free; none on an unknown device."""
    return {"reserve": size} if workload.gpu else {}


def kv_token_bytes(workload: Workload) -> float:
    """Bytes of one token's keys and values on one GPU; an engine spreads heads over its GPUs."""
    return workload.model.kv_bytes(workload.engine_itemsize) / workload.parallel


def running(workload: Workload) -> int:
    """Responses that one engine samples at a time: its share of the batch, or as many as the KV cache holds.

    vLLM's cache holds responses as they grow; the built-in engine reserves room for the longest response.
    """
    share = -(-workload.responses * workload.parallel // workload.ranks)
    row = workload.longest if workload.recipe.rollout.engine == "transformers" else workload.mean_row
    room = workload.recipe.rollout.kv_budget_gb * GIB / (kv_token_bytes(workload) * row)
    return max(1, min(share, int(room)))
