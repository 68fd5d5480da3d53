"""The published study of router noise is what its program makes of the published logs."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PUBLISHED = REPOSITORY / "results" / "published" / "router_noise"
PROGRAM = REPOSITORY / "results" / "programs" / "noise_study.py"


@pytest.mark.slow
def test_runs_tables_and_figure_are_redrawn_from_the_published_logs(tmp_path: Path) -> None:
    if not PUBLISHED.is_dir():
        pytest.skip("the published results are not part of a source distribution")
    subprocess.run([sys.executable, PROGRAM, PUBLISHED / "logs", "--out", tmp_path], check=True, timeout=60)
    assert (tmp_path / "tables.md").read_text() == (PUBLISHED / "tables.md").read_text()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "runs.csv"), pd.read_csv(PUBLISHED / "runs.csv"))
    assert (tmp_path / "study.svg").stat().st_size > 10_000
