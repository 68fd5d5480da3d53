"""`gspo runs`: list, show, compare, verify, prune, import and export runs."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gspo_cli.cli import console, options
from gspo_cli.cli.options import Json, JsonLines, NewestRun, Results, RunName, Study
from gspo_cli.errors import ExitCode, GspoError, quoted

app = console.Commands(help="List, show, compare, verify, prune, import and export runs.", no_args_is_help=True)


@app.command()
def ls(
    root: Annotated[
        str | None,
        typer.Argument(
            help="A study, or a folder of studies.", show_default="results", autocompletion=options.complete_study
        ),
    ] = None,
    json_: JsonLines = False,
) -> None:
    """List runs with their status, progress and last reward.

    Examples:
        gspo runs ls
        gspo runs ls results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.runs.facts import list_runs
    from gspo_cli.report.runs.seeds import not_begun
    from gspo_cli.runlog.folder import find_folder, unknown_folder

    folder = options.RESULTS if root is None else find_folder(root, options.RESULTS) or Path(root)
    if root is not None and not folder.is_dir():
        raise unknown_folder("folder, study or run", root, options.RESULTS)
    runs = list(list_runs(folder))
    if json_:
        return console.print_json(runs)
    if not runs:
        console.note(f"no runs in {folder}; another folder: gspo runs ls FOLDER")
        return
    rows = [_list_row(run) for run in runs]
    titles = ["study", "run", "status", "step", "reward", "started", *["last sign"] * any(row[-1] for row in rows)]
    console.print_whole(console.table(*titles, rows=(row[: len(titles)] for row in rows)))
    for run in (run for run in runs if run.get("slowest_rank")):
        console.note(f"{run['run']}: {run['slowest_rank']}")
    for run in (run for run in runs if run["status"] in ("killed", "silent")):
        console.note(f"{run['run']}: {run['reason']}; to resume: gspo train --resume {quoted(run['folder'])}")
    studies = dict[Path, list[tuple[str, int]]]()
    for run in (run for run in runs if run["run"] and Path(run["folder"]) != folder):
        studies.setdefault(Path(run["folder"]).parent, []).append((run["arm"], run["seed"]))
    for study, present in studies.items():
        if missing := not_begun(study, present):
            command = f"gspo train --resume {quoted(study)}"
            console.note(f"{study.name}: not begun: {missing}; to train what remains: {command}")


def _list_row(run: dict[str, Any]) -> tuple[str, ...]:
    if not run["run"]:
        return run["study"], run["reason"], run["status"], "", "", "", ""
    started = str(run["created"] or "")[:16].replace("T", " ")
    steps, reward = f"{run['steps']}/{run['planned']}", console.number(run["reward"], ".3f")
    return run["study"], run["run"], run["status"], steps, reward, started, _ago(run["last_sign_s"])


def _ago(seconds: float | None) -> str:
    """When a run without a recorded end last showed a sign of life."""
    if seconds is None:
        return ""
    size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{max(0.0, seconds) / size:.0f} {unit} ago"


@app.command()
def show(run: RunName, out: Results = Path("results"), json_: Json = False) -> None:
    """Show a run's provenance and configuration: machine, versions, hashes, seeds and every key that is set.

    Examples:
        gspo runs show my-study/gspo-s0
        gspo runs show results/my-study/gspo-s0 --json
    """
    from gspo_cli.config import flat
    from gspo_cli.report.runs.facts import describe_run
    from gspo_cli.report.runs.folders import find_run

    facts = describe_run(find_run(run, out))
    if json_:
        return console.print_json(facts)
    about, config = facts.pop("about"), facts.pop("config")
    for rows in (facts.items(), flat(about).items(), config.items()):
        table = Table("", "", box=None, show_header=False, pad_edge=False)
        for key, value in rows:
            if value is not None and value != "" and value != {} and value != []:
                table.add_row(key, _text(value))
        console.print_table(table)


def _text(value: Any) -> str:
    """A value as a reader wants it: a list of words is a command line, other lists are their parts."""
    if not isinstance(value, list):
        return str(value)
    return shlex.join(value) if all(isinstance(part, str) for part in value) else ", ".join(map(str, value))


@app.command()
def diff(one: RunName, other: RunName, out: Results = Path("results"), json_: JsonLines = False) -> None:
    """Show every key of configuration and provenance in which two runs differ.

    Examples:
        gspo runs diff my-study/grpo-s0 my-study/gspo-s0
        gspo runs diff results/one/gspo-s0 results/two/gspo-s0 --json
    """
    from gspo_cli.report.runs.facts import differences
    from gspo_cli.report.runs.folders import find_run

    rows = differences(find_run(one, out), find_run(other, out))
    if json_:
        return console.print_json(rows)
    if not rows:
        console.note("no difference")
        return
    console.print_table(console.table("key", one, other, rows=((row["key"], row["one"], row["other"]) for row in rows)))


@app.command()
def path(
    name: Study = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="The folder of a run's newest weights, for --model or transformers.")
    ] = False,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Print the folder of a study or run, for use in other commands.

    Examples:
        gspo runs path
        gspo runs path my-study/gspo-s0 --weights
        gspo runs path my-study/gspo-s0 --json
    """
    from gspo_cli.evals.targets import model_folders
    from gspo_cli.runlog.folder import find_folder, newest_run, only_run, unknown_folder

    folder = newest_run(out).parent if name is None else find_folder(name, out)
    if folder is None:
        raise unknown_folder("study or run", str(name), out)
    console.print_result({"path": str(model_folders(only_run(folder))[-1] if weights else folder)}, json_)


@app.command()
def samples(
    run: NewestRun = None,
    step: Annotated[str, typer.Option(help="Rollout batch: a stored number, first, newest or all.")] = "newest",
    lowest: Annotated[
        bool | None, typer.Option("--lowest/--highest", help="The lowest rewards first, or the highest.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Only rewards in this range: 0..0.5, 1.. or ..0.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Lowest, highest and range of this part of the reward, by its label.")
    ] = None,
    cut_off: Annotated[
        bool | None, typer.Option("--cut-off/--whole", help="Only responses cut off, or only whole ones.")
    ] = None,
    grep: Annotated[str | None, typer.Option(help="Only with this text in prompt or response.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most so many.")] = 8,
    out: Results = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Print sampled responses of a run: the prompt as the model saw it, each part of the reward, how it ended.

    Every run keeps its first and its newest rollout batch; `rollout.store` keeps more.

    Examples:
        gspo runs samples
        gspo runs samples my-study/gspo-s0 --lowest --part format --limit 3
        gspo runs samples my-study/gspo-s0 --step first --reward 0..0 --cut-off --json
    """
    from gspo_cli.cli.views.samples import print_responses
    from gspo_cli.report.runs.folders import find_run
    from gspo_cli.report.runs.samples import Filter, parse_range, responses, stored_steps

    folder = find_run(run, out).folder
    low, high = parse_range(reward)
    found = responses(folder, Filter(step, low, high, lowest, part, cut_off, grep))
    if json_:
        return console.print_json(row.as_dict() for row in found[:limit])
    print_responses(found[:limit])
    stored = ", ".join(map(str, stored_steps(folder)))
    console.note(f"{min(limit, len(found))} of {console.plural(len(found), 'response')} that match, of {folder}; "
                 f"rollout batches stored: {stored}")  # fmt: skip


@app.command()
def doctor(run: NewestRun = None, out: Results = Path("results"), json_: Json = False) -> None:
    """Look for reasons why a run's reward does not move, each with its metric, threshold and the key to change.

    Examples:
        gspo runs doctor
        gspo runs doctor my-study/gspo-s0 --json
    """
    from gspo_cli.report.runs.diagnose import diagnose_run
    from gspo_cli.report.runs.folders import find_run

    stored = find_run(run, out)
    findings, facts = diagnose_run(stored)
    if json_:
        return console.print_json(
            {"run": str(stored.folder)} | facts | {"findings": [one.as_dict() for one in findings]}
        )
    reward = console.number(facts["reward"], ".3f")
    batches = "the last rollout batch" if facts["batches"] == 1 else f"the last {facts['batches']} rollout batches"
    console.out.print(f"{stored.folder}: rollout batch {facts['step']}, reward {reward} over {batches}")
    rows = [
        ("found" if one.found else "", one.cause.what, one.cause.metric, f"{one.value:.3g}", one.cause.threshold)
        for one in findings
        if one.value is not None
    ]
    console.print_table(console.table("", "cause", "metric", "value", "threshold", rows=rows))
    found = [one.cause for one in findings if one.found]
    for cause in found:
        console.out.print(f"{cause.what}: {cause.do.replace('`', '')}")
    if not found:
        console.out.print("none of these causes: the reward may need more batches, another seed, or another reward")


@app.command()
def verify(
    what: Annotated[
        str | None,
        typer.Argument(
            help="Run, study, or the side file of a figure or table.",
            show_default="the newest study",
            autocompletion=options.complete_study,
        ),
    ] = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Recompute every hash of a run or study and its reports. Exit code 3 if any byte has changed.

    Examples:
        gspo runs verify
        gspo runs verify results/my-study/figures/reward.json --json
    """
    from dataclasses import asdict

    from gspo_cli.report.verify import verify as verify_path
    from gspo_cli.runlog.folder import find_folder, newest_run

    if what is None:
        target = newest_run(out).parent
    else:
        target = Path(what) if Path(what).is_file() else find_folder(what, out) or Path(what)
    result = verify_path(target)
    if json_:
        console.print_json({"path": str(target), "ok": not result.problems} | asdict(result))
    else:
        console.note(*result.notes)
        for problem in result.problems:
            line = "" if problem.line is None else f", line {problem.line}"
            console.out.print(f"{problem.file}{line}: {problem.what}")
        count = len(result.problems)
        verdict = console.plural(count, "problem") if count else f"verified: {result.num_files} files"
        console.out.print(f"{target}: {verdict}")
    if result.problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@app.command()
def prune(
    study: Study = None,
    yes: Annotated[bool, typer.Option("--yes", help="Free it; without, only say what would be freed.")] = False,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Free what the complete runs of a study need no more: the optimizer's state, and copies of the same weights.

    Weights, logs and unfinished runs stay as they are, and `gspo runs verify` passes as before. A run without its
    optimizer's state cannot be trained for further steps.

    Examples:
        gspo runs prune
        gspo runs prune my-study --yes
    """
    from gspo_cli.report.runs.facts import final_status
    from gspo_cli.report.runs.folders import find_study
    from gspo_cli.runlog.prune import free, superfluous

    runs = [run.folder for run in find_study(study, out).runs]
    complete = [run for run in runs if final_status(run)[0] == "completed"]
    found = superfluous(complete)
    of_run = {
        run: [sum(one.num_bytes for one in found if one.run == run and (one.same_as is None) == own)
              for own in (True, False)]
        for run in complete
    }  # fmt: skip
    total = free(found) if yes else sum(one.num_bytes for one in found)
    if json_:
        rows = [{"run": str(run), "optimizer": own, "copies": copies} for run, (own, copies) in of_run.items()]
        return console.print_json({"runs": rows, "bytes": total, "freed": yes})
    cells = ((run.name, *(f"{size / 1e6:,.1f}" for size in sizes)) for run, sizes in of_run.items())
    console.print_whole(console.table("run", "optimizer's state (MB)", "copies of weights (MB)", rows=cells))
    unfinished = len(runs) - len(complete)
    if unfinished:
        console.note(f"{console.plural(unfinished, 'unfinished run')} not touched")
    console.out.print(f"{total / 1e6:,.1f} MB {'freed' if yes else 'would be freed by --yes'}")


@app.command("import")
def import_(
    log: Annotated[
        Path,
        typer.Argument(
            help="TRL's trainer_state.json, verl's metrics as JSON lines, TensorBoard's event files or wandb's run "
            "folder, or a folder with them."
        ),
    ],
    algo: Annotated[str, typer.Option(help="The algorithm that it trained with.")],
    name: Annotated[str, typer.Option(help="Study to import into: a new one, or one of imported runs.")],
    arm: Annotated[str | None, typer.Option(help="Label of the arm.", show_default="the algorithm")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed that it trained with.", show_default="the configuration's, or 0")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The trainer's own configuration, in YAML or JSON, without which runs are not judged.",
            show_default="what TensorBoard's or wandb's files hold",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="In TensorBoard's or wandb's files: the name of a batch's mean reward.", show_default="TRL's or verl's"
        ),
    ] = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Import another trainer's log as a run, to plot, describe and judge it beside others.

    Examples:
        gspo runs import trainer_state.json --config grpo.yaml --algo grpo --seed 1 --name theirs
        gspo runs import verl.jsonl --algo gspo --arm gspo_long --name theirs --json
        gspo runs import wandb/run-20260101_120000-abc --algo gspo --name theirs
        gspo runs import runs/my-run --algo ppo --reward env/return --name theirs
    """
    from gspo_cli.runlog.folder import NAME, study_folder
    from gspo_cli.runlog.import_logs import import_run
    from gspo_cli.runlog.trainer_config import read_config, recorded_config

    label = arm or algo
    if not NAME.fullmatch(label):
        raise GspoError(
            f"{label!r} is not a valid arm label", "it becomes a folder name", "use letters, digits, '.', '_' and '-'"
        )
    theirs = recorded_config(log) if config is None else read_config(config)
    recorded = (theirs or {}).get("seed")
    if type(recorded) is int and recorded >= 0 and seed not in (None, recorded):
        raise GspoError(
            f"--seed {seed}: the configuration says seed {recorded}", "a run has one seed", "leave out --seed"
        )
    if seed is None:
        seed = recorded if type(recorded) is int and recorded >= 0 else 0
    run = import_run(log, study_folder(out, name, name), algo, label, seed, reward, theirs)
    about = {"run": str(run), "arm": label, "seed": seed, "configuration": theirs is not None}
    console.print_result(about, json_)


@app.command()
def export(
    study: Study = None,
    to: Annotated[
        str, typer.Option("--to", help="tensorboard, wandb (as an offline run), trackio (a local project), or archive.")
    ] = "tensorboard",
    follow: Annotated[bool, typer.Option("--follow", help="Keep up with running runs until Ctrl-C.")] = False,
    no_updates: Annotated[
        bool, typer.Option("--no-updates", help="Archive: leave out single updates, most of its size.")
    ] = False,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Mirror a study's logs for a tracker, in <study>/TRACKER; the logs stay the original.

    `--to archive` packs logs, configurations and answers, without weights, into one file beside the study. Every
    `gspo report` command reads it in place of a study. With `--no-updates`, figures over single updates are empty.

    Examples:
        gspo runs export --to tensorboard
        gspo runs export results/quickstart-20260101-120000 --to wandb --json
        gspo runs export my-study --follow
        gspo runs export my-study --to archive
    """
    from gspo_cli.exporters import mirror
    from gspo_cli.report.runs.folders import find_study

    if to == "archive":
        return _archive(find_study(study, out).folder, follow, not no_updates, json_)
    mirror.check(to)
    if no_updates:
        raise GspoError(f"--no-updates with --to {to}", "only an archive can leave them out", "leave out --no-updates")
    folder = find_study(study, out).folder
    how_to_read = mirror.EXPORTERS[to].how_to_read(mirror.place(folder, to))
    if follow:
        console.note(f"following {folder} until Ctrl-C; {how_to_read}")
        mirror.follow(folder, to)
    mirrors = mirror.export(folder, to)
    if json_:
        rows = [{"run": one.run.name, "rows": one.num_rows, "folder": str(one.folder)} for one in mirrors]
        return console.print_json({"study": str(folder), "to": to, "runs": rows, "read": how_to_read})
    for one in mirrors:
        console.out.print(f"{one.folder}: {one.num_rows} rows")
    console.note(how_to_read)


def _archive(study: Path, follow: bool, updates: bool, json_: bool) -> None:
    from gspo_cli.report.runs.archive import SUFFIX, write_archive

    if follow:
        raise GspoError("--follow with --to archive", "an archive is written once", "leave out --follow")
    target = study.with_name(study.resolve().name + SUFFIX)
    size = write_archive(study, target, updates)
    if json_:
        console.print_json({"study": str(study), "to": "archive", "path": str(target), "bytes": size})
    else:
        console.out.print(str(target))
        console.note(f"{size:,} bytes; gspo report compare {quoted(target)} --out FOLDER reads it")
