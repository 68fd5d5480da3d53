"""`gspo eval benchmarks` and `gspo eval list`; `gspo eval grade` has a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gspo_cli.cli import completion, console, elo, grade
from gspo_cli.cli.eval_view import list_table
from gspo_cli.cli.options import GraderPython, JsonLines, Out, SandboxKind, Set, TrustCode, UnsafeLocal, Workers
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
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
    greedy: Annotated[bool, typer.Option("--greedy", help="Temperature 0, one answer.")] = False,
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
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Every checkpoint of the run, and the figure.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished evaluation.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier evaluation first.")] = False,
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
    from gspo_cli.cli.eval_jobs import choose, grade_answers, run_all
    from gspo_cli.evals.code_grader import grader_choice
    from gspo_cli.evals.loading import Loading, parse_data
    from gspo_cli.evals.settings import Overrides
    from gspo_cli.sandbox.choose import SandboxChoice

    chosen = choose(bench)
    if resume and overwrite:
        raise GspoError("--resume and --overwrite together", "one keeps stored answers, one deletes them", "use one")
    if greedy and temperature:
        raise GspoError(f"--greedy and --temperature {temperature}", "greedy is temperature 0", "use one of them")
    named = {"data": data, "revision": revision, "release": release, "window": window, "contests": contests}
    named |= {"ratings": ratings}
    choices = parse_data({option: texts or [] for option, texts in named.items()}, chosen)
    grading = grader_choice(grader, workers, SandboxChoice(sandbox, unsafe_local, grader_python))
    if unsafe_local:
        console.note("warning: --unsafe-local: programs run without any isolation, and the summary says so")
    if answers is not None:
        return grade_answers(answers, model, chosen, choices, out, overwrite, grading, json_)

    loading = Loading(choices, console.note)
    if len(chosen) == 1:  # of several, one may be missing
        loading.problems(chosen[0])

    from gspo_cli.evals.command import Request
    from gspo_cli.evals.targets import find_targets
    from gspo_cli.models.foreign_code import allow_code

    allow_code(trust_remote_code)
    targets = find_targets(model, out, all_checkpoints, engine, set_ or [])
    given = Overrides(samples, 0.0 if greedy else temperature, top_p, top_k, min_p, max_tokens, limit)
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    run_all(Request(chosen, targets, loading, given, seed, mode, grading), all_checkpoints, json_)


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
