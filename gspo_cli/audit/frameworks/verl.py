"""verl: Hydra overrides in shell scripts, and YAML."""

from gspo_cli.audit.findings import Findings, Settings, derive, implied, kl_term, steps
from gspo_cli.audit.frameworks.framework import Framework

ACTOR, CORRECTION = "actor_rollout_ref.actor.", "algorithm.rollout_correction."
OWN_MEAN = ("gspo", "sapo", "geo_mean")
"""The losses that ignore `loss_agg_mode`."""


def read(c: Settings, t: Framework) -> Findings:
    """What verl computes."""
    mode, bypass = c(ACTOR + "policy_loss.loss_mode", "vanilla"), c(CORRECTION + "bypass_mode", False)
    if bypass.value:  # replaces the loss mode
        names = {"reinforce": "reinforce", "ppo_clip": "vanilla"}
        mode = derive(lambda _, kind: names[kind], bypass, c(CORRECTION + "loss_type", "ppo_clip"))
    loss, unit = t.loss(mode)
    mean = t.mean(c(ACTOR + "loss_agg_mode", "token-mean"))
    mean = implied("per_response_mean", mode) if mode.value in OWN_MEAN else derive(lambda _, m: m, mode, mean)
    advantage = t.advantage(c("algorithm.adv_estimator", "gae"))
    std = derive(lambda a: a in ("gae", "reinforce_pp"), advantage)
    low, high, dual = (implied(None, mode) for _ in range(3))
    if mode.value in ("vanilla", "gspo", "geo_mean", "cispo"):
        low, high = c(ACTOR + "clip_ratio_low", 0.2), c(ACTOR + "clip_ratio_high", 0.2)
        if c.has(ACTOR + "clip_ratio") and not c.has(ACTOR + "clip_ratio_low", ACTOR + "clip_ratio_high"):
            c.notes.append(f"{ACTOR}clip_ratio alone has no effect since verl 0.4.1")
    prompts, mini = c("data.train_batch_size", 1024), c(ACTOR + "ppo_mini_batch_size", 256)
    old = derive(lambda on: "sampler" if on else "recomputed", bypass)
    epochs = c(ACTOR + "ppo_epochs", 1)
    updates = steps(epochs, prompts, mini)
    if prompts.value == 0:  # streamed: a batch is `require_batches` mini-batches
        batches = c("async_training.require_batches", 1)
        updates, prompts = steps(epochs, batches, c.fixed(1)), derive(lambda a, b: a * b, batches, mini)
        if c("async_training.use_rollout_log_probs", True).value:
            proximal = c("async_training.compute_prox_log_prob", False)
            old = derive(lambda on: "recomputed" if on else "sampler", proximal)
    in_loss, loss_coef = c(ACTOR + "use_kl_loss", False), c(ACTOR + "kl_loss_coef", 0.001)
    in_reward, reward_coef = c("algorithm.use_kl_in_reward", False), c("algorithm.kl_ctrl.kl_coef", 0.001)
    weights = c(CORRECTION + "rollout_is", None, "algorithm.rollout_is_level")
    cap = c(CORRECTION + "rollout_is_threshold", 2.0, "algorithm.rollout_is_threshold")

    def correction(weights: str | None, cap: object, rejection: str | None) -> str:
        parts = [weights and f"{weights}-level truncated weights, cap {cap}", rejection and f"rejection by {rejection}"]
        return "; ".join(filter(None, parts)) or "none"

    return Findings(
        **t.facts(c, prompts=prompts),
        loss=loss,
        unit=unit,
        mean=mean,
        advantage=advantage,
        std=c("algorithm.norm_adv_by_std_in_grpo", True) if advantage.value == "grpo" else std,
        clip_low=low,
        clip_high=high,
        dual_clip=c(ACTOR + "clip_ratio_c", 3.0) if mode.value == "vanilla" else dual,
        kl=kl_term(in_loss, loss_coef, in_reward, reward_coef),
        kl_coef=loss_coef if in_loss.value else reward_coef,
        updates=updates,
        old_log_probs=old,
        correction=derive(correction, weights, cap, c(CORRECTION + "rollout_rs", None)),
    )
