"""`gspo report`: compare a study's arms, test the paper's claims, and plot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import FigureWidth, Format, Json, Results, Study, parse_seeds
from gspo_cli.errors import ExitCode, GspoError, quoted

if TYPE_CHECKING:
    from gspo_cli.report.compare.result import Found
    from gspo_cli.report.compare.study import ComparisonRequest

app = console.Commands(help="Compare and plot runs; look up metrics and algorithms.", no_args_is_help=True)


Requirement = Literal["better", "equal"]


OF_SCORES = ("scores", "out", "metric", "baseline", "treatment", "margin", "seeds", "json_")
"""Parameters of `compare` that have a part in comparing `--scores`."""


@app.command()
def compare(
    context: typer.Context,
    study: Study = None,
    out: Results = Path("results"),
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric to judge by: reward/mean:last10, aime24/avg@32.",
            autocompletion=options.complete_comparison_metric,
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Arm to compare with.")] = None,
    treatment: Annotated[str | None, typer.Option(help="Compare only this arm.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Difference below which arms are equal, in points or the metric's unit.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Use only these seeds: 0-7 or 0,3,5.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Waive a precondition: code, hardware or versions.")] = None,
    grader_errors: Annotated[
        Literal["wrong"] | None, typer.Option(help="`wrong` counts answers without a verdict as wrong, in both arms.")
    ] = None,
    require: Annotated[
        Requirement | None, typer.Option(help="Exit with 3 unless the runs show this; better: the treatment is better.")
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(
            help="Compare the runs of a csv (columns run, seed, task, step, value, collapsed) or, given several times, "
            "evaluations as [RUN=]FILE: Inspect's .eval logs, lighteval's details."
        ),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="The table and the sentence of a paper, in LaTeX.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The same in Markdown.")] = False,
    assume: Annotated[
        str | None,
        typer.Option(
            help="State what imported runs do not record: start,data,tuning,collapse. The sentence repeats it."
        ),
    ] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Imported runs of one seed share nothing; match them in order.")
    ] = False,
    json_: Json = False,
) -> None:
    """Compare a study's arms with its baseline, seed by seed: first the sentence that the runs permit.

    Exit code 3 if the runs are not comparable (with every reason), or if they do not show what --require asks for.

    Examples:
        gspo report compare
        gspo report compare results/quickstart-20260101-120000 --metric reward/mean:last10 --json
        gspo report compare my-study --baseline grpo_r2 --treatment gspo --require better
        gspo report compare my-study --markdown
        gspo report compare --scores scores.csv --margin 0.02
        gspo report compare --scores before=base.eval --scores after=tuned.eval
        gspo report compare imported --assume start,data
    """
    from gspo_cli.cli.views.comparison import show_comparison
    from gspo_cli.report.compare import paper
    from gspo_cli.report.compare.study import ComparisonRequest
    from gspo_cli.report.compare.study import compare as compare_arms
    from gspo_cli.report.runs.folders import find_study
    from gspo_cli.report.runs.seeds import not_begun

    if margin is not None and not 0 < margin < float("inf"):
        raise GspoError(f"--margin {margin}", "a margin is a positive number", "e.g. --margin 2")
    request = ComparisonRequest(
        metric=metric, baseline=baseline, treatment=treatment, margin=margin, allow=frozenset(allow or ()),
        seeds=None if seeds is None else parse_seeds(None, seeds, 0), grader_errors_wrong=grader_errors == "wrong",
        assume=frozenset(filter(None, (assume or "").replace(" ", "").split(","))), unpaired=unpaired,
    )  # fmt: skip
    if latex + markdown + json_ > 1:
        raise GspoError("--latex, --markdown and --json together", "each is a whole output", "use one of them")
    if scores:
        for option in options.typed(context, OF_SCORES):
            why = "a file of scores has no runs to check"
            raise GspoError(f"{option} with --scores", why, f"leave out {option}")
        return _compare_scores(scores, metric, request, json_)
    found_study = find_study(study, out)
    comparison = compare_arms(found_study, request)
    if json_:
        console.print_json(comparison.to_json())
    elif latex or markdown:
        console.out.print((paper.latex if latex else paper.markdown)(comparison))
    else:
        show_comparison(comparison)
    missing = not_begun(found_study.folder, [(run.arm, run.seed) for run in found_study.runs])
    if missing and not json_:
        command = f"gspo train --resume {quoted(found_study.folder)}"
        console.note(f"the study is unfinished: {missing}; {command} trains the rest")
    if comparison.unsaved:
        console.note(f"warning: the comparison was not stored: {comparison.unsaved}")
    unmet = require is not None and not _shows(comparison.primary, require)
    if unmet and not json_:
        console.note(f"--require {require} is not met: the verdict is {comparison.primary.verdict}; exit code 3")
    if unmet or comparison.primary.verdict == "refused":
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _compare_scores(files: list[Path], metric: str | None, request: ComparisonRequest, as_json: bool) -> None:
    from gspo_cli.cli.views.comparison import show_scores
    from gspo_cli.report.compare.eval_log import SUFFIXES, read_evaluations
    from gspo_cli.report.compare.score_file import read_scores
    from gspo_cli.report.compare.score_table import compare_scores

    form = metric or "last"
    if files[0].suffix in SUFFIXES:
        found = compare_scores(read_evaluations(files, metric), request, "last")
    elif len(files) > 1:
        raise GspoError("--scores several times", "a csv holds all runs", "put them into one file")
    else:
        found = compare_scores(read_scores(files[0], form), request, form)
    if as_json:
        console.print_json(found.to_json())
    else:
        show_scores(found)


def _shows(found: Found, requirement: Requirement) -> bool:
    from gspo_cli.report.compare.result import Compared

    if not isinstance(found, Compared) or found.verdict != requirement:
        return False
    return requirement == "equal" or (found.evidence.effect < 0) == (found.wording.better == "lower")


@app.command()
def serve(
    study: Study = None,
    out: Results = Path("results"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any.")] = 8765,
    json_: Json = False,
) -> None:
    """Show the page of a study in the browser, drawn again as its logs grow, until Ctrl-C.

    Examples:
        gspo report serve
        gspo report serve my-study --port 0 --json
    """
    from gspo_cli.report.page.serve import PageServer
    from gspo_cli.report.runs.folders import find_study

    folder = find_study(study, out).folder
    if (folder / "run.json").is_file():
        whole = f"gspo report serve {quoted(folder.parent)}"
        raise GspoError(f"{folder} is a run", "the page is of a whole study", whole)
    with PageServer(folder, port) as server:
        console.print_result({"url": server.url, "study": str(folder)}, json_)
        sys.stdout.flush()
        console.note(f"{folder}, for this machine only, until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.note("stopped")
            # A thread may still draw a page. Python's own shutdown would end it within a library's C++ code, which
            # aborts the process ("terminate called without an active exception").
            sys.stderr.flush()
            os._exit(0)


@app.command()
def claims(study: Study = None, out: Results = Path("results"), json_: Json = False) -> None:
    """Test each claim of the GSPO paper on a study: supported, contradicted, inconclusive or not tested.

    The verdicts are about these runs; they do not judge the paper's own runs.

    Examples:
        gspo report claims
        gspo report claims results/claims-reward --json
    """
    from gspo_cli.report.claims.evaluate import claims as test_claims
    from gspo_cli.report.claims.evaluate import found_text
    from gspo_cli.report.runs.folders import find_study

    result = test_claims(find_study(study, out))
    if json_:
        return console.print_json(result)
    if not result["rows"]:
        console.out.print("No claim concerns this study: they compare arms, on mathematics or programs.")
    known: set[str] = set()  # most differences are the study's, and would be said again in each row
    for row in result["rows"]:
        verdict = row["verdict"].replace("_", " ")
        here = " here" if verdict in ("supported", "contradicted") else ""
        console.out.print(f"{row['id']}: {verdict}{here}")
        new = [text for text in row.get("differs") or () if text not in known]
        facts = {
            "claim": f"{row['claim']} ({row['place']})",
            "found": found_text(row) if "value" in row else "",
            "settings": row.get("conditions"),
            "exploratory": row.get("exploratory"),
            "why": row["why"],
            "differs" if known else "differs (from here on)": "; ".join(new),
            "would decide it": row["decide"] if row["decide"] != row["why"] else "",
        }
        known.update(new)
        for name, text in facts.items():
            if text:
                console.out.print(f"  {name}: {text}")


@app.command()
def plots(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study or run, or several to draw over each other.",
            show_default="the newest",
            autocompletion=options.complete_study,
        ),
    ] = None,
    out: Results = Path("results"),
    format_: Format = None,
    paper: FigureWidth = None,
    json_: Json = False,
) -> None:
    """Plot a study's rewards, clip fractions, expert volatility and Routing Replay, as images with their data.

    Several studies are drawn over each other, into a folder of their own under --out.

    Examples:
        gspo report plots
        gspo report plots results/quickstart-20260101-120000 --json
        gspo report plots my-study --paper column --format pdf
        gspo report plots my-study my-other-study
    """
    from gspo_cli.report.figures.plots import plot
    from gspo_cli.report.figures.style import requested_images
    from gspo_cli.report.runs.folders import find_study, overlaid

    images = requested_images(format_, paper)
    some = [find_study(name, out) for name in studies] if studies else [find_study(None, out)]
    found = some[0] if len(some) == 1 else overlaid(some, out)
    report = plot(found, images)
    if json_:
        files = {name: [str(path) for path in paths] for name, paths in report.files.items()}
        about = {"figures": files, "captions": report.captions, "left_out": report.left_out, "notes": report.notes}
        return console.print_json({"study": str(found.folder), **about})
    console.note(*report.notes, *(f"no figure {name}: {why}" for name, why in report.left_out.items()))
    for name, text in report.captions.items() if paper else ():
        console.note(f"caption of {name}: {text}")
    count = console.plural(len(report.files), "figure")
    console.out.print(f"{found.folder / 'figures'}: {count} ({', '.join(report.files)})")


@app.command()
def clip(study: Study = None, out: Results = Path("results"), json_: Json = False) -> None:
    """Say what a study's clip ranges discard, and which ranges would discard a wanted share.

    Examples:
        gspo report clip
        gspo report clip results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.clip_range import TARGETS, clip_ranges
    from gspo_cli.report.runs.folders import find_study

    found = [one.to_json() for one in clip_ranges(find_study(study, out))]
    if json_:
        return console.print_json({"arms": found})
    measured = console.table("arm", "unit", "tokens", "sd log ratio", "range", "discards", "negative tail")
    proposed = console.table("to discard", *(f"{share:.0%}" for share in TARGETS))
    for row in found:
        tail = "n/a" if row["negative_tail"] is None else f"{row['negative_tail']:.1%}"
        range_ = f"{row['low']:g} / {row['high']:g}"
        numbers = f"{row['length_mean']:.0f}", f"{row['log_std']:.3g}", range_, f"{row['measured']:.1%}", tail
        measured.add_row(row["arm"], row["unit"], *numbers)
        ranges = (row["proposals"][f"{share:g}"] for share in TARGETS)
        proposed.add_row(row["arm"], *("{low:.2g} / {high:.2g}".format(**ends) for ends in ranges))
    console.print_table(measured)
    console.print_table(proposed)
    for row in found:
        console.out.print(f"{row['arm']}: {row['verdict']}")
        if row["scaled_by_length"] is not None:
            console.out.print(
                f"{row['arm']}: the published 3e-4, scaled from 10,000 to {row['length_mean']:.0f} tokens by "
                f"1 / sqrt(length), is {row['scaled_by_length']:.2g}."
            )
    console.note(
        "Off-policy mini-batches, and only what has an advantage. The negative tail is the share of the gradient on "
        "tokens with a negative advantage that weigh more than 3 times as much as at ratio 1. The second table has "
        "values of algo.clip.low / algo.clip.high (gmpo: algo.log_clip_low / algo.log_clip_high) that would discard "
        "a share if log-ratios were normal and had nothing to do with the sign of the advantage; no such range can "
        "discard more than half."
    )


@app.command()
def html(study: Study = None, out: Results = Path("results"), json_: Json = False) -> None:
    """Write one self-contained page with verdicts, figures, claims, responses side by side, and provenance.

    Examples:
        gspo report html
        gspo report html results/quickstart-20260101-120000 --json
    """
    from gspo_cli.report.page.html import report_html
    from gspo_cli.report.runs.folders import find_study

    console.print_result({"page": str(report_html(find_study(study, out)))}, json_)


@app.command()
def batch(
    rollout: Annotated[Path, typer.Argument(help="A stored rollout batch: a parquet file, or a folder with one.")],
    model: Annotated[str, typer.Option(help="The policy that sampled the batch: a Hugging Face folder or name.")],
    against: Annotated[
        str | None, typer.Option(help="The policy some updates later.", show_default="none: every ratio is 1")
    ] = None,
    precision: Annotated[
        bool, typer.Option("--precision", help="Only how far each precision moves the log-probabilities.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures.", show_default="batch-report beside the batch")
    ] = None,
    format_: Format = None,
    paper: FigureWidth = None,
    json_: Json = False,
) -> None:
    """Compare every algorithm's loss, weights, clipping and gradient on one stored batch, with three figures.

    With --precision: is the difference between engine and trainer one of precision?

    Examples:
        gspo report batch my-batch --model ./start
        gspo report batch run/rollouts/step_000001.parquet --model ./start --against run/model --json
        gspo report batch my-batch --model ./start --precision
    """
    from gspo_cli.instruments.batch.data import read_batch
    from gspo_cli.models.files import check_source
    from gspo_cli.report.figures.style import requested_images

    if precision and (against or format_ or paper):
        raise GspoError(
            "--precision with --against, --format or --paper",
            "it concerns the policy that sampled alone, and draws no figure",
            "leave these options out, or --precision",
        )
    images, stored = requested_images(format_, paper), read_batch(rollout)
    for policy in filter(None, (model, against)):
        check_source(policy)
    console.note_torch()
    import torch  # only once the names are valid

    from gspo_cli.instruments.batch.precision import precision_table, report_precision
    from gspo_cli.instruments.batch.report import report_batch, tables
    from gspo_cli.models.device import prepare_torch

    prepare_torch(torch.get_num_threads())
    if precision:
        numbers = report_precision(stored, model, out)
        text = f"{precision_table(numbers)}\n{numbers['verdict']}"
        return console.print_json(numbers) if json_ else console.out.print(text)
    report = report_batch(stored, model, against, out, images)
    if json_:
        return console.print_json(report)
    console.out.print(*tables(report), sep="\n")
    console.note(*report["notes"])
    for path in (path for paths in report["figures"].values() for path in paths):
        console.out.print(path)
