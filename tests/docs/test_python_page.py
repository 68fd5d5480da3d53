"""The pandas code of docs/other-trainers.md, and the notebook, run on a small study: the figure is the report's."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pages import ROOT, blocks, modules
from program import Gspo

pytestmark = pytest.mark.slow
NOTEBOOK = ROOT / "docs" / "study.ipynb"


def test_the_page_runs(small_study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(small_study)
    names: dict[str, Any] = {}
    exec(compile(modules(ROOT / "docs" / "other-trainers.md")["look.py"], "look.py", "exec"), names)
    printed = capsys.readouterr().out
    assert "count" in printed and "gspo 0" in printed
    assert list(names["end"].columns) == ["grpo", "gspo"] and len(names["end"]) == 3
    study = names["study"]
    assert len(study.rollouts("gspo", seed=0, step=2)) == 4 * 32
    assert study.configs["gspo", 0]["algo"]["name"] == "gspo"


def test_the_notebook_redraws_the_figure(small_study: Path, gspo: Gspo, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    notebook.cells.append(nbformat.v4.new_code_cell(f"curves.to_csv({str(tmp_path / 'curves.csv')!r})"))
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(small_study)}})
    client.execute()
    assert "<svg" in (small_study / "reward.svg").read_text()

    assert gspo("report", "plots", small_study / "results" / "small").code == 0
    drawn = pd.read_csv(small_study / "results" / "small" / "figures" / "reward.csv")
    drawn = drawn[(drawn["series"] == "mean") & (drawn["metric"] == "reward/mean")]
    drawn = drawn[drawn["panel"] == drawn["panel"].iloc[0]]
    here = pd.read_csv(tmp_path / "curves.csv").merge(drawn, left_on=["arm", "step"], right_on=["arm", "x"])
    assert len(here) == 4
    np.testing.assert_allclose(here["mean"], here["y"], rtol=1e-9, atol=1e-12)
    assert here["low_y"].isna().all()  # two seeds: the figure has no band


def test_the_readme_shows_the_same_study(small_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_study)
    [block] = blocks(ROOT / "README.md", "python")
    *before, last = block.text.strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    assert eval(last, names)["gspo"].index.tolist() == [0, 1, 2]
