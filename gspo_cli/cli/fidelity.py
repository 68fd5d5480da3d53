"""`gspo report fidelity`: its options."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import FigureWidth, Format, Json, Model, RecipeArgument, Set, TrustCode, parse_seeds
from gspo_cli.errors import GspoError

Number = TypeVar("Number", int, float)
Arms = Annotated[
    str,
    typer.Option(
        help=r"Arms, comma-separated: algorithms, or labels from \[arms].", autocompletion=options.complete_algorithms
    ),
]


def fidelity(
    context: typer.Context,
    recipe: RecipeArgument = "quickstart",
    algo: Arms = "grpo,gspo,reinforce,gmpo,sapo",
    clip: Annotated[str | None, typer.Option(help="Further clip ranges of gspo: 0.0067,0.2.")] = None,
    updates: Annotated[str, typer.Option(help="Optimizer steps between sampling and the gradient.")] = "0,1,4",
    noise: Annotated[str, typer.Option(help="Synthetic noise on old log-probabilities, nats per token.")] = "0,0.3,1",
    seeds: Annotated[str, typer.Option(help="Repetitions with their own batches and updates: 0-7.")] = "0-3",
    batches: Annotated[int, typer.Option(help="Batches drawn before the updates, per seed.")] = 4,
    reference: Annotated[int, typer.Option(help="Fresh on-policy batches of the reference.")] = 8,
    updater: Annotated[
        str | None, typer.Option(help="The arm that makes the updates.", show_default="report.baseline")
    ] = None,
    pool: Annotated[
        list[Path] | None,
        typer.Option("--pool", help="Measure nothing: pool measurements that differ in their seeds; repeat for each."),
    ] = None,
    model: Model = None,
    set_: Set = None,
    out: Annotated[Path, typer.Option(help="Folder for csv and figure.")] = Path("fidelity"),
    format_: Format = None,
    paper: FigureWidth = None,
    trust_remote_code: TrustCode = None,
    json_: Json = False,
) -> None:
    """Measure how well each arm's gradient on older or noisy batches points where a fresh on-policy one points.

    Examples:
        gspo report fidelity
        gspo report fidelity --set train.minibatches=16 --updates 1,4,16 --clip 0.0067,0.2 --seeds 0-7
        gspo report fidelity --pool seeds-0-3 --pool seeds-4-7 --out all
        gspo report fidelity gsm8k --model ./Qwen3-0.6B --updates 1 --noise 0 --seeds 0 --reference 4
    """
    from gspo_cli.report.figures.style import requested_images

    if pool:
        options.refuse_beside(context, "--pool", ("pool", "out", "format_", "paper", "json_"))
        from gspo_cli.instruments.fidelity.report import merge_fidelity

        return _show(merge_fidelity(pool, out, requested_images(format_, paper)), json_)
    from gspo_cli.recipe import load, refuse_twice, use_model

    loaded = load(recipe, use_model(model), set_ or [])

    from gspo_cli.cli.views.training import ColdStartBar  # torch and all else only once the options are valid
    from gspo_cli.instruments.fidelity.measure import Plan
    from gspo_cli.instruments.fidelity.report import Request, check_request, names, report_fidelity
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.study.arms import arm_notes

    refuse_twice(loaded, ["seed"], "--seeds")
    refuse_twice(loaded, ["noise"], "--noise")
    cold_start = loaded.cold_start
    if cold_start and (cold_start.per_seed or cold_start.starts):
        console.note(f"one start model for all seeds, that of cold_start.seed = {cold_start.seed}")
    images = requested_images(format_, paper)
    request = Request(
        arms=tuple(dict.fromkeys(options.listed(algo))),
        clips=numbers("--clip", clip, float) if clip else (),
        updater=updater or loaded.report.baseline,
        seeds=tuple(parse_seeds(None, seeds, 0)),
        plan=Plan(numbers("--updates", updates, int), numbers("--noise", noise, float), batches, reference),
    )
    measured = list(dict.fromkeys([*names(request), request.updater]))
    console.note(*arm_notes(check_request(loaded, request), measured))
    allow_code(trust_remote_code)
    prepare_torch(loaded.model.threads, loaded.model.float32_matmul)
    start = start_model(loaded, ColdStartBar())
    _show(report_fidelity(loaded, start, request, out, console.note, images), json_)


def _show(report: dict[str, Any], as_json: bool) -> None:
    from gspo_cli.instruments.batch.report import text_table
    from gspo_cli.instruments.fidelity.report import COLUMNS, text_rows

    if as_json:
        return console.print_json(report)
    title = f"Gradient fidelity: {len(report['seeds'])} seeds, reference of {report['reference']} batches"
    console.out.print(text_table(title, COLUMNS, text_rows(report["rows"])))
    console.note(*report["notes"])
    for path in report["files"]:
        console.out.print(path)


def numbers(option: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    """The numbers of a comma-separated list. Errors: GspoError for anything else."""
    try:
        return tuple(map(kind, options.listed(text)))
    except ValueError as error:
        whole = "whole " if kind is int else ""
        raise GspoError(f"{option} {text}", f"it is not a list of {whole}numbers", f"e.g. {option} 0,1,4") from error
