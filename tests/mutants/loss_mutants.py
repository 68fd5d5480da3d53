"""Errors in ratios, clips, reductions and the algorithms' own files."""

from mutant import Mutant

HAND = "algorithms/test_hand_fixture.py"
ORACLE = "algorithms/test_oracle.py"
CLIP = "algorithms/test_clip.py"
IDENTITIES = "algorithms/test_identities.py"
INVARIANT = "algorithms/test_invariances.py"
RUBBISH = f"{INVARIANT}::test_nothing_outside_the_mask_is_read"
REDUCTION = f"{IDENTITIES}::test_each_algorithm_reduces_token_terms_as_its_paper_does"
ON_POLICY = f"{IDENTITIES}::test_on_policy_all_gradients_are_one"
RATIO = "algorithms/ops.py"
SURROGATE = "algorithms/clip.py"

LOSS = (
    Mutant(
        "M1 log s is the sum, not the mean", RATIO,
        "return log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)",
        "return log_ratio_BT.sum(-1, keepdim=True)", HAND,
    ),
    Mutant(
        "log s divided by the padded width", RATIO,
        "return log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)",
        "return log_ratio_BT.mean(-1, keepdim=True)", f"{INVARIANT}::test_padding_left_and_right",
    ),
    Mutant(
        "log s over the batch instead of the tokens", RATIO,
        "return log_ratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)",
        "return log_ratio_BT.sum(0) / mask_BT.sum(0).clamp(min=1)", HAND,
    ),
    Mutant(
        "M2 edges of the clip range swapped", SURROGATE,
        "return log1p(-self.low), log1p(self.high)", "return log1p(-self.high), log1p(self.low)",
        f"{CLIP}::test_the_two_sides_of_the_range_are_not_exchanged",
    ),
    Mutant(
        "M2 clipped values swapped", SURROGATE,
        "1.0 - clip.low).masked_fill(log_ratio > 0, 1.0 + clip.high)",
        "1.0 - clip.high).masked_fill(log_ratio > 0, 1.0 + clip.low)",
        f"{CLIP}::test_the_value_is_the_smaller_of_both_products",
    ),
    Mutant(
        "linear edges for a log-ratio", SURROGATE,
        "return log1p(-self.low), log1p(self.high)", "return -self.low, self.high",
        f"{CLIP}::test_a_ratio_on_the_edge_keeps_its_gradient",
    ),
    Mutant(
        "M3 the larger of both products", SURROGATE,
        "((advantages > 0) & (x > high)) | ((advantages < 0) & (x < low))",
        "((advantages < 0) & (x > high)) | ((advantages > 0) & (x < low))", HAND,
    ),
    Mutant(
        "M4 clip ignores the advantage's sign", SURROGATE,
        "((advantages > 0) & (x > high)) | ((advantages < 0) & (x < low))",
        "(x > high) | (x < low)", HAND,
    ),
    Mutant(
        "clip at the edge, not beyond it", SURROGATE,
        "((advantages > 0) & (x > high)) | ((advantages < 0) & (x < low))",
        "((advantages > 0) & (x >= high)) | ((advantages < 0) & (x <= low))",
        f"{CLIP}::test_a_ratio_on_the_edge_keeps_its_gradient",
    ),
    Mutant(
        "M5 gspo_token adds in the wrong order", RATIO,
        "return (log_probs_BT - log_probs_BT.detach()) + log_s_B1",
        "return (log_s_B1 + log_probs_BT) - log_probs_BT.detach()",
        f"{IDENTITIES}::test_gspo_tokens_ratio_is_the_sequences_to_the_bit",
    ),
    Mutant(
        "gspo_token detaches the wrong side", RATIO,
        "return (log_probs_BT - log_probs_BT.detach()) + log_s_B1",
        "return (log_probs_BT.detach() - log_probs_BT) + log_s_B1", ORACLE, "gspo_token",
    ),
    Mutant(
        "gspo_token does not detach log s", RATIO,
        "log_s_B1 = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT).detach()",
        "log_s_B1 = sequence_log_ratio(log_probs_BT, old_log_probs_BT, mask_BT)", ORACLE, "gspo_token",
    ),
    Mutant(
        "M7 mask multiplied onto the ratio", RATIO,
        "return torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)",
        "return (log_probs_BT - old_log_probs_BT) * mask_BT", RUBBISH,
    ),
    Mutant(
        "ratio upside down", RATIO,
        "return torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)",
        "return torch.where(mask_BT, old_log_probs_BT, 0.0) - torch.where(mask_BT, log_probs_BT, 0.0)", HAND,
    ),
    Mutant(
        "M15 NaN made a number", RATIO,
        "return torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)",
        "return (torch.where(mask_BT, log_probs_BT, 0.0) - torch.where(mask_BT, old_log_probs_BT, 0.0)).nan_to_num()",
        f"{INVARIANT}::test_a_nan_in_a_loss_token_is_not_hidden",
    ),
    Mutant(
        "M16 log-ratios not limited", RATIO,
        "return log_ratio.clamp(-SATURATION, SATURATION)", "return log_ratio",
        f"{INVARIANT}::test_extreme_ratios_are_finite",
    ),
    Mutant(
        "half precision let in", RATIO,
        "assert log_probs_BT.dtype in (torch.float32, torch.float64)", "assert True",
        f"{INVARIANT}::test_half_precision_is_refused",
    ),
    Mutant(
        "dual clip compares a ratio with a log-ratio", SURROGATE,
        "dual = (advantages < 0) & (log_ratio > log(dual_clip))",
        "dual = (advantages < 0) & (log_ratio > dual_clip)", f"{CLIP}::test_dual_clip_bounds_the_open_side",
    ),
    Mutant(
        "dual clip ignores the sign", SURROGATE,
        "dual = (advantages < 0) & (log_ratio > log(dual_clip))", "dual = log_ratio > log(dual_clip)",
        f"{CLIP}::test_dual_clip_bounds_the_open_side",
    ),
    Mutant(
        "correction weights forgotten", SURROGATE,
        "scale = weighted_advantages(inputs)", "scale = advantages",
        f"{ORACLE}::test_correction_weights",
    ),
    Mutant(
        "weights not capped", RATIO,
        "return saturate(log_ratio).exp().clamp(max=cap).detach()", "return saturate(log_ratio).exp().detach()",
        f"{IDENTITIES}::test_cispo_caps_and_never_drops",
    ),
    Mutant(
        "M6 responses without loss tokens counted", "algorithms/ops.py",
        "return mask_BT.any(-1).sum()", "return torch.tensor(len(mask_BT))",
        f"{INVARIANT}::test_a_response_without_tokens_counts_nowhere",
    ),
    Mutant(
        "padding counted as tokens", "algorithms/ops.py",
        'loss tokens."""\n    return mask_BT.sum()', 'loss tokens."""\n    return torch.tensor(mask_BT.numel())',
        REDUCTION,
    ),
    Mutant(
        "no length normalisation", "algorithms/ops.py",
        "return (torch.where(mask_BT, terms, 0.0).sum(-1) / lengths_B).sum()",
        "return torch.where(mask_BT, terms, 0.0).sum()", REDUCTION,
    ),
    Mutant(
        "M7 mask multiplied onto the terms", "algorithms/ops.py",
        "return (torch.where(mask_BT, terms, 0.0).sum(-1) / lengths_B).sum()",
        "return ((terms * mask_BT).sum(-1) / lengths_B).sum()", REDUCTION,
    ),
    Mutant(
        "mean over the padded width", "algorithms/ops.py",
        "return (torch.where(mask_BT, terms, 0.0).sum(-1) / lengths_B).sum()",
        "return torch.where(mask_BT, terms, 0.0).mean(-1).sum()", REDUCTION,
    ),
    Mutant(
        "loss has the wrong sign", SURROGATE,
        "numerator = -reduce(surrogate.value, mask_BT)", "numerator = reduce(surrogate.value, mask_BT)", HAND,
    ),
    Mutant(
        "gspo divides by the length twice", "algorithms/gspo.py",
        "ops.sum_of_sequences",
        "lambda terms, mask: ops.sum_of_sequences(terms / mask.sum(-1, keepdim=True).clamp(min=1), mask)", HAND,
    ),
    Mutant(
        "gspo reduced over tokens", "algorithms/gspo.py",
        "denominator = ops.num_responses", "denominator = ops.num_tokens", ON_POLICY, "gspo",
    ),
    Mutant(
        "gspo's defaults swapped", "algorithms/gspo.py",
        "Clip(low=3e-4, high=4e-4)", "Clip(low=4e-4, high=3e-4)",
        f"{ORACLE}::test_the_defaults_are_the_published_ones",
    ),
    Mutant(
        "dapo divides by responses", "algorithms/dapo.py",
        "denominator = ops.num_tokens", "denominator = ops.num_responses", REDUCTION,
    ),
    Mutant(
        "dr_grpo divides by the batch's width", "algorithms/dr_grpo.py",
        "num_responses(mask_BT) * params.max_length", "num_responses(mask_BT) * mask_BT.shape[-1]",
        f"{INVARIANT}::test_padding_left_and_right", "dr_grpo",
    ),
    Mutant(
        "luspo normalised by length", "algorithms/luspo.py",
        "params, ops.sum_of_tokens", "params, ops.sum_of_token_means",
        f"{IDENTITIES}::test_gspo_as_a_token_mean_would_be_luspo",
    ),
    Mutant(
        "sapo's temperatures swapped", "algorithms/sapo.py",
        "params.tau_neg).masked_fill(advantages > 0, params.tau_pos)",
        "params.tau_pos).masked_fill(advantages > 0, params.tau_neg)",
        f"{IDENTITIES}::test_sapo_at_the_old_policy",
    ),
    Mutant(
        "sapo without 4/tau", "algorithms/sapo.py",
        "4 / tau * gate_BT * scale", "gate_BT * scale", f"{IDENTITIES}::test_sapo_at_the_old_policy",
    ),
    Mutant(
        "sapo's gate times the ratio", "algorithms/sapo.py",
        "4 / tau * gate_BT * scale", "4 / tau * gate_BT * ratio_BT * scale",
        f"{IDENTITIES}::test_sapos_gate_is_sech_squared",
    ),
    Mutant(
        "cispo's cap taken as 1 + cap", "algorithms/cispo.py",
        "capped_weight(log_ratio_BT, params.cap)", "capped_weight(log_ratio_BT, 1 + params.cap)",
        f"{IDENTITIES}::test_cispo_caps_and_never_drops",
    ),
    Mutant(
        "pi instead of log pi under a detached weight", "algorithms/ops.py",
        "return torch.where(mask_BT, weight, 0.0) * torch.where(mask_BT, log_probs_BT, 0.0)",
        "return torch.where(mask_BT, weight, 0.0) * torch.where(mask_BT, log_probs_BT.exp(), 0.0)",
        f"{IDENTITIES}::test_no_gradient_through_a_detached_weight",
    ),
    Mutant(
        "gmpo clamps both sides", "algorithms/gmpo.py",
        "(sign_B1 > 0) & (log_ratio_BT > bounds[1]), (sign_B1 < 0) & (log_ratio_BT < bounds[0])",
        "log_ratio_BT > bounds[1], log_ratio_BT < bounds[0]",
        f"{CLIP}::test_two_corners_lose_their_gradient_and_two_keep_it", "gmpo",
    ),
    Mutant(
        "gmpo does not clamp before the mean", "algorithms/gmpo.py",
        "pooled_B1 = torch.where(mask_BT, clamped_BT, 0.0)", "pooled_B1 = torch.where(mask_BT, log_ratio_BT, 0.0)",
        f"{IDENTITIES}::test_gmpo_clamps_before_the_mean",
    ),
    Mutant(
        "minirl weighs against the old policy", "algorithms/minirl.py",
        "token_log_ratio(log_probs_BT, inputs.sampler_log_probs_BT, mask_BT)",
        "token_log_ratio(log_probs_BT, inputs.old_log_probs_BT, mask_BT)", f"{ORACLE}::test_random_cases",
    ),
    Mutant(
        "minirl does not mask", "algorithms/minirl.py",
        "torch.where(surrogate.clipped_BT, 0.0, ops.capped_weight(log_weight_BT, params.cap) * scale)",
        "ops.capped_weight(log_weight_BT, params.cap) * scale", CLIP, "minirl",
    ),
    Mutant(
        "SAPO and others forget the correction", "algorithms/ops.py",
        "return advantages if inputs.weights is None else advantages * per_token(inputs.weights)", "return advantages",
        f"{ORACLE}::test_correction_weights", "sapo",
    ),
    Mutant(
        "reinforce pushes the wrong way", "algorithms/reinforce.py",
        "loss_numerator=-ops.sum_of_token_means", "loss_numerator=ops.sum_of_token_means", ON_POLICY, "reinforce",
    ),
    Mutant(
        "dppo_tv bounds the ratio", "algorithms/dppo_tv.py",
        "trust_region_loss(now_BT - old_BT, inputs", "trust_region_loss(now_BT / old_BT - 1, inputs",
        f"{ORACLE}::test_random_cases", "dppo_tv",
    ),
    Mutant(
        "dppo drops either direction", SURROGATE,
        "clipped_BT = beyond(change_BT, advantages, *edges) & mask_BT",
        "clipped_BT = (beyond(change_BT, advantages, *edges) | beyond(-change_BT, advantages, *edges)) & mask_BT",
        f"{ORACLE}::test_random_cases", "dppo_tv",
    ),
    Mutant(
        "the KL of the wrong direction", "algorithms/dppo_kl.py",
        "q_BT * (old_BT - now_BT) + (1 - q_BT) * ((1 - q_BT + EPS) / (1 - p_BT + EPS)).log()",
        "p_BT * (now_BT - old_BT) + (1 - p_BT) * ((1 - p_BT + EPS) / (1 - q_BT + EPS)).log()",
        f"{ORACLE}::test_random_cases", "dppo_kl",
    ),
    Mutant(
        "ipo's pull acts on the kept tokens alone", "algorithms/ipo.py",
        "slope_BT = (gain_BT - 2 * pull * limited_BT).detach()",
        "slope_BT = torch.where(far_BT, 0.0, gain_BT - 2 * pull * limited_BT).detach()",
        f"{ORACLE}::test_random_cases", "ipo",
    ),
    Mutant(
        "vespo's W is the geometric mean", "algorithms/vespo.py",
        "log_w_BT.sum(-1, keepdim=True).clamp", "log_w_BT.mean(-1, keepdim=True).clamp",
        f"{ORACLE}::test_random_cases", "vespo",
    ),
    Mutant(
        "vespo's kernel is not 1 at 1", "algorithms/vespo.py",
        "(lam + k * log_ratio_B1", "(k * log_ratio_B1", ON_POLICY, "vespo",
    ),
    Mutant(
        "aspo turns both signs over", "algorithms/aspo.py",
        "torch.where(positive, -log_ratio_BT, log_ratio_BT)", "-log_ratio_BT",
        f"{ORACLE}::test_random_cases", "aspo",
    ),
    Mutant(
        "gepo expects over the batch", "algorithms/gepo.py",
        "(groups_B[:, None] == groups_B)", "(groups_B[:, None] >= 0)", f"{ORACLE}::test_random_cases", "gepo",
    ),
    Mutant(
        "rloo counts a response among the others", RATIO,
        "divisor = (counts - 1) / counts", "divisor = torch.ones_like(counts)",
        f"{HAND}::test_each_algorithm_uses_the_advantage_of_its_paper", "rloo",
    ),
    Mutant(
        "maxrl without a right answer", RATIO,
        "divisor, signal = mean, signal & (mean > 0)", "divisor = mean",
        f"{HAND}::test_random_groups_against_the_oracle", "mean",
    ),
)  # fmt: skip
