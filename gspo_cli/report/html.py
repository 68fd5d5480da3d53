"""`gspo report html`: the whole study as one page that needs no network and runs no script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.report.claim_text import found_text
from gspo_cli.report.claims import claims
from gspo_cli.report.compare import Asked, compare
from gspo_cli.report.compare_rows import costs, remarks, statistics, unit, value
from gspo_cli.report.folders import Study
from gspo_cli.report.pairs import load_members
from gspo_cli.report.plots import plot
from gspo_cli.report.run_list import differences, row_of
from gspo_cli.report.samples import side_by_side
from gspo_cli.report.sources import write_sources
from gspo_cli.runlog.fs import write_text

FILE = "report.html"
NO_PICTURE_DATA = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
"""What an svg file has and a picture within a page does not need."""


def report_html(study: Study) -> Path:
    """Writes the page and its side file into the study's folder and returns the page's path.

    Figures, comparison and claims are made afresh and kept beside it as their own commands do.
    Errors: GspoError for corrupt files, or a study without a log.
    """
    members = load_members(study, None)
    everyone = [member for by_seed in members.values() for member in by_seed.values()]
    samples, no_samples = side_by_side(study)
    figures, notes = _figures(study)
    compared, no_comparison = _compared(study)
    environment = Environment(
        loader=PackageLoader("gspo_cli.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    text = environment.get_template("page.html.j2").render(
        study=study.folder.name, version=__version__, comparisons=compared, no_comparison=no_comparison,
        claims=_claims(study), figures=figures, notes=notes, samples=samples, no_samples=no_samples,
        differences=_differences(study), runs=[_run(member) for member in everyone],
    )  # fmt: skip
    path = study.folder / FILE
    write_text(path, text)
    write_sources(path, everyone, {m.name: f"invalidated: {m.facts.invalid}" for m in everyone if m.facts.invalid})
    return path


def _compared(study: Study) -> tuple[list[dict[str, Any]], str]:
    """Every pair of arms with its sentence and numbers as text; or why nothing is compared."""
    try:
        found = compare(study, Asked())
    except GspoError as error:
        return [], f"{error.message}: {error.why}"
    return [_pair(one) for one in (found, *found["others"])], ""


def _pair(found: dict[str, Any]) -> dict[str, Any]:
    head = {key: found[key] for key in ("baseline", "treatment", "metric", "sentence", "reasons", "verdict")}
    if found["verdict"] == "refused":
        return head
    if found["verdict"] == "descriptive":
        return head | {"arms": found["arms"], "remarks": found["notes"]}
    seeds = [
        (row["seed"], value(found, row["baseline"]), value(found, row["treatment"]),
         value(found, row["difference"], sign=True))
        for row in found["per_seed"]
    ]  # fmt: skip
    return head | {"unit": unit(found), "seeds": seeds, "numbers": [*statistics(found), *costs(found)],
                   "remarks": remarks(found)}  # fmt: skip


def _claims(study: Study) -> list[dict[str, Any]]:
    rows = claims(study)["rows"]
    return [row | {"found": found_text(row) if "value" in row else row["why"]} for row in rows]


def _figures(study: Study) -> tuple[list[tuple[str, Markup]], list[str]]:
    """(name, picture) of each figure, and what a reader should know. The pictures are our own drawing; text in them is
    drawn as outlines."""
    report = plot(study)
    pictures = []
    for name, paths in report.files.items():
        svg = next(path for path in paths if path.name == f"{name}.svg").read_text(encoding="utf-8")
        pictures.append((name, Markup(NO_PICTURE_DATA.sub("", svg).strip())))
    return pictures, [*report.notes, *(f"No figure {name}: {why}" for name, why in report.left_out.items())]


def _differences(study: Study) -> list[dict[str, Any]]:
    """What every other arm has otherwise than the first, by the runs of its smallest seed."""
    first = study.runs[0]
    others = {run.arm: run for run in reversed(study.runs) if run.arm != first.arm}
    return [
        {"one": first.folder.name, "other": run.folder.name, "rows": differences(first, run)}
        for _, run in sorted(others.items())
    ]


def _run(member: Any) -> dict[str, str]:
    """A run's line in the table of provenance."""
    about, row, curves = member.facts.about, row_of(member.facts), member.curves
    code = about.get("code") or {}
    commit = str(code.get("commit") or "not recorded")[:12] + (" with changes" if code.get("dirty") else "")
    return {
        "run": row["run"], "status": row["status"] + (f": {row['reason']}" if row["reason"] else ""),
        "steps": f"{row['steps']}/{row['planned']}", "run_id": row["run_id"],
        "log": curves.sha256 if curves else "no log", "code": f"gspo {about.get('gspo')}, {commit}",
        "model": str(about.get("model_sha256")), "data": str(about.get("data_sha256")),
        "machine": f"{about.get('cpu')}, {about.get('device')}, {about.get('threads')} threads",
        "versions": ", ".join(f"{k} {v}" for k, v in (about.get("packages") or {}).items()),
    }  # fmt: skip
