"""Show comparisons: of a study's arms, and of a csv of scores; and what a study came to, at its end."""

from __future__ import annotations

from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.errors import quoted

if TYPE_CHECKING:
    from gspo_cli.report.compare.learning_curves import LearningCurve
    from gspo_cli.report.compare.result import Found, StudyComparison
    from gspo_cli.report.compare.score_table import FileComparison, OfRuns
    from gspo_cli.report.compare.verdict import Interval
    from gspo_cli.report.runs.folders import Study


def show_outcome(folder: Path) -> None:
    """Print what a study came to: a row an arm, the sentences that its comparison permits, and what to do next."""
    from gspo_cli.report.compare.outcome import MEANING, outcomes
    from gspo_cli.report.runs.facts import read_facts
    from gspo_cli.report.runs.folders import read_study
    from gspo_cli.report.runs.metric_spec import REWARD
    from gspo_cli.report.runs.signal import describe_signal

    study = read_study(folder)
    rows = outcomes(study)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.changes))
    names = ["reward" if name == REWARD else name for name in metrics]
    table = console.table("arm", "seeds", *names, "time", overflow="fold")
    for row in rows:
        cells = ["{:.3f} to {:.3f}".format(*row.changes[name]) if name in row.changes else "n/a" for name in metrics]
        table.add_row(row.arm, str(row.seeds), *cells, "n/a" if row.seconds is None else console.clock(row.seconds))
    console.err.print(table)
    console.note(MEANING, prose=True)
    if len(study.runs) == 1:
        run = study.runs[0].folder
        console.note(*describe_signal(run, read_facts(study.runs[0]).config["rollout"]["prompts"]), prose=True)
    else:
        console.note(*_sentences(study), prose=True)
    if weights := _weights(study):
        console.note(f"weights: {weights}")
    command = f"gspo report html {quoted(folder)}"
    console.note(f"next: {command} (a page of all; `report compare` and `report plots` take it too)")


def _sentences(study: Study) -> list[str]:
    """What a comparison of the arms permits to say."""
    from gspo_cli.report.compare.study import ComparisonRequest, compare

    if len({run.arm for run in study.runs}) == 1:
        return []
    found = compare(study, ComparisonRequest(), keep=False)
    refused = [f"{found.primary.sentence} `gspo report compare` says which."] * (found.primary.verdict == "refused")
    return [*refused, *(one.sentence for one in (found.primary, *found.others) if one.verdict != "refused")]


def _weights(study: Study) -> str:
    """Where the runs' last weights are; a pattern for several runs."""
    last = [found[-1] for run in study.runs if (found := sorted(run.folder.glob("checkpoints/step-*/model")))]
    steps = {path.parent.name for path in last}
    if len(last) < 2:
        return "".join(map(str, last))
    return f"{study.folder}/*/checkpoints/{steps.pop() if len(steps) == 1 else 'step-*'}/model"


MOST_TASKS = 40
"""In a table of every task."""


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
    from gspo_cli.report.compare.texts import costs, interval, remarks, statistics, value

    console.out.print(found.sentence)
    console.out.print(f"\n{found.treatment} against {found.baseline}: {found.metric}")
    if found.reasons:
        reasons = ((reason.check, reason.what, reason.baseline, reason.treatment) for reason in found.reasons)
        console.print_table(console.table("check", "what", "baseline", "treatment", rows=reasons, overflow="fold"))
        for text in dict.fromkeys(f"{reason.check}: {reason.do}" for reason in found.reasons):
            console.out.print(text)  # below the table, where it can be copied
        console.out.print()
        return
    if isinstance(found, Described):
        for arm in found.arms:
            console.out.print(f"{arm['arm']}: {arm['text']}")
        console.out.print("\n".join(["", *found.notes, ""]))
    if not isinstance(found, Compared):
        return
    titles = ("seed", found.baseline, found.treatment, f"difference ({found.wording.shown_unit})")
    seeds = (
        (seed, value(found, left), value(found, right), value(found, difference, sign=True))
        for seed, left, right, difference in found.per_seed
    )
    console.print_table(console.table(*titles, rows=seeds, justify="right"))
    if curves := [one for one in found.learning_curves if one.fitted]:
        tops = [(one.asymptote.value, one.asymptote.ci) for one in curves]
        texts = [value(found, top) + (f" {interval(found, ends)}" if ends else "") for top, ends in tops]
        _print_curves("arm", curves, texts, " (a description)")
    rows = [*statistics(found), *costs(found)]
    missing = [name for name, text in rows if text.startswith("n/a")]
    _print_grid([row for row in rows if row[0] not in missing])
    if missing:
        console.out.print(f"n/a with {console.plural(len(found.seeds), 'seed')}: {', '.join(missing)}")
    console.out.print("\n".join(["", *remarks(found), ""]))


def show_scores(found: FileComparison) -> None:
    """Print every comparison, then what describes each run."""
    for one in found.comparisons:
        _show_scores(one)
    titles = ("run", "seeds", "mean", "median", "interquartile mean")
    rows = ((run.run, run.n, *(estimate(x.value, x.ci) for x in (run.mean, run.median, run.iqm))) for run in found.runs)
    console.print_table(console.table(*titles, rows=rows, title="Each run, over seeds"))
    runs = [run.run for run in found.runs]
    title = "Performance profile: share of tasks above tau" if found.tasks > 1 else "Share of seeds above tau"
    points = (found.profile[start : start + len(runs)] for start in range(0, len(found.profile), len(runs)))
    shares = ((f"{row[0].tau:.4g}", *(estimate(cell.share, cell.ci) for cell in row)) for row in points)
    console.print_table(console.table("tau", *runs, rows=shares, title=title))
    if found.learning_curves:
        texts = [estimate(one.asymptote.value, one.asymptote.ci) for one in found.learning_curves]
        _print_curves("run", found.learning_curves, texts)
    if len(found.comparisons) > 1:
        console.out.print("The comparisons are one family: their t and equality tests are adjusted by Holm.")


def _show_scores(one: OfRuns) -> None:
    from gspo_cli.report.compare.texts import statistics

    console.out.print(f"{one.treatment} against {one.baseline}: {one.metric}")
    console.out.print(one.sentence)
    if len(one.per_task) > MOST_TASKS:
        console.out.print(f"{len(one.per_task)} of them; --json has the difference on each")
    elif len(one.per_task) > 1:
        tasks = ((row.task, estimate(row.difference, row.ci)) for row in one.per_task)
        console.print_table(console.table("task", "difference", rows=tasks))
    else:
        seeds = ((seed, *(f"{x:.4g}" for x in values)) for seed, *values in one.per_seed)
        console.print_table(console.table("seed", one.baseline, one.treatment, "difference", rows=seeds))
    improvement = estimate(one.improvement_tasks.value, one.improvement_tasks.ci)
    rows = [*statistics(one), ("improvement on a task", improvement)]
    _print_grid([(name.replace("problems", "tasks"), text) for name, text in rows])
    console.out.print()


def _print_curves(first: str, curves: list[LearningCurve], asymptotes: list[str], remark: str = "") -> None:
    """A row per curve, which the first column names."""
    axis = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}[curves[0].axis]
    titles = (first, "seeds fitted", "asymptote", f"{axis} of half the rise", "steepness")
    rows = (
        (one.run, f"{one.fitted} of {one.n}", asymptote, *(estimate(x.value, x.ci) for x in (one.half, one.steepness)))
        for one, asymptote in zip(curves, asymptotes, strict=True)
    )
    console.print_table(console.table(*titles, rows=rows, title=f"Learning curve: a sigmoid for each seed{remark}"))


def _print_grid(rows: list[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for row in rows:
        grid.add_row(*row)
    console.print_table(grid)


def estimate(value: float | None, ci: Interval | None) -> str:
    """A number with its interval; n/a where there is none."""
    if value is None:
        return "n/a"
    return f"{value:.4g}" + ("" if ci is None else f" [{ci[0]:.4g}, {ci[1]:.4g}]")
