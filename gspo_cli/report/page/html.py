"""`gspo report html`: the whole study as one page that needs no network and runs no script."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.claims.evaluate import claims, found_text
from gspo_cli.report.compare.outcome import MEANING, outcomes
from gspo_cli.report.compare.result import Found
from gspo_cli.report.compare.study import ComparisonRequest, compare
from gspo_cli.report.compare.texts import costs, remarks, statistics, value
from gspo_cli.report.figures.plots import plot
from gspo_cli.report.figures.style import PAPERS, Image
from gspo_cli.report.runs.facts import differences, row_of
from gspo_cli.report.runs.folders import StoredRun, Study
from gspo_cli.report.runs.pairs import all_of, load_records, write_sources
from gspo_cli.report.runs.samples import Filter, Response, responses, stored_steps
from gspo_cli.runlog.fs import write_text
from gspo_cli.sanitize import excerpt, sanitize

PROMPTS, RESPONSES = 3, 2
"""Shown at each step: the first prompts of the batch, and responses to each."""
FIRST = ("score", "reward")
"""How the names of the figures begin that stand first, in this order: held-out scores, rewards with their parts."""
PICTURES: dict[str, Image] = {"broad": (PAPERS["page"], "svg"), "narrow": (PAPERS["column"], "svg")}
"""Of each figure, without title and notes, which the page prints as text: for a screen and for a telephone."""


def side_by_side(study: Study) -> tuple[list[dict[str, Any]], str]:
    """(steps with prompts with every arm's responses, why there are none).

    The last, middle and first step that all arms have stored, of the smallest seed that they share.
    Errors: GspoError (exit code STORAGE) naming a stored batch that cannot be read.
    """
    arms = sorted({run.arm for run in study.runs})
    stored = {(run.arm, run.seed): stored_steps(run.folder) for run in study.runs}
    for seed in sorted({run.seed for run in study.runs}):
        runs = {run.arm: run for run in study.runs if run.seed == seed}
        steps = sorted(set.intersection(*(set(stored.get((arm, seed), ())) for arm in arms)))
        if steps:
            chosen = dict.fromkeys([steps[-1], steps[len(steps) // 2], steps[0]])
            return [{"step": step, "seed": seed, "arms": arms, "prompts": _prompts(runs, step)} for step in chosen], ""
    return [], "no rollout batch of all arms is stored; train with --set rollout.store=20 to keep every 20th"


def _prompts(runs: dict[str, StoredRun], step: int) -> list[dict[str, list[Response]]]:
    """Arm -> responses, of the first prompts that all arms have."""
    prompts: dict[str, dict[str, list[Response]]] = {}
    for arm, run in runs.items():
        for row in sorted(responses(run.folder, Filter(str(step))), key=lambda row: row.sample):
            prompts.setdefault(row.problem_id, {}).setdefault(arm, []).append(row)
    return [by_arm for by_arm in prompts.values() if len(by_arm) == len(runs)][:PROMPTS]


FILE = "report.html"
NO_PICTURE_DATA = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
"""What an svg file has and a picture within a page does not need."""


def report_html(study: Study) -> Path:
    """Writes the page and its side file into the study's folder and returns the page's path.

    Figures, comparison and claims are made afresh and kept beside it as their own commands do.
    Errors: GspoError for corrupt files, or a study without a log.
    """
    everyone = all_of(load_records(study))
    samples, no_samples = side_by_side(study)
    figures, notes = _figures(study)
    compared, no_comparison = _compared(study)
    arms = outcomes(study)
    metrics = list(dict.fromkeys(metric for arm in arms for metric in arm.changes))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=shown,
    )  # fmt: skip
    environment.filters.update(short=short_hashes, excerpt=excerpt)
    environment.globals.update(costs=costs, remarks=remarks, row_of=row_of, statistics=statistics, value=value)
    text = environment.get_template("page.html.j2").render(
        study=study.folder.name, version=__version__, comparisons=compared, no_comparison=no_comparison,
        claims=_claims(study), figures=figures, notes=notes, samples=samples, no_samples=no_samples,
        num_responses=RESPONSES, outcomes=arms, meaning=MEANING, metrics=metrics, runs=everyone,
        differences=_differences(study),
    )  # fmt: skip
    path = study.folder / FILE
    write_text(path, text)
    write_sources(path, everyone, {m.name: f"invalidated: {m.facts.invalid}" for m in everyone if m.facts.invalid})
    return path


def shown(value: Any) -> Any:
    """What an expression of the template prints: text that came from a file cannot reorder the page."""
    return sanitize(value) if isinstance(value, str) and not isinstance(value, Markup) else value


HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")


def short_hashes(value: Any) -> Markup:
    """A cell's text with long hashes cut to 12 digits, so that they cannot squeeze the other columns; the whole hash is
    shown when the pointer rests on it."""
    span = r'<span class="hash" title="\g<0>">\1…</span>'
    return Markup(HASH.sub(span, str(escape(sanitize(str(value))))))


def _claims(study: Study) -> list[dict[str, Any]]:
    """The rows of the claims; a difference from the paper stands in the first row that has it alone."""
    rows, known = [], set[str]()
    for row in claims(study)["rows"]:
        new = [text for text in row.get("differs") or () if text not in known]
        known.update(new)
        rows.append(row | {"found": found_text(row) if "value" in row else row["why"], "differs": new})
    return rows


def _compared(study: Study) -> tuple[list[Found], str]:
    """Every pair of arms; or why nothing is compared, unless there is one arm."""
    if len({run.arm for run in study.runs}) == 1:
        return [], ""
    try:
        found = compare(study, ComparisonRequest())
    except GspoError as error:
        return [], f"{error.message}: {error.why}"
    return [found.primary, *found.others], ""


def _figures(study: Study) -> tuple[list[dict[str, Any]], list[str]]:
    """(the figures, scores and rewards first; what a reader should know). The pictures are our own drawing; their text
    is drawn as outlines."""
    report, figures = plot(study, list(PICTURES.values())), list[dict[str, Any]]()
    for name in sorted(report.files, key=lambda name: [not name.startswith(first) for first in FIRST]):
        pictures = {}
        for size, (paper, _) in PICTURES.items():
            text = (study.folder / "figures" / f"{name}{paper.ending}.svg").read_text(encoding="utf-8")
            pictures[size] = Markup(NO_PICTURE_DATA.sub("", text).strip())
        about = {"name": name, "title": report.titles[name], "caption": report.captions[name]}
        figures.append(about | {"first": name.startswith(FIRST), "pictures": pictures})
    return figures, [*report.notes, *(f"No figure {name}: {why}" for name, why in report.left_out.items())]


def _differences(study: Study) -> list[dict[str, Any]]:
    """What every other arm has otherwise than the first, by the runs of its smallest seed."""
    first = study.runs[0]
    others = {run.arm: run for run in reversed(study.runs) if run.arm != first.arm}
    return [
        {"one": first.folder.name, "other": run.folder.name, "rows": differences(first, run)}
        for _, run in sorted(others.items())
    ]
