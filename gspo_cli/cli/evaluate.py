"""`gspo eval benchmarks` and `gspo eval list`; `gspo eval grade` has a file of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gspo_cli.cli import completion, console, elo, grade
from gspo_cli.cli.eval_view import EvalView, list_table, rating_lines, result_table
from gspo_cli.cli.options import GraderPython, JsonLines, Out, SandboxKind, Set, TrustCode, UnsafeLocal, Workers
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.evals.benchmark import Benchmark
    from gspo_cli.evals.command import Job
    from gspo_cli.evals.store import Mode

app = typer.Typer(help="Evaluate models on benchmarks.", no_args_is_help=True)
app.command("grade")(grade.grade)
app.command("elo")(elo.elo)


@app.command("benchmarks")
@console.command
def benchmarks(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL|RUN]", help="Default: the newest run.")] = None,
    bench: Annotated[
        str, typer.Option(help="Benchmarks, comma-separated.", autocompletion=completion.benchmarks)
    ] = "arithmetic",
    samples: Annotated[int | None, typer.Option(help="Answers per problem (the k of avg@k).")] = None,
    limit: Annotated[int | None, typer.Option(help="The first problems only.")] = None,
    greedy: Annotated[bool, typer.Option(help="Temperature 0, one answer.")] = False,
    temperature: Annotated[float | None, typer.Option(help="In place of the published one, like the next.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens up to this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the answers.", show_default="the run's, else 0")] = None,
    engine: Annotated[
        str | None, typer.Option(help="transformers, vllm or vllm-server.", show_default="the run's")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="NAME=PATH: problems from json, jsonl or parquet.")] = None,
    revision: Annotated[list[str] | None, typer.Option(help="NAME=SHA: another commit of the published data.")] = None,
    release: Annotated[list[str] | None, typer.Option(help="NAME=RELEASE, e.g. livecodebench=release_v6.")] = None,
    window: Annotated[list[str] | None, typer.Option(help="NAME=FROM..TO: problems of these days.")] = None,
    contests: Annotated[list[str] | None, typer.Option(help="NAME=PATH: standings, for codeforces.")] = None,
    ratings: Annotated[list[str] | None, typer.Option(help="NAME=PATH: rating table, for a percentile.")] = None,
    grader: Annotated[str, typer.Option(help="Of programs: both, official or script.")] = "both",
    workers: Workers = None,
    sandbox: SandboxKind = "auto",
    unsafe_local: UnsafeLocal = False,
    grader_python: GraderPython = None,
    answers: Annotated[Path | None, typer.Option(help="Grade these stored answers; no model runs.")] = None,
    all_checkpoints: Annotated[bool, typer.Option(help="Every checkpoint of the run, and the figure.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished evaluation.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an earlier evaluation first.")] = False,
    set_: Set = None,
    trust_remote_code: TrustCode = None,
    out: Out = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Evaluate a run's weights or a model on benchmarks: avg@k with standard errors clustered by problem, and pass@k.

    Examples:

        gspo eval benchmarks

        gspo eval benchmarks my-model --bench aime24,math500 --data aime24=aime24.jsonl --resume

        gspo eval benchmarks results/my-study/gspo-s0 --all-checkpoints

        gspo eval benchmarks my-model --engine vllm-server --set rollout.vllm.url=http://127.0.0.1:8000
    """
    from gspo_cli.evals import find_benchmark
    from gspo_cli.evals.settings import Overrides

    chosen = [find_benchmark(name) for name in dict.fromkeys(n.strip() for n in bench.split(",")) if name]
    if not chosen:
        raise GspoError("--bench names no benchmark", "it is empty", "`gspo eval list` shows them")
    if resume and overwrite:
        raise GspoError("--resume and --overwrite together", "one keeps stored answers, one deletes them", "use one")
    if greedy and temperature:
        raise GspoError(f"--greedy and --temperature {temperature}", "greedy is temperature 0", "use one of them")

    from gspo_cli.evals.code_grader import grader_choice
    from gspo_cli.evals.loading import Loading, parse_data
    from gspo_cli.sandbox.choose import SandboxChoice

    named = {"data": data, "revision": revision, "release": release, "window": window, "contests": contests}
    named |= {"ratings": ratings}
    choices = parse_data({option: texts or [] for option, texts in named.items()}, chosen)
    grading = grader_choice(grader, workers, SandboxChoice(sandbox, unsafe_local, grader_python))
    if unsafe_local:
        console.note("warning: --unsafe-local: programs run without any isolation, and the summary says so")
    if answers is not None:
        if model is not None or len(chosen) != 1:
            raise GspoError(
                "--answers takes one --bench and no model", "its answers are drawn already", "leave out the rest"
            )
        graded = _told(_grade(chosen[0], choices, answers, out, overwrite, grading), json_)
        _end([graded], [ExitCode.ENGINE if graded["incomplete"] else ExitCode.OK], json_)
        return

    loading = Loading(choices, console.note)
    if len(chosen) == 1:  # of several, one may be missing
        loading.problems(chosen[0])

    from gspo_cli.evals.command import Request, jobs
    from gspo_cli.evals.targets import find_targets
    from gspo_cli.models.foreign_code import allow_code

    allow_code(trust_remote_code)
    targets = find_targets(model, out, all_checkpoints, engine, set_ or [])
    given = Overrides(samples, 0.0 if greedy else temperature, top_p, top_k, min_p, max_tokens, limit)
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    request = Request(chosen, targets, loading, given, seed, mode, grading)
    results, codes = [], [ExitCode.OK]
    with closing(jobs(request, console.note)) as planned:
        for job in planned:
            try:
                results.append(_run(job, json_))
                codes.append(ExitCode.ENGINE if results[-1]["incomplete"] else ExitCode.OK)
            except KeyboardInterrupt:
                console.note(f"stored so far: {job.folder}; the same command with --resume goes on from there")
                raise
            except Exception as error:
                codes.append(console.report(error, json_))
    if all_checkpoints and results:
        _draw(targets[0].folder.parent)
    _end(results, codes, json_)


def _run(job: Job, as_json: bool) -> dict[str, Any]:
    """One evaluation with its progress; its summary with the folder."""
    with EvalView(f"{job.benchmark.name} {job.target.step or ''}".strip()) as view:
        summary = job.run(view.progress, view.drawing, console.note) | {"folder": str(job.folder)}
    return _told(summary, as_json)


def _told(summary: dict[str, Any], as_json: bool) -> dict[str, Any]:
    for warning in summary["warnings"]:
        console.note(f"warning: {warning}")
    if summary["incomplete"]:
        console.note(
            f"warning: {summary['benchmark']} is incomplete: the grader failed on {summary['grader_errors']} of "
            f"{summary['num_answers']} answers"
        )
    console.note(f"answers and summary: {summary['folder']}")
    if as_json:
        console.print_json(summary)
    return summary


def _end(results: list[dict[str, Any]], codes: list[ExitCode], as_json: bool) -> None:
    """The table, and the highest of the exit codes."""
    if results and not as_json:
        console.out.print(result_table(results))
        for line in (line for summary in results for line in rating_lines(summary)):
            console.out.print(line, markup=False, highlight=False)
    if max(codes):
        raise typer.Exit(int(max(codes)))


def _grade(
    benchmark: Benchmark, choices: Any, answers: Path, out: Path, overwrite: bool, grading: Any
) -> dict[str, Any]:
    from gspo_cli.evals.benchmark import DataChoice
    from gspo_cli.evals.stored import grade_stored

    folder = out / f"eval-{answers.stem}" / benchmark.name
    problems = benchmark.load(choices.get(benchmark.name, DataChoice()))
    return grade_stored(benchmark, problems, answers, folder, overwrite, grading) | {"folder": str(folder)}


def _draw(run: Path) -> None:
    """The figure of score against training step and generated tokens."""
    from gspo_cli.report.folders import find_study
    from gspo_cli.report.plots import plot_scores

    report = plot_scores(find_study(str(run), run))
    for line in [*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items())]:
        console.note(line)
    for path in (path for paths in report.files.values() for path in paths):
        console.note(f"figure: {path}")


@app.command("list")
@console.command
def list_(json_: JsonLines = False) -> None:
    """List the benchmarks with the settings at which they are usually given.

    Examples:

        gspo eval list

        gspo eval list --json
    """
    from dataclasses import asdict

    from gspo_cli.evals import BENCHMARKS

    if not json_:
        console.out.print(list_table(list(BENCHMARKS.values())))
        return
    console.print_json(
        {"name": b.name, "description": b.description, "samples": b.samples, "data": b.hub or "embedded"}
        | asdict(b.sampling)
        for b in BENCHMARKS.values()
    )
