"""Show the comparison of a study's arms: sentences, the preconditions that failed, numbers by seed, statistics."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.views.scores import estimate

if TYPE_CHECKING:
    from gspo_cli.report.compare.result import Found, StudyComparison


def show_comparison(comparison: StudyComparison) -> None:
    """Print the primary comparison, then every other arm's."""
    for one in (comparison.primary, *comparison.others):
        _show_one(one)
    tested = sum(other.verdict != "refused" for other in comparison.others)
    if tested > 1:
        needed = ceil(log2(2 * tested / 0.05))
        console.out.print(
            f"The {tested} other arms are one family: their t tests are adjusted by Holm, their exact tests are not "
            f"(that would take {needed} seeds)."
        )


def _show_one(found: Found) -> None:
    from gspo_cli.report.compare.result import Compared, Described
    from gspo_cli.report.compare.texts import costs, interval, remarks, statistics, unit, value

    console.out.print(f"{found.treatment} against {found.baseline}: {found.metric}")
    console.out.print(found.sentence)
    if found.reasons:
        failed = console.table("check", "what", "baseline", "treatment")
        for column in failed.columns:
            column.overflow = "fold"
        for reason in found.reasons:
            failed.add_row(reason.check, reason.what, reason.baseline, reason.treatment)
        console.print_table(failed)
        for text in dict.fromkeys(f"{reason.check}: {reason.do}" for reason in found.reasons):
            console.out.print(text)  # below the table, where it can be copied
        console.out.print()
        return
    if isinstance(found, Described):
        for arm in found.arms:
            console.out.print(f"{arm.arm}: {arm.text}")
        console.out.print("\n".join(["", *found.notes, ""]))
    if not isinstance(found, Compared):
        return
    seeds = console.table("seed", found.baseline, found.treatment, f"difference ({unit(found)})")
    for column in seeds.columns:
        column.justify = "right"
    for seed, left, right, difference in found.per_seed:
        seeds.add_row(str(seed), value(found, left), value(found, right), value(found, difference, sign=True))
    console.print_table(seeds)
    if curves := [one for one in found.learning_curves if one.fitted]:
        axis = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}[curves[0].axis]
        title = "Learning curve: a sigmoid for each seed (a description)"
        table = console.table("arm", "seeds fitted", "asymptote", f"{axis} of half the rise", "steepness", title=title)
        for one in curves:
            top, ends = one.asymptote.value, one.asymptote.ci
            asymptote = value(found, top) + ("" if ends is None else f" {interval(found, ends)}")
            table.add_row(one.run, f"{one.fitted} of {one.n}", asymptote,
                          *(estimate(x.value, x.ci) for x in (one.half, one.steepness)))  # fmt: skip
        console.print_table(table)
    numbers = Table.grid(padding=(0, 2))
    rows = [*statistics(found), *costs(found)]
    missing = [name for name, text in rows if text.startswith("n/a")]
    for name, text in rows:
        if name not in missing:
            numbers.add_row(name, text)
    console.print_table(numbers)
    if missing:
        console.out.print(f"n/a with {console.plural(len(found.seeds), 'seed')}: {', '.join(missing)}")
    console.out.print("\n".join(["", *remarks(found), ""]))
