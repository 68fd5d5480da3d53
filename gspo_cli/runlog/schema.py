"""Every metric that may be logged: the single source of the glossary, the axis labels and the log's checks.

Each value is a mean, an extreme or a spread over its whole line (all micro-batches, ranks and, on `step` lines,
mini-batches), never a mean of means.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from gspo_cli.errors import GspoError

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the glossary."""

    unit: str
    definition: str
    """For a ratio, as `numerator / denominator`."""
    lines: str
    """The log lines that hold it: `rollout`, `update` (one per mini-batch), `step` (pooled), `eval`."""
    better: Better = "neither"
    reduction: str = "mean"
    """`mean` = summed numerators over summed denominators; `std`, `max`, `min`, `last`, `sum`; `fit` = computed once
    from sums or tails of the whole line."""
    layers: bool = False
    """Whether `step` lines also hold it per MoE layer, as `NAME/layer_02` (the layer's number in the model)."""


TRAINED = "only rows with an advantage; the others are skipped"

METRICS: dict[str, Metric] = {
    "reward/mean": Metric(
        "reward", "sum of rewards / scored responses, over all sampled groups (also those put aside)", "rollout",
        "higher",
    ),
    "reward/mean_kept": Metric(
        "reward", "the same over the groups that dynamic sampling kept; logged only under dynamic sampling", "rollout",
    ),
    "reward/part": Metric(
        "reward",
        "sum of one of several rewards, before its weight / responses that it scored; logged as reward/part/LABEL",
        "rollout",
    ),
    "reward/std": Metric("reward", "standard deviation of the reward over responses (n - 1)", "rollout", reduction="std"),
    "reward/group_std": Metric("reward", "sum of the groups' standard deviations / groups", "rollout"),
    "group/zero_std_frac": Metric("frac", "groups whose rewards are all equal / groups", "rollout", "lower"),
    "group/all_best_frac": Metric("frac", "groups whose rewards all equal the batch's highest / groups", "rollout"),
    "group/all_worst_frac": Metric("frac", "groups whose rewards all equal the batch's lowest / groups", "rollout"),
    "adv/abs_mean": Metric("1", "sum of |advantage| / responses", "rollout"),
    "adv/abs_max": Metric("1", "largest |advantage|", "rollout", reduction="max"),
    "length/mean": Metric("tokens", "response tokens, including EOS / responses", "rollout"),
    "length/std": Metric("tokens", "standard deviation of the response length (n - 1)", "rollout", reduction="std"),
    "length/max": Metric("tokens", "longest response", "rollout", reduction="max"),
    "length/mean_pos": Metric("tokens", "tokens / responses, over responses with a positive advantage", "rollout"),
    "length/mean_neg": Metric("tokens", "tokens / responses, over responses with a negative advantage", "rollout"),
    "length/truncated_frac": Metric("frac", "responses ended by the length limit / responses", "rollout", "lower"),
    "kl/sampler_trainer_k1": Metric(
        "nat", f"mean of m - o over loss tokens (sampler vs trainer before any update; {TRAINED})", "rollout", "lower",
    ),
    "kl/sampler_trainer_k3": Metric("nat", "mean of exp(o - m) - 1 - (o - m) over the same tokens", "rollout", "lower"),
    "mismatch/floor": Metric(
        "nat", "root mean square over responses of the mean of o - m: the sequence log-ratio before any update",
        "rollout", "lower", "rms",
    ),
    "mismatch/floor_mean": Metric("nat", "mean over responses of the mean of o - m", "rollout"),
    "mismatch/floor_std": Metric("nat", "standard deviation over responses of the mean of o - m", "rollout", reduction="std"),
    "mismatch/token_floor": Metric("nat", "root mean square of o - m over loss tokens", "rollout", "lower", "rms"),
    "mismatch/floor_of_band": Metric(
        "1", "mismatch/floor / distance from 0 to the nearer edge of the clip range of a log-ratio", "rollout", "lower",
        "rms",
    ),
    "mismatch/outside_band_frac": Metric(
        "frac", "responses whose mean of o - m lies outside the clip range / responses", "rollout", "lower",
    ),
    "lag/mean": Metric(
        "batches", "age of the weights that sampled a response, in rollout batches, summed over responses / responses",
        "rollout",
    ),
    "lag/max": Metric("batches", "largest age of the weights, in rollout batches", "rollout", reduction="max"),
    "lag/kl_k1": Metric(
        "nat",
        f"mean of m - o over the loss tokens of a batch sampled with older weights, before it is trained on ({TRAINED})",
        "rollout",
    ),
    "lag/kl_k3": Metric("nat", "mean of exp(o - m) - 1 - (o - m) over the same tokens", "rollout"),
    "lag/token_gap": Metric("nat", "root mean square of o - m over the same tokens", "rollout", reduction="rms"),
    "lag/seq_gap": Metric(
        "nat", "root mean square over responses of the mean of o - m: the sequence log-ratio that lag alone causes",
        "rollout", reduction="rms",
    ),
    "lag/seq_gap_mean": Metric("nat", "mean over responses of the mean of o - m", "rollout"),
    "lag/seq_gap_of_band": Metric(
        "1", "lag/seq_gap / distance from 0 to the nearer edge of the clip range of a log-ratio", "rollout",
        reduction="rms",
    ),
    "lag/outside_band_frac": Metric(
        "frac", "responses whose mean of o - m lies outside the clip range / responses", "rollout",
    ),
    "mismatch/prob_absdiff_mean": Metric("1", "mean of |exp(o) - exp(m)| over loss tokens", "rollout", "lower"),
    "mismatch/prob_absdiff_max": Metric("1", "largest |exp(o) - exp(m)|", "rollout", "lower", "max"),
    "mismatch/sync_absdiff_max": Metric(
        "nat", "largest |engine - trainer| over the probe's tokens, after the engine received this batch's updates",
        "rollout", "lower", "max",
    ),
    "mismatch/sync_absdiff_mean": Metric("nat", "mean of |engine - trainer| over the same tokens", "rollout", "lower"),
    "mismatch/self_floor": Metric(
        "nat",
        "root mean square over responses of the mean of l - o on the first mini-batch, before any update (step 1 only)",
        "rollout", "lower", "rms",
    ),
    "group/dropped_frac": Metric("frac", "groups discarded by dynamic sampling / groups sampled", "rollout", "lower"),
    "compute/queries": Metric("prompts", "prompts sampled so far", "rollout", reduction="sum"),
    "compute/responses": Metric("responses", "responses sampled so far", "rollout", reduction="sum"),
    "compute/gen_tokens": Metric("tokens", "tokens sampled so far", "rollout", reduction="sum"),
    "compute/train_tokens": Metric("tokens", "response tokens trained on so far", "step", reduction="sum"),
    "compute/flops": Metric(
        "FLOP",
        "2 P per forward token (sampling, old policy, reference) + 6 P per trained token (4 P with frozen weights), also for the critic; P = active parameters",
        "step", reduction="sum",
    ),
    "compute/updates": Metric("updates", "optimizer steps made so far", "step", reduction="sum"),
    "loss": Metric("1", "-J of this algorithm; not comparable between algorithms", "update, step"),
    "lr": Metric("1", "learning rate", "update", reduction="last"),
    "grad/norm": Metric("1", "global L2 norm of the gradient before clipping", "update, step"),
    "grad/clipped_frac": Metric("frac", "updates whose gradient was clipped / updates", "update, step"),
    "update/applied": Metric("frac", "optimizer steps made / mini-batches", "update, step", "higher"),
    "update/skipped_rows_frac": Metric("frac", "responses left out because their advantage is 0 / responses", "update, step"),
    "entropy/mean": Metric("nat", f"full-vocabulary entropy of the policy / loss tokens ({TRAINED})", "update, step"),
    "clip/token_frac": Metric("frac", "loss tokens whose gradient the clip makes exactly zero / all loss tokens", "update, step"),
    "clip/token_frac_active": Metric("frac", "clipped loss tokens / loss tokens with an advantage", "update, step"),
    "clip/low_frac": Metric("frac", "clipped tokens with a negative advantage / all loss tokens", "update, step"),
    "clip/high_frac": Metric("frac", "clipped tokens with a positive advantage / all loss tokens", "update, step"),
    "clip/seq_frac": Metric("frac", "responses with every token clipped / responses", "update, step"),
    "clip/seq_any_frac": Metric("frac", "responses with at least one clipped token / responses", "update, step"),
    "clip/pos_frac": Metric(
        "frac", "clipped tokens with a positive advantage / loss tokens with a positive advantage", "update, step",
    ),
    "clip/neg_frac": Metric(
        "frac", "clipped tokens with a negative advantage / loss tokens with a negative advantage", "update, step",
    ),
    **{
        f"clip/length_q{number}_frac": Metric(
            "frac",
            f"clipped loss tokens / loss tokens with an advantage, in the {which} of the mini-batch's responses",
            "update, step",
        )
        for number, which in enumerate(("shortest quarter", "second quarter by length", "third quarter by length",
                                        "longest quarter"), 1)
    },
    "clip/dual_frac": Metric("frac", "loss tokens whose gradient the dual clip makes zero / loss tokens", "update, step"),
    "gate/mean": Metric("1", f"sum of the soft gate's slope f'(w) / loss tokens ({TRAINED})", "update, step"),
    "gate/mean_pos": Metric("1", "the same over tokens with a positive advantage", "update, step"),
    "gate/mean_neg": Metric("1", "the same over tokens with a negative advantage", "update, step"),
    "gate/below_half_frac": Metric("frac", "loss tokens with f'(w) < 0.5 / loss tokens", "update, step"),
    "gate/weight_mean": Metric("1", "sum of f'(w) w / loss tokens", "update, step"),
    "weight/capped_frac": Metric("frac", "loss tokens whose weight is at its cap / loss tokens", "update, step"),
    "correction/weight_mean": Metric("1", "sum of the sampler correction's weights / loss tokens", "update, step"),
    "correction/capped_frac": Metric("frac", "loss tokens at the correction's cap / loss tokens", "update, step"),
    "correction/kept_token_frac": Metric("frac", "loss tokens with a correction above 0 / loss tokens", "update, step"),
    "correction/kept_seq_frac": Metric("frac", "responses with at least one kept token / responses", "update, step"),
    "kl/ref_k1": Metric("nat", "mean of l - ref over loss tokens (reference: the start model)", "update, step"),
    "kl/ref_k3": Metric("nat", "mean of exp(ref - l) - (ref - l) - 1 over loss tokens", "update, step"),
    "value/loss": Metric("reward^2", "0.5 x the larger of plain and clipped squared value error / loss tokens", "update, step", "lower"),
    "value/grad_norm": Metric("1", "norm of the critic's gradient before clipping; its step is skipped unless this is finite", "update, step"),
    "value/clip_frac": Metric("frac", "loss tokens where the clipped squared error is larger / loss tokens", "update, step"),
    "value/explained_var": Metric("1", "1 - Var(R - V) / Var(R) over loss tokens", "update, step", "higher", "last"),
    "value/residual_std": Metric("reward", "standard deviation of R - V over loss tokens", "update, step", "lower", "std"),
    "value/return_std": Metric("reward", "standard deviation of the returns R over loss tokens", "update, step", reduction="std"),
    "ratio/outside_frac": Metric(
        "frac",
        f"loss tokens whose ratio lies outside the clip range, whatever the advantage / loss tokens ({TRAINED})",
        "update, step",
    ),
    "ratio/token_log_mean": Metric("nat", "mean of log w over loss tokens", "update, step"),
    "ratio/token_log_std": Metric("nat", "standard deviation of log w over loss tokens", "update, step", reduction="std"),
    "ratio/token_log_absmax": Metric("nat", "largest |log w|", "update, step", reduction="max"),
    "ratio/seq_log_mean": Metric("nat", "mean of log s over responses", "update, step"),
    "ratio/seq_log_std": Metric("nat", "standard deviation of log s over responses", "update, step", reduction="std"),
    "ratio/seq_min": Metric("1", "smallest sequence ratio s", "update, step", reduction="min"),
    "ratio/seq_max": Metric("1", "largest sequence ratio s", "update, step", reduction="max"),
    "ratio/saturated_frac": Metric("frac", "loss tokens with |log w| > 20 / loss tokens", "update, step", "lower"),
    "ratio/within_seq_log_var": Metric("nat^2", "variance of log w within a response, mean over responses", "update, step"),
    "ratio/token_log_square": Metric("nat^2", f"mean of (log w)^2 over loss tokens ({TRAINED})", "update, step"),
    "ratio/seq_log_square": Metric("nat^2", f"mean of (log s)^2 over responses ({TRAINED})", "update, step"),
    "ratio/token_pareto_k": Metric(
        "1",
        "Pareto k of the token ratios w, fitted to their largest min(n / 5, 3 sqrt(n), 1024): above 0.7 their mean is not to "
        "be trusted; null below 25 ratios and where they are 1 but for rounding",
        "update, step", "lower", "fit",
    ),
    "ratio/seq_pareto_k": Metric("1", "the same of the sequence ratios s", "update, step", "lower", "fit"),
    "weight/effective_frac": Metric(
        "frac",
        "(sum x)^2 / (n sum x^2) over loss tokens with an advantage; x = a token's gradient weight / the weight that the "
        "algorithm gives it where all ratios are 1",
        "update, step", "higher", "fit",
    ),
    "weight/within_seq_cv": Metric(
        "1", "standard deviation / |mean| of the gradient weights within a response, mean over responses",
        "update, step",
    ),
    "kl/old_k1": Metric("nat", "mean of o - l over loss tokens: how far the policy has moved since sampling", "update, step"),
    "kl/old_k3": Metric("nat", "mean of w - 1 - log w over loss tokens", "update, step"),
    "moe/slot_churn_step": Metric(
        "frac",
        "expert slots that differ before and after one update, on the probe (16 responses, natural routing) / slots",
        "update, step", layers=True,
    ),
    "moe/router_differs_frac_step": Metric(
        "frac", "(token, layer) pairs whose set of experts differs before and after one update, on the probe / pairs",
        "update, step", layers=True,
    ),
    "moe/token_any_layer_frac_step": Metric(
        "frac", "tokens whose experts differ in at least one layer before and after one update, on the probe / tokens",
        "update, step",
    ),
    "moe/slot_churn_weighted_step": Metric(
        "frac",
        "1 - mean over (token, layer) of the gate mass that stays on the same experts over one update, on the probe",
        "update, step", layers=True,
    ),
    "moe/slot_churn_probe": Metric(
        "frac",
        "expert slots that differ between the old policy and the current one, on the probe (natural routing) / slots",
        "update, step", layers=True,
    ),
    "moe/router_entropy": Metric(
        "nat", "entropy of the softmax of the routers' logits, on the probe, mean over (token, layer)", "update, step",
        layers=True,
    ),
    "moe/slot_churn": Metric(
        "frac",
        f"expert slots that differ between the old policy and the current one / slots ({TRAINED}; null under replay)",
        "update, step", layers=True,
    ),
    "moe/router_differs_frac": Metric(
        "frac", "(token, layer) pairs whose set of experts differs between the old policy and the current one / pairs",
        "update, step", layers=True,
    ),
    "moe/token_any_layer_frac": Metric(
        "frac", "tokens whose experts differ between the old policy and the current one in at least one layer / tokens",
        "update, step",
    ),
    "moe/noise_slot_churn": Metric(
        "frac", "expert slots of the old policy that synthetic router noise exchanged / slots (only with noise.experts)",
        "update, step", layers=True,
    ),
    "moe/load_max_violation": Metric(
        "1", "mean over layers of (largest expert load - mean load) / mean load, over the experts used", "update, step",
        "lower", layers=True,
    ),
    "moe/load_max_violation_worst": Metric(
        "1", "maximum over layers of (largest expert load - mean load) / mean load, over the experts used",
        "update, step", "lower", "max",
    ),
    "moe/sampler_slot_churn": Metric(
        "frac",
        "expert slots that differ between engine and trainer before any update / slots (where routes are recorded)",
        "rollout", "lower",
    ),
    "moe/sampler_router_differs_frac": Metric(
        "frac",
        "(token, layer) pairs whose set of experts differs between engine and trainer before any update / pairs",
        "rollout", "lower",
    ),
    "moe/sampler_token_any_layer_frac": Metric(
        "frac",
        "tokens whose experts differ between engine and trainer before any update in at least one layer / tokens",
        "rollout", "lower",
    ),
    "replay/fallback_frac": Metric(
        "frac", "(token, layer) pairs without a recorded route, for tokens that predict a loss token / pairs",
        "update, step", "lower", layers=True,
    ),
    "replay/natural_agree_frac": Metric(
        "frac", "pairs where the router's own choice is the recorded one / pairs (only mini-batches that replay)",
        "update, step", layers=True,
    ),
    "replay/violations": Metric(
        "count", "(token, layer) pairs whose experts were not the recorded ones; any violation stops the run",
        "update, step", "lower", "sum",
    ),
    "arithmetic/avg@k": Metric("frac", "mean over problems of the share of correct samples", "eval", "higher"),
}  # fmt: skip


NOT_APPLICABLE = (
    "clip/token_frac", "clip/token_frac_active", "clip/low_frac", "clip/high_frac", "clip/seq_frac", "clip/seq_any_frac",
    "clip/pos_frac", "clip/neg_frac", "clip/length_q1_frac", "clip/length_q2_frac", "clip/length_q3_frac", "clip/length_q4_frac",
    "gate/mean", "gate/mean_pos", "gate/mean_neg", "gate/below_half_frac", "gate/weight_mean",
    "weight/capped_frac", "ratio/outside_frac",
    "moe/slot_churn_step", "moe/router_differs_frac_step", "moe/token_any_layer_frac_step", "moe/slot_churn_weighted_step",
    "moe/slot_churn_probe", "moe/router_entropy", "moe/slot_churn", "moe/router_differs_frac", "moe/token_any_layer_frac",
    "moe/load_max_violation", "moe/load_max_violation_worst",
    "replay/fallback_frac", "replay/natural_agree_frac", "replay/violations",
)  # fmt: skip
"""Logged as null without a hard clip, gate or cap, without experts, or without replay: "n/a" is not 0."""


IMPORTED = {
    "tensorboard": Metric("as logged", "imported from TensorBoard under its own name", "rollout"),
    "trl": Metric("as logged", "imported from TRL under its own name, with TRL's definition", "rollout"),
    "wandb": Metric("as logged", "imported from wandb under its own name", "rollout"),
    "verl": Metric("as logged", "imported from verl under its own name, with verl's definition", "rollout"),
}
"""Prefix -> the entry of every imported metric without an equivalent here."""
PART = "reward/part/"
"""Prefix of the metrics of `[[task.rewards]]`; the label follows."""


def is_known(name: str) -> bool:
    """Whether a metric may be logged."""
    return _find(name) is not None


def _find(name: str) -> Metric | None:
    """The entry of a metric, or of its general form."""
    whole, layer, _ = name.rpartition("/layer_")
    if layer and whole in METRICS:
        return METRICS[whole] if METRICS[whole].layers else None
    general = "arithmetic/avg@k" if "/avg@" in name else "reward/part" if name.startswith(PART) else name
    return METRICS.get(general) or IMPORTED.get(name.partition("/")[0])


def metric(name: str) -> Metric:
    """The glossary entry of a metric; `<bench>/avg@4` and `moe/.../layer_02` use their general form.

    Errors: GspoError suggesting the closest name if it is not in the schema; nothing is logged without an entry.
    """
    if found := _find(name):
        return found
    near = difflib.get_close_matches(name, METRICS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise GspoError(f"no metric {name!r}", "it is not in the schema", f"{hint}`gspo report explain` lists all metrics")


HEAD = """# Every metric

Generated from `gspo_cli/runlog/schema.py`; a metric that is not listed there cannot be logged. `gspo report explain
NAME` prints one entry, `gspo report explain --json` prints all of them.

- **line**: the line of `metrics.jsonl` that holds the value. `rollout` is written when a batch has been sampled and
  scored, `update` after each optimizer step, `step` pools the updates of a batch, and `eval` is an evaluation. Times
  are in `perf.jsonl`.
- **reduction**: `mean` is a sum of numerators over a sum of denominators across the whole line, so splitting a batch
  into micro-batches or over processes changes nothing. The line's `counts` hold the denominator. `fit` is computed
  once from what the whole line adds up to, or from its largest values; `counts` hold how many values there were.
- **null** means that a metric does not apply (marked \\*): an algorithm without a hard clip has no clip fraction, and
  a dense model has no churn. Null is not 0, and figures leave it out.
- Letters: l = log-probability of a sampled token under the current policy, o = under the policy before the batch's
  first update, m = under the engine that sampled it; w = exp(l - o), the token ratio; s = the sequence ratio;
  A = advantage.
"""
TITLES = {
    "reward": "Rewards", "group": "Groups", "adv": "Advantages", "length": "Lengths", "kl": "Divergences",
    "mismatch": "Engine vs trainer", "lag": "Stale rollouts", "entropy": "Entropy", "clip": "Clipping",
    "ratio": "Importance ratios", "weight": "Gradient weights", "gate": "SAPO's gate",
    "correction": "Sampler correction", "grad": "Gradients", "update": "Updates", "value": "PPO's critic",
    "moe": "Mixtures of experts", "replay": "Routing Replay", "compute": "Cost", "loss": "Loss",
    "lr": "Learning rate", "arithmetic": "Evaluations in training",
}  # fmt: skip
"""Prefix of a metric -> heading; a prefix without one is its own heading."""


def entry(name: str) -> dict[str, Any]:
    """The schema's entry of a metric as a dictionary. Errors: GspoError for a name that is not in the schema."""
    found = metric(name)
    _, layer, number = name.rpartition("/layer_")
    each = f"; each MoE layer alone (step): {name}/layer_NN" if found.layers else ""
    return {
        "name": name,
        "unit": found.unit,
        "definition": f"{found.definition}; layer {number} alone" if layer else found.definition,
        "reduction": found.reduction,
        "lines": "step" if layer else found.lines + each,
        "better": found.better,
    }


def page() -> str:
    """The glossary as Markdown, with one table per prefix."""
    parts = [HEAD]
    for prefix in dict.fromkeys(name.split("/")[0] for name in METRICS):
        rows = [_row(name) for name in METRICS if name.split("/")[0] == prefix]
        head = ["| metric | unit | better | line | reduction | definition |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([f"## {TITLES.get(prefix, prefix)}", "", *head, *rows, ""]))
    return "\n".join(parts)


def _row(name: str) -> str:
    found = metric(name)
    star = " \\*" if name in NOT_APPLICABLE else ""
    layers = "; `step` lines also hold it per layer, as `/layer_NN`" if found.layers else ""
    cells = [f"`{name}`{star}", found.unit, found.better, found.lines, found.reduction, found.definition + layers]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
