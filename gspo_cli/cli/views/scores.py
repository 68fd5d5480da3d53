"""Show the comparison of a csv of scores: sentences, tests, tables by run and by task, performance profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from gspo_cli.cli import console

if TYPE_CHECKING:
    from gspo_cli.report.compare.score_table import FileComparison, OfRuns
    from gspo_cli.report.compare.verdict import Interval


def show_scores(found: FileComparison) -> None:
    """Print every comparison, then what describes each run."""
    for one in found.comparisons:
        _show_one(one)
    table = console.table("run", "seeds", "mean", "median", "interquartile mean", title="Each run, over seeds")
    for run in found.runs:
        table.add_row(run.run, str(run.n), *(estimate(x.value, x.ci) for x in (run.mean, run.median, run.iqm)))
    console.print_table(table)
    runs = [run.run for run in found.runs]
    title = "Performance profile: share of tasks above tau" if found.tasks > 1 else "Share of seeds above tau"
    table = console.table("tau", *runs, title=title)
    for start in range(0, len(found.profile), len(runs)):
        row = found.profile[start : start + len(runs)]
        table.add_row(f"{row[0].tau:.4g}", *(estimate(cell.share, cell.ci) for cell in row))
    console.print_table(table)
    if found.learning_curves:
        title = "Learning curve: a sigmoid for each seed"
        table = console.table("run", "seeds fitted", "asymptote", "step of half the rise", "steepness", title=title)
        for curve in found.learning_curves:
            numbers = (estimate(x.value, x.ci) for x in (curve.asymptote, curve.half, curve.steepness))
            table.add_row(curve.run, f"{curve.fitted} of {curve.n}", *numbers)
        console.print_table(table)
    if len(found.comparisons) > 1:
        console.out.print("The comparisons are one family: their t and equality tests are adjusted by Holm.")


def _show_one(one: OfRuns) -> None:
    from gspo_cli.report.compare.texts import statistics

    console.out.print(f"{one.treatment} against {one.baseline}: {one.metric}")
    console.out.print(one.sentence)
    if len(one.per_task) > 1:
        table = console.table("task", "difference")
        for row in one.per_task:
            table.add_row(row.task, estimate(row.difference, row.ci))
        console.print_table(table)
    else:
        table = console.table("seed", one.baseline, one.treatment, "difference")
        for seed, *values in one.per_seed:
            table.add_row(str(seed), *(f"{x:.4g}" for x in values))
        console.print_table(table)
    grid = Table.grid(padding=(0, 2))
    for name, text in [
        *statistics(one),
        ("improvement on a task", estimate(one.improvement_tasks.value, one.improvement_tasks.ci)),
    ]:
        grid.add_row(name.replace("problems", "tasks"), text)
    console.print_table(grid)
    console.out.print()


def estimate(value: float | None, ci: Interval | None) -> str:
    """A number with its interval; n/a where there is none."""
    if value is None:
        return "n/a"
    return f"{value:.4g}" + ("" if ci is None else f" [{ci[0]:.4g}, {ci[1]:.4g}]")
