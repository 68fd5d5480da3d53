"""Figures for a paper: widths, formats, fonts, captions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from drawn import make
from program import Gspo
from report_runs import records, write_log, write_run, write_study

from gspo_cli.errors import GspoError
from gspo_cli.report.figures import plots
from gspo_cli.report.figures.plots import FIGURES
from gspo_cli.report.figures.style import PAPERS, SCREEN, USUAL, Image, Paper, requested_images
from gspo_cli.report.verify import verify

COLUMN, PAGE = PAPERS["column"], PAPERS["page"]
PDFS: list[Image] = [(COLUMN, "pdf"), (PAGE, "pdf")]
DRAWN = ("reward", "churn_clip")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of grpo and gspo, one of grpo with replay, drawn for a paper alone."""
    folder = write_study(tmp_path_factory.mktemp("results") / "demo", seeds=5, steps=6)
    write_run(folder, "grpo_r2", 0, records("grpo", 5, 6, replay=True), algorithm="grpo", replay="r2")
    make(folder, *DRAWN, images=PDFS)
    return folder


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(("paper", "width"), [(COLUMN, 234), (PAGE, 504)])  # 72 points an inch
def test_a_pdf_holds_its_fonts_as_text(study: Path, name: str, paper: Paper, width: int) -> None:
    data = (study / "figures" / f"{name}{paper.ending}.pdf").read_bytes()
    assert b"/FontFile2" in data and b"DejaVuSans" in data
    assert b"/Type3" not in data and b"CreationDate" not in data
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", data)
    assert float(box) == width


def test_pictures_that_are_there_are_kept_up_with_the_data(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "demo", arms=("grpo",), seeds=1, steps=3)
    make(folder, "clip", images=PDFS[1:])
    old = (folder / "figures" / "clip-page.pdf").read_bytes()
    (folder / "grpo-s0" / "metrics.jsonl").unlink()
    write_log(folder / "grpo-s0" / "metrics.jsonl", records("grpo", 7, 3))
    report = make(folder, "clip", images=USUAL)
    names = {path.name for path in report.files["clip"]}
    assert names == {"clip.csv", "clip.json", "clip.svg", "clip.png", "clip-page.pdf", "clip-page.tex"}
    assert verify(folder / "figures" / "clip.json").problems == []
    (folder / "figures" / "clip-page.pdf").write_bytes(old)
    (problem,) = verify(folder / "figures" / "clip.json").problems
    assert problem.file.endswith("clip-page.pdf")


def test_what_is_asked_for_and_what_is_not_there() -> None:
    assert requested_images(None, None) == USUAL
    assert requested_images("pdf,svg", None) == [(SCREEN, "pdf"), (SCREEN, "svg")]
    assert requested_images(None, "column") == [(COLUMN, "pdf")]
    assert requested_images("png,png", "page") == [(PAGE, "png")]
    for formats, paper in (("gif", None), ("", None), ("svg,", None), ("svg", "a4")):
        with pytest.raises(GspoError, match=r"no image format|no paper"):
            requested_images(formats, paper)


def test_the_command(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"reward": FIGURES["reward"]})
    folder = write_study(tmp_path / "demo", arms=("gspo",), seeds=1, steps=2)
    assert gspo_here("report", "plots", folder, "--format", "jpg").code == 2 and not (folder / "figures").exists()
    done = gspo_here("report", "plots", folder, "--paper", "column", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert str(folder / "figures" / "reward-column.pdf") in found["figures"]["reward"]
    assert not list((folder / "figures").glob("*.svg"))
