"""Errors in log-probabilities, mini-batches, the update and the loop."""

from mutant import Mutant

LOG_PROBS = "models/test_log_probs.py"
BATCHES = "training/test_batches.py"
LOOP = "training/test_loop.py"
GUARDS = "reliability/test_guards.py"
STALE = "reliability/test_stale_rollouts.py"
STEP = "training/test_update.py"
EQUAL_CUTS = f"{BATCHES}::test_gradient_and_metrics_do_not_depend_on_the_cut"
UPDATE = "training/step/update.py"
BACKWARD = "(numerator / denominator).backward()"
MASK = "mask_BT = (positions_T >= starts_B1) & (positions_T < lengths_B1)"

TRAINING = (
    Mutant(
        "M12 scores shifted by one token", "models/log_probs.py",
        "predicting_N = loss_N - 1", "predicting_N = loss_N",
        f"{LOG_PROBS}::test_equals_log_softmax_of_the_logits_before",
    ),
    Mutant(
        "temperature ignored", "models/log_probs.py",
        "scores_NV if temperature == 1 else scores_NV / temperature", "scores_NV",
        f"{LOG_PROBS}::test_equals_log_softmax_of_the_logits_before",
    ),
    Mutant(
        "scores placed by column first", "models/log_probs.py",
        "scores.view(input_ids_BT.shape)", "scores.view(input_ids_BT.shape[::-1]).T",
        f"{LOG_PROBS}::test_equals_log_softmax_of_the_logits_before",
    ),
    Mutant(
        "M14 the last token, EOS, masked", "training/step/batches.py", MASK,
        "mask_BT = (positions_T >= starts_B1) & (positions_T < lengths_B1 - 1)",
        f"{STEP}::test_the_loss_tokens_are_the_response_to_its_end",
    ),
    Mutant(
        "the prompt's last token trained", "training/step/batches.py", MASK,
        "mask_BT = (positions_T >= starts_B1 - 1) & (positions_T < lengths_B1)",
        f"{STEP}::test_the_loss_tokens_are_the_response_to_its_end",
    ),
    Mutant(
        "sampler's log-probabilities off by one", "training/step/batches.py",
        "sampled[i, response] = row.sample.log_probs",
        "sampled[i, response.start - 1 : response.stop - 1] = row.sample.log_probs",
        f"{STEP}::test_the_loss_tokens_are_the_response_to_its_end",
    ),
    Mutant(
        "M6 skipped rows missing in the denominator", "training/step/batches.py",
        "torch.tensor(counted_lengths)[:, None]", "torch.tensor(trained_lengths)[:, None]",
        f"{BATCHES}::test_skipping_rows_without_advantage_changes_no_gradient",
    ),
    Mutant(
        "unscored responses trained and counted", "training/step/batches.py",
        "zip(rows[i], scored[i], strict=True) if is_scored]", "zip(rows[i], scored[i], strict=True)]",
        f"{BATCHES}::test_unscored_responses_are_left_out",
    ),
    Mutant(
        "groups torn apart between mini-batches", "training/step/batches.py",
        "[part.tolist() for part in torch.arange(len(groups)).tensor_split(parts)]",
        "[list(range(i, len(groups), parts)) for i in range(parts)]",
        f"{BATCHES}::test_split_keeps_groups_whole_and_even",
    ),
    Mutant(
        "groups torn apart between micro-batches", "training/step/batches.py",
        "if batching.whole_groups:", "if False:", f"{BATCHES}::test_whole_groups_are_not_cut",
    ),
    Mutant(
        "M8 a mean of micro-batch means", UPDATE, BACKWARD,
        "(numerator / output.denominator / len(mini_batch.micro_batches)).backward()", EQUAL_CUTS,
    ),
    Mutant(
        "denominators of the micro-batch", UPDATE, BACKWARD,
        "(numerator / output.denominator).backward()", EQUAL_CUTS,
    ),
    Mutant(
        "only the last micro-batch's gradient", UPDATE, BACKWARD,
        "learner.optimizer.zero_grad(); (numerator / denominator).backward()", EQUAL_CUTS,
    ),
    Mutant(
        "clip fractions without the skipped rows", UPDATE,
        "n: Mean(zero, count) for n", "n: Mean(zero, 0 * count) for n",
        f"{BATCHES}::test_clip_fractions_count_skipped_rows",
    ),
    Mutant(
        "M30 a non-finite gradient applied", UPDATE,
        "applied := all(finite)", "applied := True",
        f"{GUARDS}::test_a_non_finite_number_never_updates_and_never_vanishes", "in_loss and nan",
    ),
    Mutant(
        "only the loss is checked", UPDATE,
        "applied := all(finite)", "applied := finite[0]",
        f"{GUARDS}::test_a_non_finite_number_never_updates_and_never_vanishes", "in_gradient and inf",
    ),
    Mutant(
        "gradient not clipped", UPDATE,
        "nn.utils.clip_grads_with_norm_(parameters, learner.grad_clip, norm)", "pass",
        f"{STEP}::test_the_gradient_is_clipped_to_its_global_norm",
    ),
    Mutant(
        "learning rate not set", UPDATE,
        'group["lr"] = lr', "pass", f"{STEP}::test_the_learning_rate_is_the_one_given",
    ),
    Mutant(
        "a step without a signal", UPDATE,
        "if mini_batch.micro_batches:\n        metrics.add(step(learner, loss, lr))",
        "if True:\n        metrics.add(step(learner, loss, lr))", f"{BATCHES}::test_no_signal_makes_no_step",
    ),
    Mutant(
        "KL penalty rewards distance", UPDATE,
        "output.loss_numerator + algo.kl.coef * penalty", "output.loss_numerator - algo.kl.coef * penalty",
        f"{STEP}::test_the_kl_penalty_is_added_to_the_loss",
    ),
    Mutant(
        "KL penalty with another reduction", UPDATE,
        "learner.algorithm.token_terms(terms_BT, micro.mask_BT)", "terms_BT.sum()",
        f"{STEP}::test_the_kl_penalty_is_added_to_the_loss",
    ),
    Mutant(
        "correction weighs by the policy now", UPDATE,
        "micro.old_log_probs_BT, micro.sampler_log_probs_BT, micro.mask_BT,",
        "scores.log_probs_BT.detach(), micro.sampler_log_probs_BT, micro.mask_BT,",
        f"{STEP}::test_corrections_weigh_by_the_old_policy",
    ),
    Mutant(
        "M13 old log-probabilities taken before each mini-batch", "training/loop.py",
        'with clock("update_s"), enough_memory("training", TRAIN_LESS):\n            updates',
        'with clock("update_s"), enough_memory("training", TRAIN_LESS):\n'
        "            record_old_policy(learner, [mini_batches[0], mini_batch])\n            updates",
        f"{LOOP}::test_all_mini_batches_share_the_old_policy_of_the_batch",
    ),
    Mutant(
        "a batch older than max_lag", "training/rollout_queue.py", "step + recipe.rollout.max_lag,",
        "step + recipe.rollout.max_lag + 1,", f"{STALE}::test_each_batch_is_drawn_by_the_weights_that_the_lag_names",
    ),
    Mutant(
        "a batch younger than max_lag", "training/rollout_queue.py", "step + recipe.rollout.max_lag,",
        "step + min(1, recipe.rollout.max_lag),",
        f"{STALE}::test_each_batch_is_drawn_by_the_weights_that_the_lag_names",
    ),
    Mutant(
        "lag taken for a mismatch", "training/step/rollout_metrics.py",
        "as_lag(mismatch) if stale else mismatch", "mismatch",
        f"{STALE}::test_each_batch_is_drawn_by_the_weights_that_the_lag_names",
    ),
    Mutant(
        "a ratio that misses the lag accepted", "training/study/checks.py",
        "lag > 0 and algorithm.HAS_RATIO and not sees_lag", "False",
        "training/test_rollout_queue.py::test_an_objective_that_does_not_see_the_lag_is_refused",
    ),
    Mutant(
        "every mini-batch counts as the first", "training/loop.py",
        "first=index == 0", "first=True", f"{LOOP}::test_all_mini_batches_share_the_old_policy_of_the_batch",
    ),
)  # fmt: skip
