"""`gspo runs`: what runs there are, what they were made of, whether they are still what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.export import export
from gspo_cli.cli.options import Json, JsonLines, Results, RunName
from gspo_cli.errors import ExitCode, GspoError

app = typer.Typer(help="List, show, compare and verify runs.", no_args_is_help=True)
app.command()(export)


@app.command("ls")
@console.command
def ls(
    root: Annotated[Path | None, typer.Argument(help="A study or a folder of studies.", show_default="results")] = None,
    json_: JsonLines = False,
) -> None:
    """List the runs with their state, progress and last reward.

    Examples:

        gspo runs ls

        gspo runs ls results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.run_list import list_runs

    rows = list(list_runs(root or Path("results")))
    if json_:
        console.print_json(rows)
        return
    titles = ("study", "run", "status", "step", "reward", "started", "last sign")
    table = [_short(row) for row in rows]
    shown = 7 if any(line[6] for line in table) else 6
    _print(titles[:shown], [line[:shown] for line in table])


def _short(row: dict[str, Any]) -> tuple[str, ...]:
    if not row["run"]:
        return row["study"], row["reason"], row["status"], "", "", "", ""
    reward = "n/a" if row["reward"] is None else f"{row['reward']:.3f}"
    started = str(row["created"] or "")[:16].replace("T", " ")
    steps = f"{row['steps']}/{row['planned']}"
    return row["study"], row["run"], row["status"], steps, reward, started, _ago(row["last_sign_s"])


def _ago(seconds: float | None) -> str:
    """How long ago a run without an end was last seen at work: whether it goes on or was killed."""
    if seconds is None:
        return ""
    size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{max(0.0, seconds) / size:.0f} {unit} ago"


@app.command("show")
@console.command
def show(run: RunName, out: Results = Path("results"), json_: Json = False) -> None:
    """Show what a run was made of: machine, versions, hashes, seeds, every key of its configuration.

    Examples:

        gspo runs show my-study/gspo-s0

        gspo runs show results/my-study/gspo-s0 --json
    """
    from gspo_cli.report.run_facts import flatten
    from gspo_cli.report.run_list import find_run, whole

    found = whole(find_run(run, out))
    if json_:
        console.print_json(found)
        return
    about, config = found.pop("about"), found.pop("config")
    for rows in (list(found.items()), flatten(about), list(config.items())):
        _print(("", ""), [(key, str(value)) for key, value in rows])


@app.command("diff")
@console.command
def diff(
    one: RunName,
    other: RunName,
    out: Results = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Show every key of configuration and provenance in which two runs differ.

    Examples:

        gspo runs diff my-study/grpo-s0 my-study/gspo-s0

        gspo runs diff results/one/gspo-s0 results/two/gspo-s0 --json
    """
    from gspo_cli.report.run_list import differences, find_run

    rows = differences(find_run(one, out), find_run(other, out))
    if json_:
        console.print_json(rows)
        return
    _print(("key", one, other), [(row["key"], str(row["one"]), str(row["other"])) for row in rows])


@app.command("path")
@console.command
def path(
    name: Annotated[
        str | None, typer.Argument(help="A study's name, a run's or a run id.", show_default="the newest study")
    ] = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Print the folder of a study or run, for use in other commands.

    Examples:

        gspo runs path

        gspo runs path my-study/gspo-s0 --json
    """
    from gspo_cli.report.folders import newest_study
    from gspo_cli.report.run_list import find_run

    study = newest_study(out) if name is None else out / name
    found = study if study.is_dir() or name is None else find_run(name, out).folder
    if json_:
        console.print_json({"path": str(found)})
    else:
        console.out.print(str(found))


@app.command("import")
@console.command
def import_(
    log: Annotated[Path, typer.Argument(help="TRL's trainer_state.json, or verl's metrics in JSON lines.")],
    algo: Annotated[str, typer.Option(help="The algorithm that it trained with.")],
    name: Annotated[str, typer.Option(help="The study to put it in, new or made of imported runs.")],
    arm: Annotated[str | None, typer.Option(help="The arm's label.", show_default="the algorithm")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Make a run of another trainer's log, for figures and a description beside others.

    Examples:

        gspo runs import trainer_state.json --algo grpo --seed 1 --name theirs

        gspo runs import verl.jsonl --algo gspo --arm gspo_long --name theirs --json
    """
    from gspo_cli.runlog.folder import NAME, study_folder
    from gspo_cli.runlog.foreign import import_run

    label = arm or algo
    if not NAME.fullmatch(label):
        raise GspoError(f"{label!r} cannot name an arm", "it becomes a folder's name", "letters, digits, '.', '_', '-'")
    run = import_run(log, study_folder(out, name, name), algo, label, seed)
    if json_:
        console.print_json({"run": str(run), "arm": label, "seed": seed})
    else:
        console.out.print(str(run))


@app.command("verify")
@console.command
def verify(
    what: Annotated[
        str | None,
        typer.Argument(help="Run, study, or the side file of a figure or table.", show_default="the newest study"),
    ] = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Recompute every hash of a run or study and its reports; exit code 3 if any byte is not what was written.

    Examples:

        gspo runs verify

        gspo runs verify results/my-study/figures/reward.json --json
    """
    from dataclasses import asdict

    from gspo_cli.report.folders import newest_study
    from gspo_cli.report.verify import verify as verify_path

    place = newest_study(out) if what is None else Path(what) if Path(what).exists() else out / what
    found = verify_path(place)
    if json_:
        console.print_json({"path": str(place), "ok": not found.problems} | asdict(found))
    else:
        for note in found.notes:
            console.note(note)
        for problem in found.problems:
            line = "" if problem.line is None else f", line {problem.line}"
            console.out.print(f"{problem.file}{line}: {problem.what}")
        count = len(found.problems)
        verdict = f"{count} problem{'s' if count > 1 else ''}" if count else f"verified: {found.num_files} files"
        console.out.print(f"{place}: {verdict}")
    if found.problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _print(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(*titles, box=box.SIMPLE_HEAD if any(titles) else None, show_header=any(titles), pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.out.print(table, soft_wrap=False)
