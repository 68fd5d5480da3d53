"""TRL, with its own defaults or Unsloth's, and ms-swift, which has TRL's loss."""

from gspo_cli.audit.findings import UNKNOWN, Findings, Settings, Value, derive, implied, kl_term, pick, steps, switched
from gspo_cli.audit.frameworks.framework import Framework

LEVELS = {"token": "token", "sequence": "sequence", "sequence_token": "sequence"}
SINCE = {
    "sapo_temperature_pos": "0.26",
    "off_policy_mask_threshold": "0.26",
    "vllm_importance_sampling_correction": "0.23",
    "importance_sampling_level": "0.20",
    "steps_per_generation": "0.18",
    "generation_batch_size": "0.18",
    "delta": "0.18",
}
"""Keys that tell the oldest version; versions before 0.16 are not considered."""


def read(c: Settings, t: Framework) -> Findings:
    """What TRL computes with GRPOConfig or RLOOConfig."""
    if "RLOOConfig" in c("_class").source or "rloo" in c("_main").source or c.has("normalize_advantages"):
        return read_rloo(c, t)
    unsloth = c.framework == "Unsloth"
    floor = next((version for key, version in SINCE.items() if c.has(key)), "0.18" if unsloth else "0.16")
    kind = c("loss_type", "bnpo") if unsloth else c.since("loss_type", (("0.16", "bnpo"), ("0.22", "dapo")), floor)
    if not kind.known and not c.absent and not c.has("loss_type"):
        kind = Value("dapo", f"{kind.source}; each takes the mean over tokens")
    loss, mean = t.loss(kind)
    if kind.value == "bnpo":  # the tokens of one micro-batch, which may be one response
        one = derive(lambda size: "per_response_mean" if size == 1 else "token_mean", _micro_batch(c, unsloth))
        mean = one if c.has("per_device_train_batch_size") else mean
    low, high = _clip(c, loss)
    if unsloth and kind.value == "dapo":
        high = c.fixed(0.28, "dapo in")
    beta = c("beta", 0.001) if unsloth else c.since("beta", (("0", 0.04), ("0.19", 0.0)), floor)
    scale = c("scale_rewards", True)
    if unsloth and kind.value == "dr_grpo" and c.has("scale_rewards") and scale.value is True:
        scale = c.fixed(False, "dr_grpo in")
    correction = implied("none", c("use_vllm", False))
    if c("use_vllm", False).value and not unsloth:
        weighs = c.since("vllm_importance_sampling_correction", (("0", False), ("0.23", True)), floor)
        correction = switched("weights between vLLM and the trainer", weighs)
    temperature = c.since("temperature", (("0", 0.9), ("0.18", 1.0)), floor)
    return Findings(
        **t.facts(c, temperature=temperature, trainer_temperature=temperature),
        loss=loss,
        unit=pick(c("importance_sampling_level", "token"), LEVELS),
        mean=mean,
        advantage=c.fixed("grpo"),
        std=derive(lambda s: s not in (False, None, "none"), scale),
        clip_low=low,
        clip_high=high,
        dual_clip=c("delta", None) if loss.value == "clip" else implied(None, loss),
        kl=kl_term(c.fixed(True), beta, c.fixed(False), beta),
        kl_coef=beta,
        updates=_updates(c, 2 if unsloth else 1),
        old_log_probs=c.fixed("recomputed", "the loop of"),
        correction=correction,
        replay=c.fixed("none", "no such key in"),
    )


def read_rloo(c: Settings, t: Framework) -> Findings:
    """What TRL computes with RLOOConfig: the penalty is in the reward."""
    c.notes.append("the ratio of a response is the product over its tokens, not their geometric mean")
    beta, low = c("beta", 0.05), c("epsilon", 0.2)
    return Findings(
        **t.facts(c, samples=c("num_generations", 2), temperature=c("temperature", 1.0)),
        loss=c.fixed("clip"),
        unit=c.fixed("sequence"),
        mean=c.fixed("per_response_mean"),
        advantage=c.fixed("rloo"),
        std=c("normalize_advantages", False),
        clip_low=low,
        clip_high=c("epsilon_high") if c.has("epsilon_high") else low,
        dual_clip=c.fixed(None),
        kl=kl_term(c.fixed(False), beta, c.fixed(True), beta),
        kl_coef=beta,
        updates=_updates(c, 1),
        old_log_probs=c.fixed("recomputed", "the loop of"),
        correction=c.fixed("none"),
    )


def _micro_batch(c: Settings, unsloth: bool) -> Value:
    """Responses in a micro-batch. Unsloth raises a size that its group does not divide to the group (one process)."""
    size, group = c("per_device_train_batch_size", 4 if unsloth else 8), c("num_generations", 8)
    if not unsloth:
        return size
    accumulated = c("gradient_accumulation_steps", 2)
    return derive(lambda n, a, g: n if n * a % g == 0 else g, size, accumulated, group)


def _clip(c: Settings, loss: Value) -> tuple[Value, Value]:
    """The bounds. That of CISPO is absolute and has no lower side, so its distance from 1 is one less."""
    low, high = c("epsilon", 0.2), c("epsilon_high", None)
    high = low if high.known and high.value is None else high
    if loss.value == "cispo":
        return c.fixed(None), derive(lambda bound: round(bound - 1, 12), high)
    return (low, high) if loss.value in ("clip", "luspo") else (implied(None, loss), implied(None, loss))


def _updates(c: Settings, accumulated: int) -> Value:
    """Optimizer steps on a generation batch; as many micro-batches as one step takes unless a key says otherwise."""
    batch, per_generation = c("generation_batch_size", None), c("steps_per_generation", None)
    if batch.value is not None:
        return Value(UNKNOWN, f"{batch.source}: the number of processes decides what generation_batch_size means")
    if per_generation.known and per_generation.value is None:
        return steps(c("num_iterations", 1), c.fixed(1), c.fixed(1))
    return steps(c("num_iterations", 1), per_generation, c("gradient_accumulation_steps", accumulated))


def read_swift(c: Settings, t: Framework) -> Findings:
    """What ms-swift computes. With Megatron, `steps_per_generation` counts optimizer steps."""
    loss, mean = t.loss(c("loss_type", "grpo"))
    low, high = _clip(c, loss)
    estimator = c("advantage_estimator", "grpo")
    megatron = c.has("global_batch_size", "micro_batch_size") or "megatron" in c("_main").source
    updates = _updates(c, 1)
    if megatron and c("steps_per_generation", None).value is not None:
        updates = steps(c("num_iterations", 1), c("steps_per_generation"), c.fixed(1, "Megatron in"))
    beta = derive(lambda b: 0.04 if b is None else b, c("beta", None))
    reward = derive(lambda r, e: e != "grpo" if r is None else r, c("kl_in_reward", None), estimator)
    scale = c("scale_rewards", "by the estimator")
    return Findings(
        **t.facts(c),
        loss=loss,
        unit=pick(c("importance_sampling_level", "token"), LEVELS),
        mean=mean,
        advantage=t.advantage(estimator),
        std=derive(
            lambda s, e: e != "rloo" if s == "by the estimator" else s not in (False, None, "none"), scale, estimator
        ),
        clip_low=low,
        clip_high=high,
        dual_clip=c("delta", None) if loss.value == "clip" else implied(None, loss),
        kl=kl_term(derive(lambda r: not r, reward), beta, reward, beta),
        kl_coef=beta,
        updates=updates,
        old_log_probs=c.fixed("recomputed", "the loop of"),
        correction=derive(lambda mode: mode or "none", c("rollout_importance_sampling_mode", None)),
    )
