"""Errors in advantages, the critic, KL and corrections, and in what is measured of them."""

from mutant import Mutant

HAND = "algorithms/test_hand_fixture.py"
SIGNALS = "algorithms/test_signals.py"
CLIP = "algorithms/test_clip.py"
RATIOS = "algorithms/test_ratio_metrics.py"
CHURN = "moe/test_volatility.py"
ACCUMULATE = "training/test_metrics.py"
ADVANTAGE = "algorithms/ops.py"
CRITIC = "algorithms/critic.py"
CLIP_METRICS = "algorithms/clip.py"
RATIO_METRICS = "algorithms/metrics.py"

SIGNAL = (
    Mutant(
        "M9 deviation divides by n", ADVANTAGE,
        "(counts - 1).clamp(min=1)).sqrt()", "counts.clamp(min=1)).sqrt()",
        f"{HAND}::test_deviation_divides_by_n_minus_1",
    ),
    Mutant(
        "M10 no rule for groups without spread", ADVANTAGE,
        "signal = with_spread(rewards_B, scored_B, groups_B, num_groups)",
        "signal = group_sum(centred_B.square()) > 0", f"{HAND}::test_a_spread_of_rounding_errors_is_none",
    ),
    Mutant(
        "the rule's threshold is not relative", ADVANTAGE,
        "torch.maximum(lowest.abs(), highest.abs()).clamp(min=1.0)", "torch.ones_like(lowest)",
        f"{HAND}::test_a_spread_of_rounding_errors_is_none",
    ),
    Mutant(
        "an epsilon beside the deviation", ADVANTAGE,
        "(counts - 1).clamp(min=1)).sqrt()", "(counts - 1).clamp(min=1)).sqrt() + 1e-4",
        f"{SIGNALS}::test_no_group_is_a_thousandth_short_of_its_deviation",
    ),
    Mutant(
        "M11 the batch's mean for the group's", ADVANTAGE,
        "rewards_B - mean[groups_B]", "rewards_B - rewards_B.sum() / scored_B.sum()",
        f"{HAND}::test_groups_may_be_interleaved",
    ),
    Mutant(
        "unscored responses in the mean", ADVANTAGE,
        "counts = group_sum(scored_B)", "counts = group_sum(torch.ones_like(scored_B))",
        f"{HAND}::test_unscored_responses_leave_mean_and_deviation",
    ),
    Mutant(
        "dr_grpo divides by the deviation", "algorithms/dr_grpo.py",
        "group_advantage(rewards_B, groups_B, scale=False)", "group_advantage(rewards_B, groups_B)",
        f"{HAND}::test_each_algorithm_uses_the_advantage_of_its_paper",
    ),
    Mutant(
        "GAE takes a masked token's value", CRITIC,
        "next_value_B = torch.where(here_B, values_BT[:, t], next_value_B)", "next_value_B = values_BT[:, t]",
        f"{SIGNALS}::test_gae_by_hand",
    ),
    Mutant(
        "GAE discounts over masked tokens", CRITIC,
        "next_advantage_B = torch.where(here_B, advantage_B, next_advantage_B)",
        "next_advantage_B = torch.where(here_B, advantage_B, gamma * lam * next_advantage_B)",
        f"{SIGNALS}::test_gae_by_hand",
    ),
    Mutant(
        "GAE pays at every token", CRITIC,
        "reward_B = torch.where(here_B, 0.0, reward_B)", "pass", f"{SIGNALS}::test_gae_by_hand",
    ),
    Mutant(
        "GAE forgets lambda", CRITIC,
        "delta_B + gamma * lam * next_advantage_B", "delta_B + gamma * next_advantage_B",
        f"{SIGNALS}::test_gae_by_hand",
    ),
    Mutant(
        "whitened over padding too", CRITIC,
        "standardized(advantages_BT, advantages_BT[mask_BT])", "standardized(advantages_BT, advantages_BT.flatten())",
        f"{SIGNALS}::test_ppos_advantages_are_whitened_gae",
    ),
    Mutant(
        "the smaller square of the value loss", CRITIC,
        "torch.maximum(plain_BT, clipped_BT)", "torch.minimum(plain_BT, clipped_BT)",
        f"{SIGNALS}::test_value_loss_by_hand",
    ),
    Mutant(
        "k3 upside down", "algorithms/kl.py",
        "saturate(-gap_BT).exp() + saturate(gap_BT) - 1", "saturate(gap_BT).exp() - saturate(gap_BT) - 1",
        f"{SIGNALS}::test_kl_by_hand",
    ),
    Mutant(
        "k1 differentiated as it stands", "algorithms/kl.py",
        "return gap_BT.detach() * (1 + gap_BT - gap_BT.detach())", "return gap_BT",
        f"{SIGNALS}::test_expected_kl_gradients_are_those_of_the_two_divergences",
    ),
    Mutant(
        "correction upside down", "algorithms/correction.py",
        "gap_BT = token_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT)",
        "gap_BT = token_log_ratio(sampler_log_probs_BT, old_log_probs_BT, mask_BT)",
        f"{SIGNALS}::test_corrections_by_hand",
    ),
    Mutant(
        "a sequence corrected by the product", "algorithms/correction.py",
        "saturate(sequence_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT))",
        "saturate(token_log_ratio(old_log_probs_BT, sampler_log_probs_BT, mask_BT).sum(-1, keepdim=True))",
        f"{SIGNALS}::test_corrections_by_hand",
    ),
    Mutant(
        "icepop cuts instead of dropping", "algorithms/correction.py",
        "if kind == \"seq_mask\" else c, 0.0)", "if kind == \"seq_mask\" else c, c.clamp(*bounds))",
        f"{SIGNALS}::test_corrections_by_hand",
    ),
    Mutant(
        "a long response whitens like a short one", CRITIC,
        "advantages_B.repeat_interleave(lengths_B)", "advantages_B",
        "algorithms/test_whole_batch.py::test_reinforce_pp_whitens_over_the_tokens_of_the_batch",
    ),
    Mutant(
        "GDPO adds rewards before it divides", "training/step/batches.py",
        "reward.weight * group_advantage(part_B, groups_B)",
        "reward.weight * group_advantage(part_B, groups_B, scale=False)",
        "algorithms/test_whole_batch.py::test_gdpo_divides_each_reward_by_its_own_deviation",
    ),
    Mutant(
        "OPSM drops good responses too", "algorithms/correction.py",
        "(per_token(advantages) < 0) & (gap_B1 > delta)", "(gap_B1 > delta)",
        f"{SIGNALS}::test_opsm_by_hand",
    ),
    Mutant(
        "OPSM measures from the policy", "algorithms/correction.py",
        "sequence_log_ratio(sampler_log_probs_BT, log_probs_BT.detach(), mask_BT)",
        "sequence_log_ratio(log_probs_BT.detach(), sampler_log_probs_BT, mask_BT)",
        f"{SIGNALS}::test_opsm_by_hand",
    ),
    Mutant(
        "low and high clip fractions exchanged", CLIP_METRICS,
        '"clip/low_frac": Mean((clipped_BT & (sign_BT < 0)).sum(), tokens)',
        '"clip/low_frac": Mean((clipped_BT & (sign_BT > 0)).sum(), tokens)',
        f"{CLIP}::test_two_corners_lose_their_gradient_and_two_keep_it",
    ),
    Mutant(
        "clip fraction without the sign", CLIP_METRICS,
        '"clip/token_frac": Mean(clipped_BT.sum(), tokens)', '"clip/token_frac": Mean(outside_BT.sum(), tokens)',
        f"{CLIP}::test_two_corners_lose_their_gradient_and_two_keep_it",
    ),
    Mutant(
        "a response counts as clipped by one token", CLIP_METRICS,
        "torch.eq(clipped_BT, mask_BT).all(-1) & response_B", "clipped_BT.any(-1) & response_B",
        f"{HAND}::test_clips_are_reached_on_both_sides",
    ),
    Mutant(
        "active fraction over all tokens", CLIP_METRICS,
        "(mask_BT & (sign_BT != 0)).sum()", "tokens", f"{CLIP}::test_clip_fractions_are_autograds_exact_zeros",
    ),
    Mutant(
        "kl/old_k1 has the wrong sign", RATIO_METRICS,
        "Mean(-log_w_N.sum(), tokens)", "Mean(log_w_N.sum(), tokens)", f"{RATIOS}::test_by_hand",
    ),
    Mutant(
        "smallest and largest ratio exchanged", RATIO_METRICS,
        "Extreme(saturate(low_B.amin()).exp(), -1)", "Extreme(saturate(high_B.amax()).exp(), -1)",
        f"{RATIOS}::test_by_hand",
    ),
    Mutant(
        "E[x^2] - E[x]^2", RATIO_METRICS,
        "torch.where(mask, (values - mean).square(), 0.0).sum())", "values.square().sum() - count * mean.square())",
        f"{RATIOS}::test_a_spread_keeps_its_digits",
    ),
    Mutant(
        "a mean of means", "training/step/metrics.py",
        "return type(one)(*map(add, one, other))",
        "return type(one)(*(one[0] / one[1] / 2 + other[0] / other[1] / 2, 1))",
        f"{ACCUMULATE}::test_a_mean_is_divided_once",
    ),
    Mutant(
        "spreads merged without the gap of their means", "types.py",
        "self.squares + other.squares + gap * gap * self.num * share", "self.squares + other.squares",
        f"{ACCUMULATE}::test_a_deviation_survives_any_cut_and_a_large_mean",
    ),
    Mutant(
        "the smaller extreme is kept", "types.py",
        "self.sign * (self.sign * self.value).maximum(self.sign * other.value)", "self.value.maximum(other.value)",
        f"{ACCUMULATE}::test_extremes",
    ),
    Mutant(
        "churn sees the order of experts", "moe/volatility.py",
        "_same_LNKK(before_LNK, after_LNK).any(-1).sum(-1)", "(before_LNK == after_LNK).sum(-1)",
        f"{CHURN}::test_hand_made_sets",
    ),
    Mutant(
        "routes of the token, not of its prediction", "training/step/batches.py",
        "index_BT[:, :-1][mask_BT[:, 1:]]", "index_BT[:, 1:][mask_BT[:, 1:]].clamp(max=positions_N[-1])",
        "training/test_update.py::test_the_loss_tokens_are_the_response_to_its_end",
    ),
    Mutant(
        "replayed experts with the natural ones' gates", "moe/hooks.py",
        "replayed = (logits, self.routing.rule(gate, logits, index_RK).to(gates.dtype), index_RK)",
        "replayed = (logits, gates, index_RK)",
        "moe/test_replay.py::test_replayed_experts_get_the_gates_of_the_current_logits",
    ),
    Mutant(
        "gates gathered from what top-k has zeroed", "moe/routers.py",
        "share_RK = score(logits_RE.float()).gather(-1, index_RK)",
        "share_RK = (score(logits_RE.float()) * torch.zeros_like(logits_RE).scatter("
        "-1, logits_RE.topk(index_RK.shape[-1]).indices, 1.0)).gather(-1, index_RK)",
        "moe/test_replay.py::test_gates_are_those_of_the_current_logits",
    ),
    Mutant(
        "r3 leaves the old policy's pass natural", "training/step/update.py",
        "with routed(tap, micro, record_to_replay(learner.algo, micro)):", "with routed(tap, micro, None):",
        "training/test_replay_in_training.py::test_r3_replays_in_the_old_pass_and_the_first_update_too",
    ),
)  # fmt: skip
