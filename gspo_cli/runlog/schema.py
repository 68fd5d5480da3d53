"""Every metric that may be logged: the one source of the glossary, the axis labels and the log's checks.

Each value is a mean, an extreme or a spread over the whole of its line (all micro-batches, ranks and, on `step`
lines, mini-batches), never a mean of means.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from gspo_cli.errors import GspoError

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the glossary."""

    unit: str
    definition: str
    """What it is, as `numerator / denominator` for a ratio."""
    lines: str
    """The log lines that hold it: `rollout`, `update` (one a mini-batch), `step` (pooled), `eval`."""
    better: Better = "neither"
    reduction: str = "mean"
    """`mean` = summed numerators over summed denominators; `std`, `max`, `min`, `last`, `sum`."""
    layers: bool = False
    """Whether `step` lines hold it for each MoE layer as well, as `NAME/layer_02` (the number in the model)."""


TRAINED = "rows with an advantage; the others are skipped"

METRICS: dict[str, Metric] = {
    "reward/mean": Metric("reward", "sum of rewards / scored responses", "rollout", "higher"),
    "reward/std": Metric("reward", "standard deviation of the reward over responses (n - 1)", "rollout", reduction="std"),
    "reward/group_std": Metric("reward", "sum of the groups' standard deviations / groups", "rollout"),
    "group/zero_std_frac": Metric("frac", "groups whose rewards are all equal / groups", "rollout", "lower"),
    "group/all_best_frac": Metric("frac", "groups whose rewards all equal the batch's highest / groups", "rollout"),
    "group/all_worst_frac": Metric("frac", "groups whose rewards all equal the batch's lowest / groups", "rollout"),
    "adv/abs_mean": Metric("1", "sum of |advantage| / responses", "rollout"),
    "adv/abs_max": Metric("1", "largest |advantage|", "rollout", reduction="max"),
    "length/mean": Metric("tokens", "response tokens, EOS included / responses", "rollout"),
    "length/std": Metric("tokens", "standard deviation of the response length (n - 1)", "rollout", reduction="std"),
    "length/max": Metric("tokens", "longest response", "rollout", reduction="max"),
    "length/mean_pos": Metric("tokens", "tokens / responses, over responses with a positive advantage", "rollout"),
    "length/mean_neg": Metric("tokens", "tokens / responses, over responses with a negative advantage", "rollout"),
    "length/truncated_frac": Metric("frac", "responses ended by the length limit / responses", "rollout", "lower"),
    "kl/sampler_trainer_k1": Metric(
        "nat", f"mean of m - o over loss tokens (sampler against trainer before any update; {TRAINED})", "rollout", "lower"
    ),
    "kl/sampler_trainer_k3": Metric("nat", "mean of exp(o - m) - 1 - (o - m) over the same tokens", "rollout", "lower"),
    "mismatch/floor": Metric(
        "nat", "root mean square over responses of the mean of o - m: the sequence log-ratio seen without any update",
        "rollout", "lower", "rms",
    ),
    "mismatch/floor_mean": Metric("nat", "mean over responses of the mean of o - m", "rollout"),
    "mismatch/floor_std": Metric("nat", "standard deviation over responses of the same", "rollout", reduction="std"),
    "mismatch/token_floor": Metric("nat", "root mean square of o - m over loss tokens", "rollout", "lower", "rms"),
    "mismatch/floor_of_band": Metric(
        "1", "mismatch/floor over the distance from 0 to the nearer edge of the clip range for a log-ratio", "rollout",
        "lower", "rms",
    ),
    "mismatch/outside_band_frac": Metric(
        "frac", "responses whose mean of o - m lies outside the clip range / responses", "rollout", "lower"
    ),
    "lag/mean": Metric(
        "batches", "sum over responses of the rollout batches trained on since the weights that drew them / responses",
        "rollout",
    ),
    "lag/max": Metric("batches", "the most of these rollout batches", "rollout", reduction="max"),
    "lag/kl_k1": Metric(
        "nat",
        "of a batch that older weights drew: mean of m - o over loss tokens, o the trainer's before it is trained on "
        f"({TRAINED})",
        "rollout",
    ),
    "lag/kl_k3": Metric("nat", "mean of exp(o - m) - 1 - (o - m) over the same tokens", "rollout"),
    "lag/token_gap": Metric("nat", "root mean square of o - m over the same tokens", "rollout", reduction="rms"),
    "lag/seq_gap": Metric(
        "nat", "root mean square over responses of the mean of o - m: the sequence log-ratio that lag alone makes",
        "rollout", reduction="rms",
    ),
    "lag/seq_gap_mean": Metric("nat", "mean over responses of the mean of o - m", "rollout"),
    "lag/seq_gap_of_band": Metric(
        "1", "lag/seq_gap over the distance from 0 to the nearer edge of the clip range for a log-ratio", "rollout",
        reduction="rms",
    ),
    "lag/outside_band_frac": Metric(
        "frac", "responses whose mean of o - m lies outside the clip range / responses", "rollout"
    ),
    "mismatch/prob_absdiff_mean": Metric("1", "mean of |exp(o) - exp(m)| over loss tokens", "rollout", "lower"),
    "mismatch/prob_absdiff_max": Metric("1", "largest |exp(o) - exp(m)|", "rollout", "lower", "max"),
    "mismatch/sync_absdiff_max": Metric(
        "nat", "largest |engine - trainer| over the probe's tokens, after this batch's updates were handed over", "rollout",
        "lower", "max",
    ),
    "mismatch/sync_absdiff_mean": Metric("nat", "mean of the same", "rollout", "lower"),
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
        "2 P a forward token (sampling, old policy, reference) + 6 P a trained one (frozen weights 4 P), critic alike; P = active parameters",
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
    "clip/token_frac_active": Metric("frac", "the same / loss tokens with an advantage", "update, step"),
    "clip/low_frac": Metric("frac", "clipped tokens with a negative advantage / all loss tokens", "update, step"),
    "clip/high_frac": Metric("frac", "clipped tokens with a positive advantage / all loss tokens", "update, step"),
    "clip/seq_frac": Metric("frac", "responses all of whose tokens are clipped / responses", "update, step"),
    "clip/seq_any_frac": Metric("frac", "responses with at least one clipped token / responses", "update, step"),
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
    "correction/kept_seq_frac": Metric("frac", "responses with a token kept / responses", "update, step"),
    "kl/ref_k1": Metric("nat", "mean of l - ref over loss tokens (reference: the start model)", "update, step"),
    "kl/ref_k3": Metric("nat", "mean of exp(ref - l) - (ref - l) - 1 over loss tokens", "update, step"),
    "value/loss": Metric("reward^2", "0.5 max of plain and clipped squared value error / loss tokens", "update, step", "lower"),
    "value/grad_norm": Metric("1", "norm of the critic's gradient before clipping; a step is made where it is finite", "update, step"),
    "value/clip_frac": Metric("frac", "loss tokens where the clipped square is the larger one / loss tokens", "update, step"),
    "value/explained_var": Metric("1", "1 - Var(R - V) / Var(R) over loss tokens", "update, step", "higher", "last"),
    "value/residual_std": Metric("reward", "standard deviation of R - V over loss tokens", "update, step", "lower", "std"),
    "value/return_std": Metric("reward", "standard deviation of the returns R over loss tokens", "update, step", reduction="std"),
    "ratio/outside_frac": Metric(
        "frac", f"loss tokens whose ratio lies outside the clip range, whatever the advantage / loss tokens ({TRAINED})",
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
    "weight/within_seq_cv": Metric(
        "1", "standard deviation / |mean| of the gradient weights within a response, mean over responses", "update, step"
    ),
    "kl/old_k1": Metric("nat", "mean of o - l over loss tokens: how far the policy moved since it sampled", "update, step"),
    "kl/old_k3": Metric("nat", "mean of w - 1 - log w over loss tokens", "update, step"),
    "moe/slot_churn_step": Metric(
        "frac", "expert slots that differ before and after one update, on the probe (16 responses, natural routing) / slots",
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
        "frac", "expert slots that differ between the old policy and the current one, on the probe (natural routing) / slots",
        "update, step", layers=True,
    ),
    "moe/router_entropy": Metric(
        "nat", "entropy of the softmax of the routers' logits, on the probe, mean over (token, layer)",
        "update, step", layers=True,
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
    "moe/load_max_violation": Metric(
        "1", "mean over layers of (largest expert load - mean load) / mean load, of the experts used",
        "update, step", "lower", layers=True,
    ),
    "moe/load_max_violation_worst": Metric(
        "1", "the largest over layers of (largest expert load - mean load) / mean load, of the experts used",
        "update, step", "lower", "max",
    ),
    "moe/sampler_slot_churn": Metric(
        "frac", "expert slots that differ between engine and trainer before any update / slots (where routes are recorded)",
        "rollout", "lower",
    ),
    "moe/sampler_router_differs_frac": Metric(
        "frac", "(token, layer) pairs whose set of experts differs between engine and trainer before any update / pairs",
        "rollout", "lower",
    ),
    "moe/sampler_token_any_layer_frac": Metric(
        "frac", "tokens whose experts differ between engine and trainer before any update in at least one layer / tokens",
        "rollout", "lower",
    ),
    "replay/fallback_frac": Metric(
        "frac", "(token, layer) pairs without a record, of the tokens that predict a loss token / pairs",
        "update, step", "lower", layers=True,
    ),
    "replay/natural_agree_frac": Metric(
        "frac", "pairs where the routers' own choice is the recorded one / pairs (mini-batches that replay)",
        "update, step", layers=True,
    ),
    "replay/violations": Metric(
        "count", "(token, layer) pairs whose experts were not the recorded ones; above 0 the run stops", "update, step",
        "lower", "sum",
    ),
    "arithmetic/avg@k": Metric("frac", "mean over problems of the share of right samples", "eval", "higher"),
}  # fmt: skip


NOT_APPLICABLE = (
    "clip/token_frac", "clip/token_frac_active", "clip/low_frac", "clip/high_frac", "clip/seq_frac", "clip/seq_any_frac",
    "gate/mean", "gate/mean_pos", "gate/mean_neg", "gate/below_half_frac", "gate/weight_mean",
    "weight/capped_frac", "ratio/outside_frac",
    "moe/slot_churn_step", "moe/router_differs_frac_step", "moe/token_any_layer_frac_step", "moe/slot_churn_weighted_step",
    "moe/slot_churn_probe", "moe/router_entropy", "moe/slot_churn", "moe/router_differs_frac", "moe/token_any_layer_frac",
    "moe/load_max_violation", "moe/load_max_violation_worst",
    "replay/fallback_frac", "replay/natural_agree_frac", "replay/violations",
)  # fmt: skip
"""Logged as null where there is no hard clip, gate or cap, no experts, or no replay: "n/a" is not 0."""


FOREIGN = {
    "trl": Metric("as logged", "imported from TRL under its own name: its definition is not one of ours", "rollout"),
    "verl": Metric("as logged", "imported from verl under its own name: its definition is not one of ours", "rollout"),
}
"""Prefix -> the entry of every imported metric that has no equal here."""


def is_known(name: str) -> bool:
    """Whether a name may be logged."""
    return name in METRICS or name.partition("/")[0] in FOREIGN or _of_layer(name) is not None or "/avg@" in name


def _of_layer(name: str) -> Metric | None:
    """The metric of which `moe/.../layer_02` is one layer's share."""
    general, layer, _ = name.rpartition("/layer_")
    found = METRICS.get(general) if layer else None
    return found if found and found.layers else None


def metric(name: str) -> Metric:
    """The glossary entry of a logged name; `<bench>/avg@4` and `moe/.../layer_02` find their general form.

    Errors: GspoError with the nearest for a name that is not in the schema; nothing is logged without an entry.
    """
    if found := METRICS.get(name) or _of_layer(name):
        return found
    if "/avg@" in name:
        return METRICS["arithmetic/avg@k"]
    if found := FOREIGN.get(name.partition("/")[0]):
        return found
    near = difflib.get_close_matches(name, METRICS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise GspoError(f"no metric {name!r}", "it is not in the schema", f"{hint}`gspo report explain` lists all metrics")
