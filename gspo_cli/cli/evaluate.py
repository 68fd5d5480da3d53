"""`gspo eval benchmarks` and `gspo eval list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.options import Out, Set
from gspo_cli.errors import GspoError

DEADLINE_S = 24 * 3600.0  # a benchmark may be long; --set rollout.deadline_s shortens it

app = typer.Typer(help="Evaluate models on benchmarks.", no_args_is_help=True)


@app.command("benchmarks")
@console.command
def benchmarks(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL|RUN]", help="Default: the newest run.")] = None,
    bench: Annotated[str, typer.Option(help="Benchmarks, comma-separated.")] = "arithmetic",
    samples: Annotated[int | None, typer.Option(min=1, help="Answers per problem (the k of avg@k).")] = None,
    greedy: Annotated[bool, typer.Option(help="Temperature 0, one answer.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the answers.")] = 0,
    out: Out = Path("results"),
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a benchmark on stdout.")] = False,
) -> None:
    """Evaluate a run's final weights or a model folder, and print the scores with their standard errors.

    Examples:

        gspo eval benchmarks

        gspo eval benchmarks results/my-study/gspo-s0 --bench arithmetic --samples 8

        gspo eval benchmarks ./my-model --set rollout.engine=vllm-server --set rollout.vllm.url=http://127.0.0.1:8000
    """
    from gspo_cli.cli.live import SamplingBar
    from gspo_cli.evals import find_benchmark
    from gspo_cli.recipe import rollout_table

    rollout = rollout_table(set_ or [], deadline_s=DEADLINE_S)

    chosen = [find_benchmark(name.strip()) for name in bench.split(",") if name.strip()]
    if not chosen:
        raise GspoError("--bench names no benchmark", "it is empty", "`gspo eval list` shows them")

    from gspo_cli.evals.command import evaluate_model

    table = Table("benchmark", "score", "standard error", "problems", "mean tokens", "cut off")
    for benchmark in chosen:
        answers = 1 if greedy else samples or benchmark.samples
        summary = evaluate_model(model, benchmark, answers, greedy, seed, out, rollout, SamplingBar())
        if json_:
            console.print_json(summary)
        error = summary["standard_error"]
        table.add_row(
            f"{benchmark.name} avg@{summary['samples']}", f"{summary['average']:.4f}",
            "n/a" if error is None else f"{error:.4f}", str(summary["num_problems"]),
            f"{summary['mean_tokens']:.1f}", f"{summary['truncated_frac']:.1%}",
        )  # fmt: skip
        console.note(f"answers and summary: {summary['folder']}")
    if not json_:
        console.out.print(table)


@app.command("list")
@console.command
def list_(json_: Annotated[bool, typer.Option("--json", help="One JSON object a benchmark.")] = False) -> None:
    """List the benchmarks.

    Examples:

        gspo eval list

        gspo eval list --json
    """
    from gspo_cli.evals import BENCHMARKS

    table = Table("name", "what", "samples", "temperature")
    for b in BENCHMARKS.values():
        table.add_row(b.name, b.description, str(b.samples), str(b.sampling.temperature))
    if json_:
        console.print_json(
            {"name": b.name, "description": b.description, "samples": b.samples} for b in BENCHMARKS.values()
        )
    else:
        console.out.print(table)
