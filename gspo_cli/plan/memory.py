"""Bytes on each GPU, in the phases whose peaks differ: training and sampling.

P = parameters, S = GPUs that share them, w = bytes of a parameter, c = of a number in a pass, T = tokens of a pass
"""

from __future__ import annotations

from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.hardware import GIB
from gspo_cli.plan.setup import Setup

CHUNK_LOGITS = 1 << 24
"""Logits held at a time: `models.log_probs.CHUNK_LOGITS`, which only torch could import."""
LOGIT_BYTES = 18
"""Of one logit in its chunk: as computed, in float32, its log-softmax, and two more in float32 for the entropy."""
IN_FLIGHT = 1.5
"""A layer in its backward pass: what it kept, and gradients of half as much."""
TRAINING_RESERVE = 3 * GIB
"""CUDA context and fragments: 74.6 GiB measured where the sum is 72 (Qwen3-30B-A3B, 8 GPUs; published, prime-rl)."""
ROLLOUT_RESERVE = 6 * GIB
"""The same, and vLLM's graphs and work space."""

Parts = dict[str, float]
"""What it is for -> bytes on each GPU."""


def layer_numbers(model: Architecture, half: bool) -> int:
    """Numbers that one layer keeps of a token for its backward pass.

    6 H + 5 q d + 4 kv d + 4 I, or k (2 H + 4 I) in place of 4 I with experts; in half precision one more of each of the
    first three (norms and rotations work in float32), two of H. Measured on what torch saves: tests/plan.
    """
    d, more = model.head_dim, int(half)
    attention = (6 + 2 * more) * model.hidden + (5 + more) * model.heads * d + (4 + more) * model.kv_heads * d
    block = model.top_k * (2 * model.hidden + 4 * model.expert_inner) if model.moe_layers else 4 * model.inner
    return attention + block


def state(setup: Setup) -> Parts:
    """Weights w P / S, gradients w P / S, Adam's two moments 2 w P / S: 16 P / S bytes in float32."""
    each = setup.stored / setup.shards
    return {
        "weights": each * setup.model.parameters,
        "gradients": each * setup.trained,
        "optimizer": 2 * each * setup.trained,
    }


def companions(setup: Setup) -> Parts:
    """A frozen reference for the KL penalty (without LoRA, which is one already), a critic with its own optimizer."""
    algo, each = setup.recipe.algo, setup.stored * setup.model.parameters / setup.shards
    parts: Parts = {}
    if algo.kl.coef > 0 and setup.recipe.model.lora is None:
        parts["reference model"] = each
    if algo.name == "ppo":
        parts["critic"] = 4 * each
    return parts


def gathered(setup: Setup) -> Parts:
    """With several ranks: two whole layers in the pass's precision and one's gradient in float32; the same, once, of
    embedding and head, which are gathered together."""
    if setup.ranks == 1:
        return {}
    layer, ends = setup.model.largest_layer, setup.model.head * (1 if setup.model.tied else 2)
    return {"gathered layers": (2 * setup.computed + 4) * layer, "gathered ends": (setup.computed + 4) * ends}


def activations(setup: Setup) -> float:
    """c T L n, n of `layer_numbers`; recomputing keeps c T L H and one layer in flight."""
    model, tokens = setup.model, setup.micro_tokens * setup.computed
    layer = layer_numbers(model, setup.computed == 2)
    kept = model.hidden if setup.recipe.train.recompute else layer
    in_flight = (IN_FLIGHT if setup.recipe.train.recompute else IN_FLIGHT - 1) * layer
    return tokens * (model.layers * kept + in_flight + 2 * model.hidden)


def training(setup: Setup) -> Parts:
    """The peak of an update."""
    logits = min(CHUNK_LOGITS, setup.micro_tokens * setup.model.vocabulary) * LOGIT_BYTES
    peak = {"activations": activations(setup), "logits": float(logits)} | routes(setup)
    return state(setup) | companions(setup) | gathered(setup) | peak | reserve(setup, TRAINING_RESERVE)


def routes(setup: Setup) -> Parts:
    """Routing Replay: a rank's share of the batch's records, and eight bytes a slot of the pass that uses them."""
    if setup.recipe.algo.replay == "none":
        return {}
    model, share = setup.model, setup.responses * setup.longest / setup.ranks
    return {"routes": model.routes_bytes * share + 8 * model.moe_layers * model.top_k * setup.micro_tokens}


def rollout(setup: Setup) -> Parts:
    """While responses are sampled, when there are no gradients.

    The built-in engine samples from the trainer's weights; with several ranks it has a whole copy of them on each. vLLM
    has its own, spread over `tensor_parallel` GPUs, and the trainer's stay.
    """
    resting = {k: v for k, v in (state(setup) | companions(setup)).items() if k != "gradients"}
    engine = setup.recipe.rollout.engine
    weights = setup.engine_itemsize * setup.model.parameters / setup.parallel
    own = {"engine's weights": weights} if engine == "vllm" or (engine == "transformers" and setup.ranks > 1) else {}
    cache: Parts = {"KV cache": setup.recipe.rollout.kv_budget_gb * GIB} if engine == "vllm" else {}
    if engine == "transformers":
        rows = running(setup)
        cache = {
            "KV cache": rows * setup.longest * kv_token_bytes(setup),
            "logits": rows * setup.model.vocabulary * float(LOGIT_BYTES),
        }
    return resting | own | cache | reserve(setup, ROLLOUT_RESERVE if engine == "vllm" else TRAINING_RESERVE)


def reserve(setup: Setup, size: float) -> Parts:
    """Nothing is kept back where the device is not known."""
    return {"reserve": size} if setup.gpu else {}


def kv_token_bytes(setup: Setup) -> float:
    """Keys and values of one token on one GPU; heads are spread over an engine's GPUs."""
    return setup.model.kv_bytes(setup.engine_itemsize) / setup.parallel


def running(setup: Setup) -> int:
    """Responses that one engine samples at a time: its share of the batch, or what the KV cache holds.

    vLLM fills its cache with what there is; the built-in engine keeps room for the longest response.
    """
    share = -(-setup.responses * setup.parallel // setup.ranks)
    row = setup.longest if setup.recipe.rollout.engine == "transformers" else setup.mean_row
    room = setup.recipe.rollout.kv_budget_gb * GIB / (kv_token_bytes(setup) * row)
    return max(1, min(share, int(room)))
