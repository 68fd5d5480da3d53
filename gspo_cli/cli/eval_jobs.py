"""What `gspo eval benchmarks` runs, one evaluation after the other, and what it prints of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.eval_view import EvalView, rating_lines, result_table
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.evals.benchmark import Benchmark, DataChoice, GraderChoice
    from gspo_cli.evals.command import Job, Request


def choose(bench: str) -> list[Benchmark]:
    """The benchmarks that `--bench` names, each once.

    Errors: GspoError for an unknown one, or none.
    """
    from gspo_cli.evals import find_benchmark

    chosen = [find_benchmark(name) for name in dict.fromkeys(n.strip() for n in bench.split(",")) if name]
    if not chosen:
        raise GspoError("--bench names no benchmark", "it is empty", "`gspo eval list` shows them")
    return chosen


def run_all(request: Request, all_checkpoints: bool, as_json: bool) -> None:
    """Every evaluation that was asked for; one that fails does not keep the others from running.

    Errors: typer.Exit with the highest of their exit codes.
    """
    from gspo_cli.evals.command import jobs

    results, codes = [], [ExitCode.OK]
    with closing(jobs(request, console.note)) as planned:
        for job in planned:
            try:
                results.append(_run(job, as_json))
                codes.append(ExitCode.ENGINE if results[-1]["incomplete"] else ExitCode.OK)
            except KeyboardInterrupt:
                console.note(f"stored so far: {job.folder}; the same command with --resume goes on from there")
                raise
            except Exception as error:
                codes.append(console.report(error, as_json))
    if all_checkpoints and results:
        _draw(request.targets[0].folder.parent)
    _end(results, codes, as_json)


def grade_answers(
    answers: Path, model: str | None, chosen: list[Benchmark], choices: dict[str, DataChoice], out: Path,
    overwrite: bool, grading: GraderChoice, as_json: bool,
) -> None:  # fmt: skip
    """`--answers`: what is stored is graded, and no model runs.

    Errors: GspoError unless one benchmark and no model is named.
    """
    from gspo_cli.evals.benchmark import DataChoice
    from gspo_cli.evals.stored import grade_stored

    if model is not None or len(chosen) != 1:
        raise GspoError(
            "--answers takes one --bench and no model", "its answers are drawn already", "leave out the rest"
        )
    (benchmark,) = chosen
    folder = out / f"eval-{answers.stem}" / benchmark.name
    problems = benchmark.load(choices.get(benchmark.name, DataChoice()))
    found = grade_stored(benchmark, problems, answers, folder, overwrite, grading) | {"folder": str(folder)}
    graded = _told(found, as_json)
    _end([graded], [ExitCode.ENGINE if graded["incomplete"] else ExitCode.OK], as_json)


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


def _draw(run: Path) -> None:
    """The figure of score against training step and generated tokens."""
    from gspo_cli.report.folders import find_study
    from gspo_cli.report.plots import plot_scores

    report = plot_scores(find_study(str(run), run))
    for line in [*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items())]:
        console.note(line)
    for path in (path for paths in report.files.values() for path in paths):
        console.note(f"figure: {path}")
