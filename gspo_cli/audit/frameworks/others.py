"""NeMo-RL, SkyRL, ROLL, AReaL, prime-rl, OpenRLHF and open-instruct."""

import re
from math import prod

from gspo_cli.audit.findings import Findings, Settings, Value, derive, implied, kl_term, pick, steps, switched
from gspo_cli.audit.frameworks.framework import Framework

CHANGED = "2026-03-20"
"""The day on which open-instruct got Clip-Higher, centred advantages and truncated weights by default."""


def read_nemo_rl(c: Settings, t: Framework) -> Findings:
    """What NeMo-RL computes."""
    whole, off = c("loss_fn.sequence_level_importance_ratios", False), c("loss_fn.disable_ppo_ratio", False)
    loss = derive(lambda o, soft: "reinforce" if o else "cispo" if soft else "clip", off, c("loss_fn.use_cispo", False))
    keys = (("ratio_clip_min", 0.2), ("ratio_clip_max", 0.2), ("ratio_clip_c", None))
    low, high, dual = (c(f"loss_fn.{key}", value) for key, value in keys)
    if off.value is not False:
        low = high = implied(None, loss)
    facts = t.facts(c)
    coef, in_reward = facts["kl_coef"], c("loss_fn.use_kl_in_reward", False)
    return Findings(
        **facts,
        loss=loss,
        unit=derive(lambda o, w: "none" if o else "sequence" if w else "token", off, whole),
        mean=derive(lambda on: "token_mean" if on else "per_response_mean", c("loss_fn.token_level_loss", True)),
        advantage=c.fixed("gae", "the table ppo of")
        if c.under("ppo")
        else t.advantage(c("grpo.adv_estimator.name", "grpo")),
        std=c("grpo.adv_estimator.normalize_rewards", True, "grpo.normalize_rewards"),
        clip_low=low,
        clip_high=high,
        dual_clip=dual if loss.value == "clip" else implied(None, loss),
        kl=kl_term(derive(lambda on: not on, in_reward), coef, in_reward, coef),
        updates=steps(facts["prompts"], facts["samples"], c("policy.train_global_batch_size", 512)),
        old_log_probs=c.fixed("recomputed", "the loop of"),
        correction=derive(
            lambda on, kind, cap: "none" if not on else f"{kind}, bound {cap}" if kind else "untruncated weights",
            c("loss_fn.use_importance_sampling_correction", False),
            c("loss_fn.truncated_importance_sampling_type", None),
            c("loss_fn.truncated_importance_sampling_ratio", None),
        ),
        replay=switched("r3", c("policy.router_replay.enabled", False)),
    )


def read_skyrl(c: Settings, t: Framework) -> Findings:
    """What SkyRL computes. Its KL loss is on by default, its dual clip only with the loss of that name."""
    algo = "trainer.algorithm."
    c.version = c.version or ("0.4" if "skyrl_train" in c("_main").source else None)
    new = "0.5" if "skyrl.train" in c("_main").source else "0"
    kind = c(algo + "policy_loss_type", "regular")
    loss, unit = t.loss(kind)
    advantage = t.advantage(c(algo + "advantage_estimator", "grpo"))
    whitened = c(algo + "advantage_batch_normalize", False)
    std = derive(lambda a, on: on or a in ("gae", "reinforce_pp"), advantage, whitened)
    low, high = c(algo + "eps_clip_low", 0.2), c(algo + "eps_clip_high", 0.2)
    if loss.value == "cispo":
        low = c.since(algo + "cispo.cispo_eps_clip_low", (("0", 0.0), ("0.5", 1.0)), new)
        high = c.since(algo + "cispo.cispo_eps_clip_high", (("0", 5.0), ("0.5", 4.0)), new)
    elif loss.value != "clip":
        low = high = implied(None, loss)
    coef, weights = c(algo + "kl_loss_coef", 0.001), c(algo + "off_policy_correction.tis_ratio_type", None)
    if c(algo + "use_tis", False).value:
        weights = implied("token", c(algo + "use_tis"))
    facts = t.facts(c)
    return Findings(
        **facts,
        loss=loss,
        unit=unit,
        mean=t.mean(c(algo + "loss_reduction", "token_mean")),
        advantage=advantage,
        std=c(algo + "grpo_norm_by_std", True) if advantage.value == "grpo" else std,
        clip_low=low,
        clip_high=high,
        dual_clip=c(algo + "clip_ratio_c", 3.0) if kind.value == "dual_clip" else implied(None, kind),
        kl=kl_term(c(algo + "use_kl_loss", True), coef, c(algo + "use_kl_in_reward", False), coef),
        kl_coef=coef,
        updates=steps(
            c("trainer.update_epochs_per_batch", 1), facts["prompts"], c("trainer.policy_mini_batch_size", 256)
        ),
        old_log_probs=c.fixed("recomputed", "the loop of"),
        correction=derive(lambda level: f"{level}-level truncated weights" if level else "none", weights),
        replay=switched("r3", c("trainer.policy.megatron_config.moe_enable_routing_replay", False)),
        dynamic_sampling=derive(bool, c(algo + "dynamic_sampling.type", None)),
    )


def read_roll(c: Settings, t: Framework) -> Findings:
    """What ROLL computes. `pg_clip_low` and `pg_clip_high` act only with `use_pg_clip_range`."""
    loss, unit = c.fixed("clip"), pick(c("importance_sampling", "token"), {"token": "token", "seq": "sequence"})
    if "ActorPGWorker" in str(c("actor_train.worker_cls", "ActorWorker").value):
        loss, unit = t.loss(c("actor_train.pg_variant", "vanilla", "pg_variant"))
    clip, train = c("pg_clip", 0.2), "actor_train.training_args."
    low = high = clip
    if c("use_pg_clip_range", False).value:
        low, high = c("pg_clip_low", 0.2), c("pg_clip_high", 0.28)
    dual = derive(lambda on, bound: 1 + 2 * bound if on else None, c("dual_clip_loss", False), clip)
    if loss.value != "clip":
        low = high = dual = implied(None, loss)
    advantage = t.advantage(c("adv_estimator", "gae"))
    whitened, norm = c("whiten_advantages", False), c("norm_std_type", None)
    facts = t.facts(c)
    sizes = [c(train + "per_device_train_batch_size", 8), c(train + "gradient_accumulation_steps", 1)]
    mini = derive(lambda size, accumulated, ranks: size * accumulated * ranks, *sizes, _ranks(c))
    updates = steps(c("ppo_epochs", 1), facts["prompts"], facts["samples"], mini)
    in_reward, reward_coef = c("add_token_level_kl", False), c("init_kl_coef", 0.2)
    return Findings(
        **facts,
        loss=loss,
        unit=unit,
        mean=t.mean(c("loss_agg_mode", "seq-mean-token-mean")),
        advantage=advantage,
        std=derive(lambda a, n, w: a == "grpo" or bool(n or w), advantage, norm, whitened),
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
        kl=kl_term(c("use_kl_loss", False), facts["kl_coef"], in_reward, reward_coef),
        updates=updates,
        old_log_probs=derive(lambda n, kl: "current" if n == 1 and not kl else "recomputed", updates, reward_coef),
        correction=switched("truncated weights", c("train_infer_correction.is_weight.enabled", False)),
        replay=derive(lambda mode: str(mode or "none").lower(), c("actor_train.router_replay.mode", None)),
    )


def _ranks(c: Settings) -> Value:
    """ROLL's data-parallel processes: devices / (tensor x pipeline x context or Ulysses)."""
    prefix = "actor_train.strategy_args.strategy_config."
    parallel = [c(f"{prefix}{kind}_parallel_size", 1) for kind in ("tensor_model", "pipeline_model", "context")]
    parallel.append(c(prefix + "ulysses_size", 1))

    def count(devices: object, *sizes: int) -> int:
        span = re.fullmatch(r"list\(range\((\d+),\s*(\d+)\)\)", str(devices))
        if not span and not isinstance(devices, list):
            raise ValueError
        number = int(span[2]) - int(span[1]) if span else len(devices)  # type: ignore[arg-type]
        return number // prod(sizes)

    return derive(count, c("actor_train.device_mapping"), *parallel)


def read_areal(c: Settings, t: Framework) -> Findings:
    """What AReaL computes: always the mean over tokens; KL in the reward; without a critic, advantages are returns."""
    loss = derive(lambda on: "sapo" if on else "clip", c("actor.use_sapo_loss", False))
    low, high, dual = c("actor.eps_clip", 0.2), c("actor.eps_clip_higher", None), c("actor.c_clip", None)
    high = low if high.known and high.value is None else high
    if loss.value != "clip":
        low = high = dual = implied(None, loss)
    norms = {norm: "batch" if c.under(norm) else None for norm in ("actor.reward_norm", "actor.adv_norm")}
    means, stds = ([c(f"{norm}.{what}_level", level) for norm, level in norms.items()] for what in ("mean", "std"))
    left_out = c("actor.reward_norm.mean_leave1out", False)

    def kind(of_rewards: object, of_advantages: object, std: object, leave: object) -> str:
        if "group" not in (of_rewards, of_advantages):
            return "reinforce_pp"
        return "rloo" if leave else "lite" if std == "batch" else "grpo"

    decoupled = c("actor.use_decoupled_loss", False)
    anew = derive(lambda *on: "recomputed" if any(on) else "sampler", c("actor.recompute_logprob", False), decoupled)
    facts = t.facts(c)
    return Findings(
        **facts,
        loss=loss,
        unit=pick(c("actor.importance_sampling_level", "token"), {"token": "token", "sequence": "sequence"}),
        mean=c.fixed("token_mean"),
        advantage=c.fixed("gae", "the critic of") if c.under("critic") else derive(kind, *means, stds[0], left_out),
        std=derive(lambda *levels: any(levels), *stds),
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
        kl=kl_term(c.fixed(False), facts["kl_coef"], c.fixed(True), facts["kl_coef"]),
        old_log_probs=anew,
        correction=switched("token weights between trainer and sampler", decoupled),
        replay=switched("r3", c("sglang.enable_return_routed_experts", False)),
    )


def read_prime_rl(c: Settings, t: Framework) -> Findings:
    """What prime-rl computes: `orchestrator.algo.type` sets the advantage alone; the ratio is to the sampler."""
    early = c.has("orchestrator.rollouts_per_example", "orchestrator.env", "trainer.loss.ratio_type")
    default = "other:is_reinforce_token_mask" if early else "other:dppo"
    facts = t.facts(c)
    if facts["samples"].value == 1:
        c.notes.append("groups of one response: reward minus group mean is always 0, so nothing is learned")
    return Findings(
        **facts,
        loss=pick(c("trainer.loss.type", "default"), {"default": default, "ipo": "other:ipo"}),
        unit=pick(c("trainer.loss.ratio_type", "token"), {"token": "token", "sequence": "sequence"}),
        mean=c.fixed("token_mean"),
        advantage=t.advantage(c("orchestrator.algo.type", "grpo", "orchestrator.advantage.type")),
        std=c.fixed(False, "the advantage of"),
        clip_low=c.fixed(None),
        clip_high=c.fixed(None),
        dual_clip=c.fixed(None),
        kl=c.fixed("none"),
        kl_coef=c.fixed(0.0),
        updates=c.fixed(1, "the loop of"),
        old_log_probs=c.fixed("sampler"),
        correction=c.fixed("none"),
        prompts=derive(lambda n, group: n // group, c("orchestrator.batch_size", 128), facts["samples"]),
        replay=switched("r3", c("trainer.enable_router_replay", False)),
    )


def read_openrlhf(c: Settings, t: Framework) -> Findings:
    """What OpenRLHF computes. GSPO alone takes the mean of each response; `dr_grpo` changes the advantage alone."""
    kind = c("actor.policy_loss_type", "ppo", "policy_loss_type")
    loss, unit = t.loss(kind)
    advantage = t.advantage(c("algo.advantage.estimator", "gae", "advantage_estimator"))
    plain = c("algo.advantage.no_std_norm", False, "no_advantage_std_norm")
    pair, one = c("actor.eps_clip_low_high", None, "eps_clip_low_high"), c("actor.eps_clip", 0.2, "eps_clip")
    low, high = (one if pair.value is None else derive(lambda both, at=at: both[at], pair) for at in (0, 1))
    coef, in_loss = c("algo.kl.init_coef", 0.01, "init_kl_coef"), c("algo.kl.use_loss", False, "use_kl_loss")
    corrected = c("algo.advantage.is_correction_enable", False, "enable_vllm_is_correction")
    how = c("algo.advantage.is_correction_type", "tis", "vllm_is_correction_type")
    epochs, size = c("train.max_epochs", 1, "max_epochs"), c("train.batch_size", 128, "train_batch_size")
    facts = t.facts(c)
    return Findings(
        **facts,
        loss=loss,
        unit=unit,
        mean=derive(lambda u: "per_response_mean" if u == "sequence" else "token_mean", unit),
        advantage=advantage,
        std=derive(lambda a, no: a in ("gae", "reinforce_pp", "grpo") and not no, advantage, plain),
        clip_low=low,
        clip_high=high,
        kl=kl_term(in_loss, coef, derive(lambda on: not on, in_loss), coef),
        kl_coef=coef,
        updates=steps(epochs, facts["prompts"], facts["samples"], size),
        old_log_probs=derive(lambda k, on: "sampler" if k == "gspo" and on else "recomputed", kind, corrected),
        correction=derive(lambda on, kind: str(kind) if on else "none", corrected, how),
        replay=c.fixed("none", "no such key in"),
    )


def read_open_instruct(c: Settings, t: Framework) -> Findings:
    """What open-instruct computes: token ratios alone, and no dual clip."""
    loss, unit = t.loss(c("loss_fn", "dapo"))
    scaled = c.since("advantage_normalization_type", (("0", "standard"), (CHANGED, "centered")))
    updates = steps(c("num_mini_batches", 1), c("num_epochs", 1), c.fixed(1))
    beta = c("beta", 0.05)
    cap = c.since("truncated_importance_sampling_ratio_cap", (("0", 0.0), (CHANGED, 2.0)))
    whose = c("use_vllm_logprobs", False)
    return Findings(
        **t.facts(c),
        loss=loss,
        unit=unit,
        mean=derive(lambda by: "token_mean" if by in ("token", None) else "constant", c("loss_denominator", "token")),
        advantage=c.fixed("grpo"),
        std=derive(lambda kind: kind == "standard", scaled),
        clip_low=c("clip_lower", 0.2) if loss.value == "clip" else implied(None, loss),
        clip_high=c.since("clip_higher", (("0", 0.2), (CHANGED, 0.272))),
        dual_clip=c.fixed(None),
        kl=kl_term(c.fixed(True), beta, c.fixed(False), beta),
        kl_coef=beta,
        updates=updates,
        old_log_probs=derive(lambda on, n: "sampler" if on else "current" if n == 1 else "recomputed", whose, updates),
        correction=derive(lambda cap: f"token-level truncated weights, cap {cap}" if cap else "none", cap),
        replay=c.fixed("none", "no such key in"),
    )
