"""A comparison on the terminal: the sentence, every seed, the numbers behind it, and what speaks against them."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

from rich import box
from rich.table import Table

from gspo_cli.cli import console

Found = dict[str, Any]


def show(found: Found) -> None:
    """Prints the primary comparison and then every other arm's."""
    _show_one(found)
    for other in found["others"]:
        _show_one(other)
    tested = sum(other["verdict"] != "refused" for other in found["others"])
    if tested > 1:
        needed = ceil(log2(2 * tested / 0.05))
        console.out.print(
            f"The {tested} other arms are one family: their t tests are adjusted by Holm, their exact tests are not "
            f"(adjusting those would take {needed} seeds)."
        )


def _show_one(found: Found) -> None:
    """One pair of arms; results on stdout."""
    from gspo_cli.report.compare_rows import costs, remarks, statistics

    console.out.print(f"{found['treatment']} against {found['baseline']}: {found['metric']}")
    console.out.print(found["sentence"])
    if found["verdict"] == "refused":
        _print(_reasons(found["reasons"]))
        for text in dict.fromkeys(f"{reason['check']}: {reason['do']}" for reason in found["reasons"]):
            console.out.print(text)
        console.out.print()
        return
    if found["verdict"] == "descriptive":
        for arm in found["arms"]:
            console.out.print(f"{arm['arm']}: {arm['text']}")
        console.out.print("\n".join(["", *found["notes"], ""]))
        return
    _print(_seeds(found))
    numbers = Table.grid(padding=(0, 2))
    for name, text in [*statistics(found), *costs(found)]:
        numbers.add_row(name, text)
    _print(numbers)
    console.out.print("\n".join(["", *remarks(found), ""]))


def _print(table: Table) -> None:
    console.out.print(table, soft_wrap=False)


def _reasons(reasons: list[Found]) -> Table:
    """Every precondition that fails; what to do stands below, so that it can be pasted."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("check", "what", "baseline", "treatment"):
        table.add_column(title, overflow="fold")
    for r in reasons:
        table.add_row(r["check"], r["what"], r["baseline"], r["treatment"])
    return table


def _seeds(found: Found) -> Table:
    """Every seed's numbers, so that none hides behind a mean."""
    from gspo_cli.report.compare_rows import unit, value

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("seed", found["baseline"], found["treatment"], f"difference ({unit(found)})"):
        table.add_column(title, justify="right")
    for row in found["per_seed"]:
        numbers = (value(found, row["baseline"]), value(found, row["treatment"]))
        table.add_row(str(row["seed"]), *numbers, value(found, row["difference"], sign=True))
    return table
