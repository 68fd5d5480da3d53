"""`gspo report map`: the cells of several studies, their order, what stays white, and the figure."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from compare_studies import configure, flat, put, write_study
from program import Gspo, ok, refusal

from gspo_cli.report.compare.effect_map import map_cells, map_table
from gspo_cli.report.compare.result import Compared
from gspo_cli.report.compare.study import ComparisonRequest, compare
from gspo_cli.report.runs.folders import read_study

BETTER, WORSE, NOTHING = (0.03, 0.02, 0.04, 0.01, 0.05, 0.02), (-0.03, -0.02, -0.04, -0.01, -0.05, -0.02), (0.06, -0.06)


def study(root: Path, name: str, differences: tuple[float, ...], **keys: Any) -> Path:
    folder = write_study(root / name, flat(differences), seeds=len(differences))
    configure(folder, {key.replace("__", "."): value for key, value in keys.items()})
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three measured cells of minibatches x noise, and one whose runs have not begun."""
    root = tmp_path_factory.mktemp("map") / "sweep"
    study(root, "a", BETTER, train__minibatches=10)  # noise.token at its default
    study(root, "b", WORSE, train__minibatches=4, noise={"token": 0.3})
    study(root, "c", NOTHING, train__minibatches=4)
    (root / "d").mkdir()
    recipe = json.loads((root / "a" / "grpo-s0" / "config.json").read_text()) | {"noise": {"token": 0.3}}
    put(root / "d" / "study.json", {"schema": 1, "plans": [{"recipe": recipe, "arms": [], "seeds": []}]})
    return root


@pytest.fixture(scope="module")
def mapped(sweep: Path) -> tuple[list[str], pd.DataFrame]:
    """The sweep's axes and table."""
    axes, cells = map_cells([str(sweep)], sweep, ComparisonRequest())
    return axes, map_table(axes, cells)


def test_cells_are_the_studies_own_comparisons(sweep: Path, mapped: tuple[list[str], pd.DataFrame]) -> None:
    axes, table = mapped
    assert axes == ["train.minibatches", "noise.token"]
    places = table[[*axes, "study"]].to_numpy().tolist()
    assert places == [["4", "0", "c"], ["4", "0.3", "b"], ["10", "0", "a"], ["10", "0.3", "d"]]  # 10 after 4
    assert table["verdict"].tolist() == ["no_claim", "better", "better", "unmeasured"]
    assert table["decided"].tolist() == [False, True, True, False]
    assert table["n"].tolist() == [2, 6, 6, 0]
    for name, index in (("a", 2), ("b", 1)):
        alone = compare(read_study(sweep / name), ComparisonRequest()).primary
        assert isinstance(alone, Compared) and alone.evidence.ci
        row = table.iloc[index]
        assert row["effect"] == pytest.approx(100 * alone.evidence.effect)  # points
        assert [row["low"], row["high"]] == pytest.approx([100 * end for end in alone.evidence.ci])
    assert table["effect"][2] == pytest.approx(100 * sum(BETTER) / 6) and table["effect"][1] < 0


def test_what_is_no_map(tmp_path: Path, sweep: Path) -> None:
    one, same = (str(study(tmp_path, name, BETTER)) for name in ("one", "same"))
    for names, axes, why in (
        ([one, same], (), "all their recipes are the same"),
        ([one, same], ("train.minibatches",), "both have train.minibatches = 4"),
        ([str(sweep)], ("train.minibatches", "noise.token", "train.lr"), "they are train.minibatches"),
        ([one, same], ("train.minibatch",), "did you mean 'train.minibatches'?"),
    ):
        assert why in refusal(map_cells, names, tmp_path, ComparisonRequest(), axes)


def test_the_command_writes_csv_figure_and_json(sweep: Path, tmp_path: Path, gspo_here: Gspo) -> None:
    done = gspo_here("report", "map", str(sweep), "--figures", str(tmp_path / "out"), "--format", "svg", "--json")
    found = json.loads(done.out)
    assert found["axes"] == ["train.minibatches", "noise.token"] and found["arms"] == ["grpo", "gspo"]
    assert [cell["why"] for cell in found["cells"]] == [None, None, None, "no run has begun"]
    assert "Collapsed: grpo 0 of 14, gspo 0 of 14 runs." in found["notes"]
    assert found["cells"][0]["comparison"]["below_start"] == {"baseline": [], "treatment": []}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"map.csv", "map.json", "map.svg"}


PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "when"


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="an installed package has no published results")
def test_the_published_map_is_drawn_again_from_its_logs(tmp_path: Path, gspo_here: Gspo) -> None:
    logs = sorted(map(str, (PUBLISHED / "logs").glob("*.tar.xz")))
    ok(gspo_here("report", "map", *logs, "--out", str(tmp_path), "--figures", str(tmp_path / "map")))
    drawn, known = (pd.read_csv(folder / "map.csv") for folder in (tmp_path / "map", PUBLISHED / "map"))
    pd.testing.assert_frame_equal(drawn, known)


ROUTER_NOISE = PUBLISHED.with_name("router_noise")
PROGRAM = PUBLISHED.parents[1] / "programs" / "noise_study.py"


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="an installed package has no published results")
def test_runs_tables_and_figure_are_redrawn_from_the_published_logs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROGRAM, ROUTER_NOISE / "logs", "--out", tmp_path], check=True, timeout=600)
    assert (tmp_path / "tables.md").read_text() == (ROUTER_NOISE / "tables.md").read_text()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "runs.csv"), pd.read_csv(ROUTER_NOISE / "runs.csv"))
    assert (tmp_path / "study.svg").stat().st_size > 10_000
