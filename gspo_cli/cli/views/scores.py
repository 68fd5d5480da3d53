"""Show the comparison of a csv of scores: sentences, tests, tables by run and by task, performance profiles."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from gspo_cli.cli import console

Result = dict[str, Any]


def show_scores(found: Result) -> None:
    """Print every comparison, then what describes each run."""
    for one in found["comparisons"]:
        _show_one(one)
    table = console.table("run", "seeds", "mean", "median", "interquartile mean", title="Each run, over seeds")
    for run in found["runs"]:
        table.add_row(run["run"], str(run["n"]), *(estimate(run[name]) for name in ("mean", "median", "iqm")))
    console.print_table(table)
    runs = [run["run"] for run in found["runs"]]
    title = "Performance profile: share of tasks above tau" if found["tasks"] > 1 else "Share of seeds above tau"
    table = console.table("tau", *runs, title=title)
    for start in range(0, len(found["profile"]), len(runs)):
        row = found["profile"][start : start + len(runs)]
        table.add_row(f"{row[0]['tau']:.4g}", *(estimate(cell, "share") for cell in row))
    console.print_table(table)
    if found["learning_curves"]:
        title = "Learning curve: a sigmoid for each seed"
        table = console.table("run", "seeds fitted", "asymptote", "step of half the rise", "steepness", title=title)
        for run in found["learning_curves"]:
            numbers = (estimate(run[name]) for name in ("asymptote", "half", "steepness"))
            table.add_row(run["run"], f"{run['fitted']} of {run['n']}", *numbers)
        console.print_table(table)
    if len(found["comparisons"]) > 1:
        console.out.print("The comparisons are one family: their t and equality tests are adjusted by Holm.")


def _show_one(one: Result) -> None:
    from gspo_cli.report.compare.comparison import statistics

    console.out.print(f"{one['treatment']} against {one['baseline']}: {one['metric']}")
    console.out.print(one["sentence"])
    if len(one["per_task"]) > 1:
        table = console.table("task", "difference")
        for row in one["per_task"]:
            table.add_row(row["task"], estimate(row, "difference"))
        console.print_table(table)
    else:
        table = console.table("seed", one["baseline"], one["treatment"], "difference")
        for row in one["per_seed"]:
            table.add_row(str(row["seed"]), *(f"{row[name]:.4g}" for name in ("baseline", "treatment", "difference")))
        console.print_table(table)
    grid = Table.grid(padding=(0, 2))
    for name, text in [*statistics(one), ("improvement on a task", estimate(one["improvement_tasks"]))]:
        grid.add_row(name.replace("problems", "tasks"), text)
    console.print_table(grid)
    console.out.print()


def estimate(summary: Result, name: str = "value") -> str:
    """A number with its interval; n/a where there is none."""
    if summary[name] is None:
        return "n/a"
    ends = summary["ci"]
    return f"{summary[name]:.4g}" + ("" if ends is None else f" [{ends[0]:.4g}, {ends[1]:.4g}]")
