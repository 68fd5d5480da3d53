"""Every metric that may be logged: what the table in `metrics.toml` means, and the glossary written from it.

Each value is a mean, an extreme or a spread over its whole line (all micro-batches, ranks and, on `step` lines,
mini-batches), never a mean of means.
"""

import difflib
import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from gspo_cli.errors import GspoError


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the glossary."""

    unit: str
    definition: str
    """For a ratio, as `numerator / denominator`."""
    lines: str
    """The log lines that hold it: `rollout`, `update` (one per mini-batch), `step` (pooled), `eval`."""
    better: Literal["higher", "lower", "neither"] = "neither"
    reduction: str = "mean"
    """`mean` = summed numerators over summed denominators; `std`, `max`, `min`, `last`, `sum`; `fit` = computed once
    from sums or tails of the whole line."""
    layers: bool = False
    """Whether `step` lines also hold it per MoE layer, as `NAME/layer_02` (the layer's number in the model)."""
    may_be_null: bool = False
    """Whether lines that lack it hold null: without a hard clip, gate or cap, without experts, or without replay. "n/a"
    is not 0."""


TABLES = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
METRICS, IMPORTED = (TypeAdapter(dict[str, Metric]).validate_python(TABLES[name]) for name in ("metrics", "imported"))
"""By name; and by prefix, the entries of every imported metric without an equivalent here."""
NOT_APPLICABLE = [name for name, found in METRICS.items() if found.may_be_null]
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

Generated from `gspo_cli/runlog/metrics.toml`; a metric that is not listed there cannot be logged. `gspo report explain
NAME` prints one entry, `gspo report explain --json` prints all of them.

- **line**: the line of `metrics.jsonl` that holds the value. `rollout` is written when a batch has been sampled and
  scored, `update` after each optimizer step, `step` pools the updates of a batch, and `eval` is an evaluation. Times
  and GPU memory are in `perf.jsonl`.
- **reduction**: `mean` is a sum of numerators over a sum of denominators across the whole line, so splitting a batch
  into micro-batches or over processes changes nothing. The line's `counts` hold the denominator. `fit` is computed
  once from what the whole line adds up to, or from its largest values; `counts` hold how many values there were.
- **null** means that a metric does not apply (marked \\*): an algorithm without a hard clip has no clip fraction, and
  a dense model has no churn. Null is not 0, and figures leave it out.
"""
LETTERS = {
    "l": "log-probability of a sampled token under the current policy",
    "o": "log-probability under the policy before the batch's first update",
    "m": "log-probability under the engine that sampled it",
    "w": "exp(l - o), the token ratio",
    "s": "the sequence ratio",
    "A": "advantage",
}


def legend(text: str) -> str:
    """What the letters in a definition or formula stand for; empty if it has none of them."""
    used = set(re.findall(r"(?<![A-Za-z'])([lomwsA])(?:_i?t?)?(?![A-Za-z_'])", text))
    return "; ".join(f"{letter} = {meaning}" for letter, meaning in LETTERS.items() if letter in used)


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
    } | ({"letters": letters} if (letters := legend(found.definition)) else {})


def search(word: str) -> list[str]:
    """The metrics that a word is about: those of a prefix such as `clip`, else those with it in their name, else in
    their definition."""
    word = word.lower()
    for is_about in (
        lambda name: name.startswith(f"{word}/"),
        lambda name: word in name.lower(),
        lambda name: word in METRICS[name].definition.lower(),
    ):
        if found := [name for name in METRICS if is_about(name)]:
            return found
    return []


def page() -> str:
    """The glossary as Markdown, with one table per prefix."""
    parts = [HEAD + textwrap.fill(f"- Letters: {legend(' '.join(LETTERS))}.", 120, subsequent_indent="  ") + "\n"]
    for prefix in dict.fromkeys(name.split("/")[0] for name in METRICS):
        rows = [_row(name) for name in METRICS if name.split("/")[0] == prefix]
        head = ["| metric | unit | better | line | reduction | definition |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([f"## {TABLES['titles'][prefix]}", "", *head, *rows, ""]))
    return "\n".join(parts)


def _row(name: str) -> str:
    found = metric(name)
    star = " \\*" if found.may_be_null else ""
    layers = "; `step` lines also hold it per layer, as `/layer_NN`" if found.layers else ""
    cells = [f"`{name}`{star}", found.unit, found.better, found.lines, found.reduction, found.definition + layers]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
