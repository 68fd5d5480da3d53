"""Show the comparison of a study's arms: sentences, the preconditions that failed, numbers by seed, statistics."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.views.scores import estimate

Comparison = dict[str, Any]


def show_comparison(comparison: Comparison) -> None:
    """Print the primary comparison, then every other arm's."""
    _show_one(comparison)
    for other in comparison["others"]:
        _show_one(other)
    tested = sum(other["verdict"] != "refused" for other in comparison["others"])
    if tested > 1:
        needed = ceil(log2(2 * tested / 0.05))
        console.out.print(
            f"The {tested} other arms are one family: their t tests are adjusted by Holm, their exact tests are not "
            f"(that would take {needed} seeds)."
        )


def _show_one(comparison: Comparison) -> None:
    from gspo_cli.report.compare.comparison import costs, interval, remarks, statistics, unit, value

    console.out.print(f"{comparison['treatment']} against {comparison['baseline']}: {comparison['metric']}")
    console.out.print(comparison["sentence"])
    if comparison["verdict"] == "refused":
        reasons = comparison["reasons"]
        failed = console.table("check", "what", "baseline", "treatment")
        for column in failed.columns:
            column.overflow = "fold"
        for reason in reasons:
            failed.add_row(reason["check"], reason["what"], reason["baseline"], reason["treatment"])
        console.print_table(failed)
        for text in dict.fromkeys(f"{reason['check']}: {reason['do']}" for reason in reasons):
            console.out.print(text)  # below the table, where it can be copied
        console.out.print()
        return
    if comparison["verdict"] == "descriptive":
        for arm in comparison["arms"]:
            console.out.print(f"{arm['arm']}: {arm['text']}")
        console.out.print("\n".join(["", *comparison["notes"], ""]))
        return
    seeds = console.table("seed", comparison["baseline"], comparison["treatment"], f"difference ({unit(comparison)})")
    for column in seeds.columns:
        column.justify = "right"
    for row in comparison["per_seed"]:
        arms = (value(comparison, row["baseline"]), value(comparison, row["treatment"]))
        seeds.add_row(str(row["seed"]), *arms, value(comparison, row["difference"], sign=True))
    console.print_table(seeds)
    if curves := [one for one in comparison["learning_curves"] if one["fitted"]]:
        axis = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}[curves[0]["axis"]]
        title = "Learning curve: a sigmoid for each seed (a description)"
        table = console.table("arm", "seeds fitted", "asymptote", f"{axis} of half the rise", "steepness", title=title)
        for one in curves:
            top, ends = one["asymptote"]["value"], one["asymptote"]["ci"]
            asymptote = value(comparison, top) + ("" if ends is None else f" {interval(comparison, ends)}")
            table.add_row(one["run"], f"{one['fitted']} of {one['n']}", asymptote,
                          *(estimate(one[name]) for name in ("half", "steepness")))  # fmt: skip
        console.print_table(table)
    numbers = Table.grid(padding=(0, 2))
    rows = [*statistics(comparison), *costs(comparison)]
    missing = [name for name, text in rows if text.startswith("n/a")]
    for name, text in rows:
        if name not in missing:
            numbers.add_row(name, text)
    console.print_table(numbers)
    if missing:
        console.out.print(f"n/a with {console.plural(comparison['n_pairs'], 'seed')}: {', '.join(missing)}")
    console.out.print("\n".join(["", *remarks(comparison), ""]))
