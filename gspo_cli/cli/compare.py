"""`gspo report compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import completion, console
from gspo_cli.cli.options import Json, Results, Study
from gspo_cli.errors import ExitCode, GspoError


class Claim(StrEnum):
    """What `--require` takes."""

    BETTER = "better"
    EQUAL = "equal"


@console.command
def compare(
    study: Study = None,
    out: Results = Path("results"),
    metric: Annotated[
        str | None,
        typer.Option(help="Number to judge by: reward/mean:last10, aime24/avg@32.", autocompletion=completion.numbers),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Arm to compare with.")] = None,
    treatment: Annotated[str | None, typer.Option(help="The one arm to compare.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Difference that counts as none, in points (or the metric's own unit).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these: 0-7 or 0,3,5.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Waive a precondition: code, hardware or versions.")] = None,
    grader_errors: Annotated[
        str | None, typer.Option(help="`wrong` counts answers without a verdict as wrong, in both arms.")
    ] = None,
    require: Annotated[
        Claim | None, typer.Option(help="Exit with 3 unless this is shown; better = the treatment is.")
    ] = None,
    json_: Json = False,
) -> None:
    """Compare a study's arms with its baseline, seed by seed, and say what the runs allow to be said.

    Exit code 3: the runs are not comparable (each reason is shown), or they do not show what --require asks for.

    Examples:

        gspo report compare

        gspo report compare results/quickstart-20260101-120000 --metric reward/mean:last10 --json

        gspo report compare my-study --baseline grpo_r2 --treatment gspo --require better
    """
    from gspo_cli.cli.compare_view import show
    from gspo_cli.cli.options import parse_seeds
    from gspo_cli.report.compare import Asked
    from gspo_cli.report.compare import compare as compare_study
    from gspo_cli.report.folders import find_study

    if grader_errors not in (None, "wrong"):
        raise GspoError(
            f"--grader-errors {grader_errors}", "a failed grader is no verdict", "--grader-errors wrong, or grade again"
        )
    if margin is not None and not 0 < margin < float("inf"):
        raise GspoError(f"--margin {margin}", "a margin is a positive number", "e.g. --margin 2")
    asked = Asked(
        metric=metric, baseline=baseline, treatment=treatment, margin=margin, allow=frozenset(allow or ()),
        seeds=None if seeds is None else parse_seeds(None, seeds, 0), grader_errors_wrong=grader_errors == "wrong",
    )  # fmt: skip
    found = compare_study(find_study(study, out), asked)
    if json_:
        console.print_json(found)
    else:
        show(found)
    if found["verdict"] == "refused" or (require is not None and not _shows(found, require)):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _shows(found: dict[str, object], claim: Claim) -> bool:
    """Whether the primary comparison shows the claim; `better` means that the treatment is."""
    if found["verdict"] != claim or claim is not Claim.BETTER:
        return found["verdict"] == claim
    effect = found["effect"]
    assert isinstance(effect, float)
    return (effect < 0) == (found["better"] == "lower")
