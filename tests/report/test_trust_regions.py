"""The tables of the study of trust regions, on made-up runs."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "results" / "programs"


@pytest.fixture(scope="module")
def study() -> object:
    if not PROGRAMS.is_dir():
        pytest.skip("the programs are not part of a source distribution")
    sys.path.insert(0, str(PROGRAMS))
    try:
        import trust_regions
    finally:
        sys.path.remove(str(PROGRAMS))
    return trust_regions


def runs(study: object, ahead: dict[str, float], spread: float = 0.5) -> pd.DataFrame:
    """Six seeds: GRPO at 60 plus the seed, an arm `ahead` of it, give or take."""
    rows = []
    for arm in ["grpo", *study.ARMS]:  # type: ignore[attr-defined]
        for seed in range(6):
            end = 60 + seed + ahead.get(arm, 0.0) + (spread * (-1) ** seed if arm in ahead else 0.0)
            rows.append({"arm": arm, "seed": seed, "end": end, "area": end - 10, "held_out": end - 1})
    about = {"below_start": False, "largest_gradient": 2.0, "spread": 0.5, "discarded": float("nan")}
    return pd.DataFrame(rows).assign(**about)


def test_each_arm_is_held_against_grpo_pair_by_pair(study: object) -> None:
    """A difference of 5 +- 0.5 over six seeds: sd = 0.5 sqrt(6 / 5), half-width 2.571 sd / sqrt(6) = 0.575."""
    cell = runs(study, {"gspo": 5.0, "vespo": -5.0, "ipo": 0.0, "cispo": 1.8})
    chosen = {arm: {"lr": 1e-4} for arm in ["grpo", *study.ARMS]}  # type: ignore[attr-defined]
    text = "\n".join(study.cell_tables("8-0.2", cell, chosen))  # type: ignore[attr-defined]
    assert "### 8 mini-batches, 20 % router noise (primary)" in text
    line = {row.split(" | ")[0].removeprefix("| "): row for row in reversed(text.splitlines()) if row.startswith("| ")}
    assert line["gspo"].startswith("| gspo | +5.0 [4.4, 5.6] | +5.0 [4.4, 5.6] |") and line["gspo"].endswith(
        "| better |"
    )
    assert line["vespo"].endswith("| worse |") and line["ipo"].endswith("| equal within 2 |")
    assert line["cispo"].endswith("| better |") and line["dppo_tv"].endswith("| 1 | equal within 2 |")  # equal runs
    wide = "\n".join(study.cell_tables("8-0", runs(study, {"ipo": 1.0}, 4.0), chosen))  # type: ignore[attr-defined]
    assert "| ipo | +1.0 [-3.6, 5.6]" in wide and "undecided" in wide


def test_the_change_between_cells_is_by_seed(study: object) -> None:
    """5 +- 0.5 minus 2 +- 1, with the same signs by seed, is 3 -+ 0.5."""
    cells = {"8-0.2": runs(study, {"gspo": 5.0}, 0.5), "8-0": runs(study, {"gspo": 2.0}, 1.0)}
    assert "| gspo | +3.0 [2.4, 3.6] |" in study.change_table(cells)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.usefixtures("study")
def test_tables_and_runs_are_redrawn_from_the_published_logs(tmp_path: Path) -> None:
    published = PROGRAMS.parent / "published" / "trust_regions"
    command = [sys.executable, PROGRAMS / "trust_regions.py", published / "logs", "--out", tmp_path]
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
    assert (tmp_path / "tables.md").read_text() == (published / "tables.md").read_text()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "runs.csv"), pd.read_csv(published / "runs.csv"))
    assert (tmp_path / "study.svg").stat().st_size > 10_000
