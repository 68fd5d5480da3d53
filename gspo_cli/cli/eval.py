"""`gspo eval`: benchmarks, answers and programs to grade, Elo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import GraderPython, JsonLines, Out, Set, TrustCode, UnsafeLocal, Workers
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.evals.benchmark import Benchmark, ProblemSet
    from gspo_cli.evals.command import Evaluator
    from gspo_cli.evals.store import Mode

app = console.Commands(help="Evaluate models on benchmarks.", no_args_is_help=True)


OF_GRADING = {
    "answers", "bench", "data", "revision", "release", "window", "contests", "ratings", "grader", "workers",
    "unsafe_local", "grader_python", "overwrite", "out", "json_",
}  # fmt: skip
"""Options of `benchmarks` that have a part in grading stored answers."""
OF_PROGRAMS = {"workers", "unsafe_local", "grader_python"}


@app.command()
def benchmarks(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|RUN|STUDY",
            help="A run, all runs of a study, or a model's folder or hub name.",
            show_default="the newest run",
            autocompletion=options.complete_study,
        ),
    ] = None,
    bench: Annotated[
        str, typer.Option(help="Benchmarks, comma-separated.", autocompletion=options.complete_benchmarks)
    ] = "arithmetic",
    samples: Annotated[int | None, typer.Option(help="Answers per problem: the k of avg@k.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first problems.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Decode greedily: temperature 0, one answer.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Override the benchmark's temperature.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Override top-p: sample from the likeliest tokens up to this mass.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Override top-k: sample from the k likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Override min-p: drop tokens below this share of the likeliest one.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Override the longest answer, in tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for the answers.", show_default="the run's, else 0")] = None,
    engine: Annotated[
        str | None, typer.Option(help="transformers, vllm or vllm-server.", show_default="the run's")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="NAME=PATH: problems from json, jsonl or parquet.")] = None,
    revision: Annotated[list[str] | None, typer.Option(help="NAME=SHA: another commit of the published data.")] = None,
    release: Annotated[list[str] | None, typer.Option(help="NAME=RELEASE, e.g. livecodebench=release_v6.")] = None,
    window: Annotated[list[str] | None, typer.Option(help="NAME=FROM..TO: only problems from these dates.")] = None,
    contests: Annotated[list[str] | None, typer.Option(help="NAME=PATH: contest standings, for codeforces.")] = None,
    ratings: Annotated[list[str] | None, typer.Option(help="NAME=PATH: rating table, for percentiles.")] = None,
    grader: Annotated[str, typer.Option(help="Grader of programs: both, official or script.")] = "both",
    workers: Workers = None,
    unsafe_local: UnsafeLocal = False,
    grader_python: GraderPython = None,
    answers: Annotated[Path | None, typer.Option(help="Grade these stored answers without running a model.")] = None,
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Evaluate every checkpoint of the run and plot the scores.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished evaluation.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier evaluation first.")] = False,
    set_: Set = None,
    trust_remote_code: TrustCode = None,
    out: Out = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Evaluate a run, the runs of a study, or a model: avg@k with standard errors clustered by problem, and pass@k.

    Examples:
        gspo eval benchmarks
        gspo eval benchmarks my-model --bench aime24,math500 --data aime24=aime24.jsonl --resume
        gspo eval benchmarks results/my-study/gspo-s0 --all-checkpoints
        gspo eval benchmarks my-model --engine vllm-server --set rollout.vllm.url=http://127.0.0.1:8000
    """
    from gspo_cli.evals.benchmarks import find_benchmarks
    from gspo_cli.evals.benchmarks.held_out import NAME
    from gspo_cli.evals.benchmarks.shared_code import check_sandbox, grader_choice
    from gspo_cli.evals.settings import checked_overrides, resolve_settings
    from gspo_cli.evals.targets import find_targets, parse_data, problem_loader, trained_recipe
    from gspo_cli.models.files import check_source
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.sandbox.choose import SandboxChoice

    names = [name for name in dict.fromkeys(options.listed(bench)) if name]
    recipe = trained_recipe(model, out, console.note) if NAME in names else None
    chosen = find_benchmarks(names, recipe)
    if not chosen:
        raise GspoError("--bench names no benchmark", "it is empty", "`gspo eval list` lists them")
    _refuse_idle(context, bench, chosen)
    if resume and overwrite:
        raise GspoError("--resume and --overwrite together", "one keeps stored answers, one deletes them", "use one")
    if greedy and temperature:
        raise GspoError(f"--greedy and --temperature {temperature}", "greedy is temperature 0", "use one of them")
    overrides = checked_overrides(
        samples=samples,
        temperature=0.0 if greedy else temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        max_new_tokens=max_tokens,
        limit=limit,
    )
    if answers is not None:
        _check_answers(context, model, names)
    else:
        for benchmark in chosen:
            resolve_settings(benchmark, overrides, seed=0)
        allow_code(trust_remote_code)
        targets = find_targets(model, out, all_checkpoints, engine, set_ or [])
        for target in targets:
            check_source(str(target.source.model.path), target.source.model.revision)
    named = {"data": data, "revision": revision, "release": release, "window": window, "contests": contests}
    problems = problem_loader(parse_data(named | {"ratings": ratings}, chosen), console.note)
    grading = grader_choice(grader, workers, SandboxChoice(unsafe_local, grader_python))
    if unsafe_local:
        console.note("warning: --unsafe-local: programs run without any isolation, and the summary says so")
    if len(chosen) == 1:  # with several, the others can still be evaluated
        problems(chosen[0])

    console.note_torch()
    from gspo_cli.evals.command import Evaluator  # torch, only once the options are known to be valid
    from gspo_cli.evals.stored import grade_stored

    if answers is not None:
        folder, only = out / f"eval-{answers.stem}" / chosen[0].name, problems(chosen[0])
        summary = grade_stored(answers, chosen[0], only, folder, overwrite, grading) | {"folder": str(folder)}
        return _finish([summary], [_report(summary, json_, only.warnings)], json_)
    if str(model) != targets[-1].name:
        why = "; no name was given, so it is the newest run" if model is None else ""
        console.note(f"model: {', '.join(str(target.name) for target in targets)}{why}")
    check_sandbox(chosen, grading)
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    evaluators = [Evaluator(target, overrides, seed, mode, grading) for target in targets]
    _sample(evaluators, chosen, problems, all_checkpoints, json_)


def _refuse_idle(context: typer.Context, bench: str, chosen: Sequence[Benchmark]) -> None:
    """Errors: GspoError for an option of programs where no benchmark runs any, or takes a grader."""
    idle = set() if any("grader" in benchmark.takes for benchmark in chosen) else {"grader"}
    idle |= set() if any(benchmark.runs_programs for benchmark in chosen) else OF_PROGRAMS
    options.refuse_beside(context, f"--bench {bench}", {str(p.name) for p in context.command.params} - idle)


def _check_answers(context: typer.Context, model: str | None, names: Sequence[str]) -> None:
    """Errors: GspoError for what does not go together with `--answers`."""
    from gspo_cli.evals.benchmarks.held_out import NAME

    if names == [NAME] and model is None:
        raise GspoError(
            f"--answers to {NAME} without a run",
            "its rows and rewards are those of a run's recipe",
            f"name the run: gspo eval benchmarks RUN --bench {NAME} --answers FILE",
        )
    if len(names) != 1 or (model is not None and names != [NAME]):
        raise GspoError("--answers takes one --bench and no model", "the answers already exist", "leave out the rest")
    options.refuse_beside(context, "--answers", OF_GRADING | ({"model"} if names == [NAME] else set()))


def _sample(
    evaluators: list[Evaluator], benchmarks: list[Benchmark], problems: Callable[[Benchmark], ProblemSet],
    all_checkpoints: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run every benchmark with every model, even if another one fails; exits with the highest of their exit codes."""
    from gspo_cli.cli.views.evaluation import EvalView

    summaries, codes = [], [ExitCode.OK]
    for model in evaluators:
        with closing(model):
            for benchmark in benchmarks:
                try:
                    with EvalView(f"{benchmark.name} {model.target.step or ''}".strip()) as view:
                        data = problems(benchmark)
                        summaries.append(model.run(benchmark, data, view.progress, view.drawing, console.note))
                    codes.append(_report(summaries[-1], as_json, data.warnings))
                except KeyboardInterrupt:
                    place = model.target.results(benchmark)
                    console.note(f"answers so far are in {place}; run the same command with --resume to continue")
                    raise
                except Exception as error:
                    codes.append(console.report(error, as_json))
    if all_checkpoints and summaries:
        from gspo_cli.report.figures.plots import plot_scores
        from gspo_cli.report.runs.folders import find_study

        for run in dict.fromkeys(model.target.folder.parent for model in evaluators):
            report = plot_scores(find_study(str(run), run))
            console.note(*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items()))
            console.note(*(f"figure: {path}" for paths in report.files.values() for path in paths))
    _finish(summaries, codes, as_json)


def _report(summary: dict[str, Any], as_json: bool, said: Sequence[str]) -> ExitCode:
    """Print what a reader must know of one evaluation but has not been told yet, and return its exit code."""
    console.note(*(f"warning: {warning}" for warning in summary["warnings"] if warning not in said))
    if summary["incomplete"]:
        console.note(
            f"warning: {summary['benchmark']} is incomplete: the grader failed on {summary['grader_errors']} of "
            f"{summary['num_answers']} answers"
        )
    console.note(f"answers and summary: {summary['folder']}")
    if as_json:
        console.print_json(summary)
    return ExitCode.ENGINE if summary["incomplete"] else ExitCode.OK


def _finish(summaries: list[dict[str, Any]], codes: list[ExitCode], as_json: bool) -> None:
    """Print all results, and exit with the highest exit code."""
    from gspo_cli.cli.views.evaluation import rating_lines, result_table

    if summaries and not as_json:
        console.out.print(result_table(summaries), *(line for s in summaries for line in rating_lines(s)), sep="\n")
    if not as_json and any(s["average"] is not None and not s["pass_at_k"] for s in summaries):
        console.note("pass@k is n/a where a reward is neither 0 nor 1")
    if max(codes):
        raise typer.Exit(int(max(codes)))


@app.command("list")
def list_(json_: JsonLines = False) -> None:
    """List the benchmarks with their usual settings.

    Examples:
        gspo eval list
        gspo eval list --json
    """
    from gspo_cli.cli.views.evaluation import list_table
    from gspo_cli.evals.benchmarks import BENCHMARKS

    if not json_:
        console.out.print(list_table(list(BENCHMARKS.values())))
        return
    console.print_json(
        {"name": b.name, "description": b.description, "samples": b.samples, "data": b.hub or "embedded"}
        | asdict(b.sampling)
        for b in BENCHMARKS.values()
    )


UNDECIDED = ("grader_error", "excluded")
MAX_ERRORS = 0.01
"""Share of programs that may fail to start; above it, the machine is at fault and the command fails."""


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(help="Answers, one JSON object per line.")],
    grader: Annotated[str, typer.Option(help="Grader to use; an unknown name lists them all.")],
    workers: Workers = None,
    unsafe_local: UnsafeLocal = False,
    grader_python: GraderPython = None,
    json_: JsonLines = False,
) -> None:
    """Grade stored answers again, without a model.

    A row has `id`, and either `response` and `gold`, or for programs `kind`, `code` and `tests`.

    Examples:
        gspo eval grade answers.jsonl --grader math
        gspo eval grade answers.jsonl --grader aime --json
        gspo eval grade programs.jsonl --grader official --workers 2
    """
    from gspo_cli.rewards.graders import find_grader, grade_rows, read_rows
    from gspo_cli.rewards.verdict import GRADER_ERROR
    from gspo_cli.sandbox.choose import SandboxChoice

    chosen = find_grader(grader)
    choice = SandboxChoice(unsafe_local, grader_python)
    if choice != SandboxChoice() and not chosen.runs_programs:
        raise GspoError(
            f"a sandbox for --grader {grader}", "this grader runs no programs", "leave out the sandbox options"
        )
    rows = read_rows(file, chosen)
    counts: Counter[tuple[str, str]] = Counter()
    for row, graded in zip(rows, grade_rows(chosen, rows, workers, choice), strict=True):
        counts[graded.verdict, graded.reason] += 1
        if json_:
            line = {"id": row["id"], "verdict": graded.verdict, "passed": graded.passed, "reason": graded.reason}
            console.print_json(line)
    if not json_:
        table_rows = ((*key, count, f"{count / len(rows):.1%}") for key, count in sorted(counts.items()))
        console.out.print(console.table("verdict", "reason", "answers", "share", rows=table_rows))
    if unsafe_local:
        console.note("warning: --unsafe-local: these programs ran without any isolation")
    failed = sum(n for (verdict, _), n in counts.items() if verdict == GRADER_ERROR)
    broken = chosen.runs_programs and failed > len(rows) * MAX_ERRORS
    if broken or all(verdict in UNDECIDED for verdict, _ in counts):
        raise GspoError(
            "no answer could be graded" if failed in (0, len(rows)) else f"{failed} answers could not be graded",
            f"of {len(rows)} rows: {', '.join(sorted(reason for v, reason in counts if v in UNDECIDED))}",
            "check what the rows are graded with: gold or tests, and whether programs start in the sandbox",
            ExitCode.ENGINE,
        )


@app.command()
def elo(
    contests: Annotated[Path, typer.Option(help="Contest snapshot file, or a folder of them.")],
    submissions: Annotated[Path, typer.Option(help="Verdicts of the attempts at each contest's problems.")],
    ratings: Annotated[Path | None, typer.Option(help="Rating table, for percentiles.")] = None,
    json_: JsonLines = False,
) -> None:
    """Rate submissions with CodeElo's formula, from local contest standings.

    Examples:
        gspo eval elo --contests contests.json --submissions submissions.json
        gspo eval elo --contests contests/ --submissions submissions.json --ratings ratings.json --json
    """
    from gspo_cli.evals.benchmarks.elo import mean_rating, rate, read_contests, read_ratings, read_submissions

    ratings_table = read_ratings(ratings) if ratings else None
    entries = read_submissions(submissions, read_contests(contests))
    results = [rate(entry.contest, entry.attempts) for entry in entries]
    rows = []
    for entry, result in zip(entries, results, strict=True):
        rating = result.rating
        percentile = ratings_table.percentile(rating) if ratings_table and rating is not None else None
        rows.append(asdict(result) | {"contest": entry.label, "percentile": percentile})
    if json_:
        console.print_json(rows)
        return
    columns = ("contest", "rating", "score", "penalty", "rank", "percentile")
    shown = [["n/a" if row[k] is None else f"{row[k]:g}" if isinstance(row[k], float) else row[k] for k in columns]
             + ["at the cap" if row["at_cap"] else row["reason"]] for row in rows]  # fmt: skip
    console.out.print(console.table(*columns, "note", rows=shown))
    mean = mean_rating(results)
    if mean["elo"] is not None:
        spread = "" if mean["sd"] is None else f", sd {mean['sd']:.0f}"
        console.out.print(
            f"mean of {mean['contests']} contests: {mean['elo']:.0f}{spread}; {mean['at_cap']} at the cap, "
            f"{mean['skipped']} skipped" + (f"; percentiles: {ratings_table.source}" if ratings_table else "")
        )
