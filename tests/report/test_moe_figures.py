"""The figures of experts: volatility by layer, churn against clipping, Routing Replay."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats
from drawn import logged, make, read_csv, redraw, side_file
from matplotlib.figure import Figure
from report_runs import LAYERS, Record, line, records, write_run, write_study

CHURN, CLIP = "moe/slot_churn_step", "clip/token_frac"


def step_line(
    step: int, layers: Sequence[float | None] = (), clip: float | None = None, churn: float | None = None
) -> Record:
    """A `step` line with the churn of layers 0, 2, 3."""
    by_layer = {f"{CHURN}/layer_{n:02d}": value for n, value in zip(LAYERS, layers, strict=False)}
    return line(step, "step", None, {CLIP: clip, CHURN: churn, **by_layer}, {})


def images(figure: Figure) -> list[np.ma.MaskedArray]:
    return [image.get_array() for ax in figure.axes for image in ax.images]


def test_a_cell_is_the_mean_over_seeds_of_a_layer_in_a_batch(tmp_path: Path) -> None:
    study = write_study(tmp_path / "demo", arms=("gspo", "grpo"), steps=4)
    make(study, "volatility_layers")
    table, shown = read_csv(study, "volatility_layers"), images(redraw(study, "volatility_layers"))
    assert sorted(table["layer"].unique()) == [0, 2, 3]
    for index, arm in enumerate(("grpo", "gspo")):
        mine = table[table["arm"] == arm]
        for position, layer in enumerate(LAYERS):
            name = f"{CHURN}/layer_{layer:02d}"
            expected = np.mean([[v for _, v in logged(study, arm, s, "step", name)] for s in range(3)], axis=0)
            cells_of_layer = mine[mine["layer"] == layer]
            assert cells_of_layer["first"].tolist() == cells_of_layer["last"].tolist() == [1, 2, 3, 4]
            np.testing.assert_allclose(cells_of_layer["y"], expected, rtol=1e-12)
            np.testing.assert_allclose(shown[index][position], expected, rtol=1e-12)
        assert set(mine["n"]) == {3}


def test_a_seed_without_a_value_empties_the_cell_and_no_other(tmp_path: Path) -> None:
    write_run(tmp_path, "gspo", 0, [step_line(1, (0.1, 0.2, 0.3)), step_line(2, (0.1, None, math.inf))])
    other = [step_line(1, (0.3, 0.2, 0.1)), step_line(2, (0.3, 0.2, 0.1)), step_line(3, (0, 0, 0))]
    write_run(tmp_path, "gspo", 1, other)
    report = make(tmp_path, "volatility_layers")
    with (tmp_path / "figures" / "volatility_layers.csv").open() as file:
        found = [(row["layer"], row["first"], row["y"]) for row in csv.DictReader(file)]
    assert [y for layer, _, y in found if layer == "0"] == ["0.2", "0.2", ""]
    assert [y for layer, _, y in found if layer == "2"] == ["0.2", "", ""]
    assert [y for layer, _, y in found if layer == "3"] == ["0.2", "", ""]
    assert any("1 values" in note and "not finite" in note for note in report.notes)
    figure = redraw(tmp_path, "volatility_layers")
    assert images(figure)[0].mask.tolist() == [[False, False, True], [False, True, True], [False, True, True]]


def test_a_point_is_a_batch_with_both_values(tmp_path: Path) -> None:
    values = [(0.1, 0.01), (0.2, None), (None, 0.03), (0.0, 0.04), (0.5, math.nan), (0.6, 0.06)]
    write_run(tmp_path, "gspo", 0, [step_line(t, (), *pair) for t, pair in enumerate(values, 1)])
    write_run(tmp_path, "sapo", 0, [step_line(1, (), None, 0.01)])
    report = make(tmp_path, "churn_clip")
    table = read_csv(tmp_path, "churn_clip")
    assert table[["step", "x", "y"]].to_numpy().tolist() == [[1, 0.1, 0.01], [4, 0, 0.04], [6, 0.6, 0.06]]
    assert f"churn_clip: gspo-s0: 1 values of {CHURN} (step lines) are not finite, left out." in report.notes
    side = side_file(tmp_path, "churn_clip")
    assert [(item["arm"], item["reason"]) for item in side["excluded"]] == [
        ("sapo", f"no rollout batch has both {CLIP} and {CHURN}")
    ]


def test_rank_correlation_agrees_with_scipy_and_states_n(tmp_path: Path) -> None:
    study = write_study(tmp_path / "demo", arms=("gspo",), seeds=2, steps=6)
    write_run(study, "grpo", 0, [step_line(t, (), 0.1, 0.01 * t) for t in range(1, 11)])
    write_run(study, "dapo", 0, [step_line(t, (), 0.1 * t, 0.01 * t) for t in range(1, 10)])
    make(study, "churn_clip")
    table = read_csv(study, "churn_clip").query("arm == 'gspo'")
    rho = scipy.stats.spearmanr(table["x"], table["y"]).statistic
    notes = " ".join(side_file(study, "churn_clip")["notes"])
    assert f"grpo undefined, one does not vary (n = 10), gspo {rho:+.2f} (n = 12). No test" in notes
    assert "No correlation from fewer than 10 points: dapo (n = 9)." in notes


def test_replay_shows_the_algorithms_that_have_both(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "grpo", seed, records("grpo", seed, 5))
        write_run(tmp_path, "grpo_r2", seed, records("grpo", seed + 7, 5, replay=True), "grpo", replay="r2")
        write_run(tmp_path, "sapo", seed, records("sapo", seed, 5))
    make(tmp_path, "replay")
    table = read_csv(tmp_path, "replay")
    arms = table.groupby("panel", sort=False)["arm"].unique().map(list).to_dict()
    assert arms == {"grpo reward": ["grpo", "grpo_r2"], "grpo agreement": ["grpo_r2"]}
    for arm, panel, kind, metric in (
        ("grpo", "grpo reward", "rollout", "reward/mean"),
        ("grpo_r2", "grpo agreement", "step", "replay/natural_agree_frac"),
    ):
        mine = table[(table["arm"] == arm) & (table["panel"] == panel)]
        for seed in range(2):
            expected = [v for _, v in logged(tmp_path, arm, seed, kind, metric)]
            assert mine.loc[mine["seed"] == seed, "y"].tolist() == expected
        assert (mine["series"] == "mean").sum() == 5
