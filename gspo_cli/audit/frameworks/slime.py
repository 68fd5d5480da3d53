"""slime and its fork miles: Megatron arguments in shell arrays or Python strings."""

from gspo_cli.audit.findings import Findings, Settings, derive, implied, kl_term, pick, steps, switched
from gspo_cli.audit.frameworks.framework import Framework


def read(c: Settings, t: Framework) -> Findings:
    """What slime computes. `kl_coef` reaches no loss of grpo, gspo or cispo."""
    kind = c("advantage_estimator", "grpo")
    loss, unit = t.loss(kind)
    own = c("loss_type", "policy_loss")
    if own.value != "policy_loss":
        loss = pick(own, {"sft_loss": "other:sft"})
    advantage = t.advantage(kind)
    mean = derive(lambda on: "token_mean" if on else "per_response_mean", c("calculate_per_token_loss", False))
    if c.has("custom_pg_loss_reducer_function_path"):
        path = c("custom_pg_loss_reducer_function_path")
        mean = derive(lambda name: {True: "constant"}["dr_grpo" in name.lower()], path)
    plain = [c(f"disable_{what}_normalization", False) for what in ("grpo_std", "rewards")]
    whitened = c("normalize_advantages", False)
    low, high = c("eps_clip", 0.2), c("eps_clip_high", None)
    count = c("num_steps_per_rollout", None)
    batch = (c("rollout_batch_size", None), c("n_samples_per_prompt", 1), c("global_batch_size", None))
    corrected = switched("token-level truncated weights", c("use_tis", False))
    if c.has("custom_tis_function_path") and corrected.value != "none":
        corrected = derive(lambda path: f"by the function {path}", c("custom_tis_function_path"))
    routes = [c(f"use_{kind}routing_replay", False) for kind in ("rollout_", "")]
    return Findings(
        **t.facts(c),
        loss=loss,
        unit=unit,
        mean=mean,
        advantage=advantage,
        std=derive(lambda a, x, y, w: w or (a == "grpo" and not (x or y)), advantage, *plain, whitened),
        clip_low=low,
        clip_high=low if high.known and high.value is None else high,
        dual_clip=implied(None, kind) if kind.value == "cispo" else c("eps_clip_c", None),
        kl=kl_term(
            c("use_kl_loss", False),
            c("kl_loss_coef", 0.0),
            derive(lambda a: a not in ("grpo", "gae"), advantage),
            c("kl_coef", 0.0),
        ),
        updates=count if count.value is not None else steps(*batch),
        old_log_probs=derive(lambda on: "sampler" if on else "recomputed", c("use_rollout_logprobs", False)),
        correction=corrected,
        replay=derive(lambda r3, r2: "r3" if r3 else "r2" if r2 else "none", *routes),
        dynamic_sampling=derive(bool, c("dynamic_sampling_filter_path", None)),
    )
