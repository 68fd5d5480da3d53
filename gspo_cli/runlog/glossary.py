"""The metric schema as text: an entry for `gspo report explain`, and the page docs/metrics.md."""

from __future__ import annotations

from typing import Any

from gspo_cli.runlog.schema import METRICS, NOT_APPLICABLE, metric

HEAD = """# Every metric

Made from `gspo_cli/runlog/schema.py`; a name that does not stand there cannot be logged. `gspo report explain NAME`
prints one entry, `gspo report explain --json` all of them.

- **line**: which line of `metrics.jsonl` holds the value. `rollout` is written when a batch has been sampled and
  scored, `update` after each optimizer step, `step` pools a batch's updates, `eval` is an evaluation. Times are in
  `perf.jsonl`.
- **reduction**: `mean` is a sum of numerators over a sum of denominators across the whole line, so cutting a batch
  into micro-batches or over processes changes nothing; the denominator stands in the line's `counts`.
- **null** where a metric does not apply (marked \\*): an algorithm without a hard clip has no clip fraction, a dense
  model no churn. That is not 0, and figures leave it out.
- Letters: l = log-probability of a sampled token under the policy now, o = under the policy before the batch's first
  update, m = under the engine that sampled it; A = advantage.
"""
TITLES = {
    "reward": "Rewards", "group": "Groups", "adv": "Advantages", "length": "Lengths", "kl": "Divergences",
    "mismatch": "Engine against trainer", "lag": "Stale rollouts", "entropy": "Entropy", "clip": "Clipping",
    "ratio": "Importance ratios", "weight": "Gradient weights", "gate": "SAPO's gate",
    "correction": "Sampler correction", "grad": "Gradients", "update": "Updates", "value": "PPO's critic",
    "moe": "Mixtures of experts", "replay": "Routing Replay", "compute": "Cost", "loss": "Loss",
    "lr": "Learning rate", "arithmetic": "Evaluations in training",
}  # fmt: skip
"""Prefix of a metric -> heading; a new prefix stands under its own name."""


def entry(name: str) -> dict[str, Any]:
    """All that the schema says of a logged name.

    Errors: GspoError for a name that is not in the schema.
    """
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
    """The whole glossary as Markdown, one table a prefix."""
    parts = [HEAD]
    for prefix in dict.fromkeys(name.split("/")[0] for name in METRICS):
        rows = [_row(name) for name in METRICS if name.split("/")[0] == prefix]
        head = ["| metric | unit | better | line | reduction | definition |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([f"## {TITLES.get(prefix, prefix)}", "", *head, *rows, ""]))
    return "\n".join(parts)


def _row(name: str) -> str:
    found = metric(name)
    star = " \\*" if name in NOT_APPLICABLE else ""
    layers = "; `step` lines hold it for each layer too, as `/layer_NN`" if found.layers else ""
    cells = [f"`{name}`{star}", found.unit, found.better, found.lines, found.reduction, found.definition + layers]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
