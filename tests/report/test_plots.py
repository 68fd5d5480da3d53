"""Figures, on screen and paper, show the logged numbers, say what they leave out, and are redrawn from their csv."""

import csv
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats
from compare_studies import change
from drawn import assert_nothing_overlaps, logged, make, read_csv, redraw, side_file
from matplotlib.colors import to_hex
from matplotlib.image import imread
from PIL import Image
from program import Gspo, ok, refusal
from report_runs import TOKENS_A_STEP, Record, line, records, write_log, write_run, write_study

from gspo_cli.report.figures import plots, style
from gspo_cli.report.figures.plots import FIGURES, PlotResult, plot_scores
from gspo_cli.report.figures.save import latex
from gspo_cli.report.figures.style import PAPERS, USUAL, Paper
from gspo_cli.report.runs.folders import find_study
from gspo_cli.report.verify import verify
from gspo_cli.runlog.schema import METRICS


def rewards(seed: int, steps: int) -> list[Record]:
    """Lines for the reward figure alone."""
    return [record for record in records("gspo", seed, steps) if record["kind"] == "rollout"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of grpo, gspo and sapo (whose clip fractions are null), one of grpo with replay."""
    folder = write_study(tmp_path_factory.mktemp("results") / "demo", arms=("grpo", "gspo", "sapo"), seeds=5, steps=12)
    write_run(folder, "grpo_r2", 0, records("grpo", 5, 12, replay=True), algorithm="grpo", replay="r2")
    make(folder, images=USUAL)
    return folder


@pytest.mark.parametrize(
    ("figure", "metric", "kind"),
    [
        ("reward", "reward/mean", "rollout"),
        ("clip", "clip/token_frac", "step"),
        ("volatility", "moe/slot_churn_step", "step"),
    ],
)
def test_csv_against_steps_equals_the_logs(study: Path, figure: str, metric: str, kind: str) -> None:
    table = read_csv(study, figure)
    table = table[(table["panel"] == "steps") & (table["arm"] == "grpo")]
    values = [[v for _, v in logged(study, "grpo", seed, kind, metric)] for seed in range(5)]
    for seed in range(5):
        mine = table[table["seed"] == seed]
        assert mine["x"].tolist() == list(range(1, 13))
        assert mine["y"].tolist() == values[seed]
    mean = table[table["series"] == "mean"]
    # t(0.975, 4) = 2.776445
    half = scipy.stats.t.ppf(0.975, 4) * np.std(values, axis=0, ddof=1) / math.sqrt(5)
    np.testing.assert_allclose(mean["y"], np.mean(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(mean["low"], np.mean(values, axis=0) - half, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(mean["high"], np.mean(values, axis=0) + half, rtol=1e-9)
    assert mean["n"].tolist() == [5] * 12


@pytest.mark.parametrize(("figure", "metric"), [("clip", "clip/token_frac"), ("volatility", "moe/slot_churn_probe")])
def test_csv_by_mini_batch_is_the_mean_over_batches(study: Path, figure: str, metric: str) -> None:
    table = read_csv(study, figure)
    table = table[(table["panel"] == "mini_batches") & (table["arm"] == "gspo")]
    means = np.zeros((5, 4))
    for seed in range(5):
        for index in range(4):
            found = logged(study, "gspo", seed, "update", metric)
            means[seed, index] = np.mean([v for record, v in found if record["mini_batch"] == index])
        mine = table[table["seed"] == seed]
        assert mine["x"].tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(mine["y"], means[seed], rtol=1e-12)
    np.testing.assert_allclose(table.loc[table["series"] == "mean", "y"], means.mean(axis=0), rtol=1e-12)
    assert (means[:, 0] == 0).all() == (figure == "clip"), "clipping starts with the second mini-batch"


def test_mean_against_tokens_interpolates_on_the_shared_range(tmp_path: Path) -> None:
    # seed 0: reward = tokens / 1000 at 100, 200, 300; seed 1: reward = 1 at 150, 200, 400. Shared range 150 to 300,
    # three positions: 150, 225, 300; means (0.15 + 1) / 2, (0.225 + 1) / 2, (0.3 + 1) / 2.
    for seed, tokens in enumerate([(100, 200, 300), (150, 200, 400)]):
        lines = [
            line(step, "rollout", None, {"reward/mean": t / 1000 if seed == 0 else 1.0, "compute/gen_tokens": t}, {})
            for step, t in enumerate(tokens, 1)
        ]
        write_run(tmp_path, "gspo", seed, lines)
    make(tmp_path, "reward")
    table = read_csv(tmp_path, "reward")
    table = table[table["panel"] == "tokens"]
    assert table.loc[table["seed"] == 1, "x"].tolist() == [150, 200, 400]
    mean = table[table["series"] == "mean"]
    assert mean["x"].tolist() == [150, 225, 300]
    np.testing.assert_allclose(mean["y"], [0.575, 0.6125, 0.65], rtol=1e-12)


def test_null_and_non_finite_inside_a_curve_are_gaps(tmp_path: Path) -> None:
    values = [0.1, None, 0.3, math.nan, 0.5, math.inf, 0.7]
    lines = [line(s, "step", None, {"clip/token_frac": v}, {}) for s, v in enumerate(values, 1)]
    write_run(tmp_path, "gspo", 0, lines)
    report = make(tmp_path, "clip")
    with (tmp_path / "figures" / "clip.csv").open() as file:
        assert [row["y"] for row in csv.DictReader(file)] == ["0.1", "", "0.3", "", "0.5", "", "0.7"]
    assert any("2 values of clip/token_frac (step lines) are not finite" in note for note in report.notes)
    (curve, dots), _ = (ax.lines for ax in redraw(tmp_path, "clip").axes)
    assert np.isnan(curve.get_ydata()).tolist() == [v is None or not math.isfinite(v) for v in values]
    # with gaps on both sides no line would show them
    assert list(dots.get_xdata()) == [1, 3, 5, 7]


def test_zeros_on_a_log_axis_lie_in_the_strip_below_it(study: Path) -> None:
    _, ax = redraw(study, "clip").axes
    assert ax.get_yscale() == "log"
    ticks = dict(zip([label.get_text() for label in ax.get_yticklabels()], ax.get_yticks(), strict=True))
    floor = min(value for name, value in ticks.items() if name != "0")
    assert ax.get_ylim()[0] < ticks["0"] < floor
    zeros = [curve for curve in ax.lines if np.max(curve.get_ydata()) < floor]
    assert {to_hex(curve.get_color()).upper() for curve in zeros} == {"#0072B2", "#D55E00"}
    assert all(list(curve.get_xdata()) == [1] for curve in zeros), "only mini-batch 1 is 0"
    for curve in (curve for curve in ax.lines if curve not in zeros):
        shown = np.asarray(curve.get_ydata())
        assert np.nanmin(shown) >= floor
        assert not np.isfinite(shown[np.asarray(curve.get_xdata()) == 1]).any(), "a line must not lead to a 0"
    assert "Mini-batch 1 is 0 by construction" in (study / "figures" / "clip.json").read_text()


@pytest.mark.parametrize("name", list(FIGURES))
def test_csv_alone_redraws_the_figure_and_nothing_in_it_overlaps(study: Path, name: str) -> None:
    figure = redraw(study, name)
    assert_nothing_overlaps(figure)
    bare = {label for ax in figure.axes for label in (ax.get_xlabel(), ax.get_ylabel())} & METRICS.keys()
    assert not bare, f"name the axis of {bare} in WORDS of gspo_cli/report/figures/words.py"
    with style.applied():
        figure.savefig(study / "again.png")
    np.testing.assert_array_equal(imread(study / "again.png"), imread(study / "figures" / f"{name}.png"))


def test_side_file_names_runs_and_proves_logs_and_csv(study: Path) -> None:
    for name in FIGURES:
        text = (study / "figures" / f"{name}.json").read_bytes()
        side = json.loads(text)
        has_band = name not in ("volatility_layers", "churn_clip")
        assert side["band"] == ("95 % t interval over seeds, pointwise" if has_band else None)
        assert [(r["arm"], r["seed"], r["run_id"]) for r in side["runs"]] == [
            (arm, seed, f"id-{arm}-{seed}")
            for arm, seeds in (("grpo", 5), ("grpo_r2", 1), ("gspo", 5), ("sapo", 5))
            for seed in range(seeds)
        ]
        for run in side["runs"]:
            assert run["replay"] == ("r2" if run["arm"] == "grpo_r2" else "none")
            log = (study / run["run"] / "metrics.jsonl").read_bytes()
            assert run["log"] == {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest(), "torn_bytes": 0}
        table = (study / "figures" / f"{name}.csv").read_bytes()
        assert side["csv"] == {"bytes": len(table), "sha256": hashlib.sha256(table).hexdigest()}
        mark = f"sha256:{hashlib.sha256(text).hexdigest()}"
        with Image.open(study / "figures" / f"{name}.png") as image:
            assert image.info["Source"] == mark
        assert mark in (study / "figures" / f"{name}.svg").read_text()


@pytest.mark.slow
def test_the_same_logs_give_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for place in ("here", "there"):
        folder = write_study(tmp_path / place / "demo", seeds=2, steps=3)
        # the user's own settings must not show
        with mpl.rc_context({} if place == "here" else {"font.size": 20, "axes.facecolor": "red"}):
            make(folder, images=[*USUAL, (PAPERS["column"], "pdf")])
        contents.append({path.name: path.read_bytes() for path in (folder / "figures").iterdir()})
    assert contents[0] == contents[1]


def test_a_run_that_ended_early_does_not_shift_the_mean(tmp_path: Path) -> None:
    for seed, steps in enumerate((3, 5)):
        lines = [line(s, "rollout", None, {"reward/mean": float(seed)}, {}) for s in range(1, steps + 1)]
        write_run(tmp_path, "gspo", seed, lines)
    report = make(tmp_path, "reward")
    mean = read_csv(tmp_path, "reward").query("series == 'mean' and panel == 'steps'")
    assert mean["x"].tolist() == [1, 2, 3, 4, 5]
    assert mean["y"].tolist()[:3] == [0.5] * 3
    assert mean["y"].isna().tolist() == [False, False, False, True, True]
    # no tokens were logged: the second panel is empty, and says so
    assert any("compute/gen_tokens is null or absent" in note for note in report.notes)
    assert "no values" in [text.get_text() for text in redraw(tmp_path, "reward").axes[1].texts]


def test_dense_models_have_no_figure_of_experts(tmp_path: Path) -> None:
    write_run(tmp_path, "gspo", 0, records("gspo", 0, 3, dense=True))
    report = make(tmp_path)
    of_experts = {"volatility", "volatility_layers", "churn_clip", "replay"}
    assert {"reward", "clip"} <= report.files.keys() and not of_experts & (report.left_out.keys() | report.files.keys())


def test_runs_without_a_log_and_torn_logs_are_named(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "gspo", seed, rewards(seed, 3)) for seed in range(2)]
    (folders[1] / "metrics.jsonl").unlink()
    with (folders[0] / "metrics.jsonl").open("a") as file:
        file.write('{"seq":')
    report = make(tmp_path, "reward")
    assert "gspo-s0: torn last line of metrics.jsonl (7 bytes) ignored" in report.notes
    side = json.loads((tmp_path / "figures" / "reward.json").read_text())
    missing = {"run": "gspo-s1", "arm": "gspo", "seed": 1, "panel": None, "reason": "no metrics.jsonl"}
    assert side["excluded"] == [missing]
    assert side["runs"][0]["log"]["torn_bytes"] == 7


def test_a_run_that_does_not_count_is_in_no_figure(tmp_path: Path) -> None:
    write_study(tmp_path, seeds=3, steps=4)
    (tmp_path / "gspo-s1" / "invalidated.json").write_text('{"reason": "wrong data"}')
    report = make(tmp_path, "reward")
    table, why = read_csv(tmp_path, "reward"), "invalidated: wrong data"
    assert set(table.loc[(table["arm"] == "gspo") & (table["series"] == "seed"), "seed"]) == {0, 2}
    assert [row["reason"] for row in side_file(tmp_path, "reward")["excluded"]] == [why]
    assert f"reward: Left out: gspo (seed 1). Reason: {why}." in report.notes


def test_nothing_to_plot(tmp_path: Path) -> None:
    write_run(tmp_path, "gspo", 0, [])
    assert "nothing to plot" in refusal(make, tmp_path)
    assert not (tmp_path / "figures").exists()


def test_the_reward_figure_has_the_differences_that_the_tests_see(tmp_path: Path) -> None:
    for arm in ("grpo", "gspo", "sapo"):
        for seed in range(12 if arm != "sapo" else 1):
            level = 0.5 + 0.1 * seed + (0.05 if arm == "gspo" else 0)
            lines = [line(s, "rollout", None, {"reward/mean": level + s / 50}, {}) for s in range(1, 5)]
            folder = write_run(tmp_path, arm, seed, lines)
            change(folder / "config.json", {"report": {"baseline": "grpo"}})
    make(tmp_path, "reward")
    table = read_csv(tmp_path, "reward").query("panel == 'differences'")
    # seeds differ by 0.1 each, yet every difference is 0.05; sapo has one seed only
    means = table[table["series"] == "mean"]
    assert set(table["arm"]) == {"gspo"} and set(means["n"]) == {12} and set(table["seed"].dropna()) == set(range(12))
    np.testing.assert_allclose(means[["low", "high"]], 0.05, atol=1e-12)
    np.testing.assert_allclose(table["y"], 0.05, atol=1e-12)
    assert_nothing_overlaps(redraw(tmp_path, "reward"))
    assert "Differences: each arm minus grpo, seed by seed" in (tmp_path / "figures" / "reward.json").read_text()


COLUMN, PAGE = PAPERS["column"], PAPERS["page"]


@pytest.mark.parametrize(("paper", "width"), [(COLUMN, 234), (PAGE, 504)])  # 72 points an inch
def test_a_pdf_holds_its_fonts_as_text(tmp_path: Path, paper: Paper, width: int) -> None:
    folder = write_study(tmp_path / "demo", arms=("gspo",), seeds=1, steps=2)
    make(folder, "churn_clip", images=[(paper, "pdf")])
    data = (folder / "figures" / f"churn_clip{paper.ending}.pdf").read_bytes()
    assert b"/FontFile2" in data and b"DejaVuSans" in data
    assert b"/Type3" not in data and b"CreationDate" not in data
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", data)
    assert float(box) == width


def test_a_caption_has_latex_s_signs_escaped() -> None:
    found = latex("a_b", "50 % of x_1 & {y} ~ \\ ^ # $ <", "a_b-column", COLUMN)
    words = "50 \\% of x\\_1 \\& \\{y\\} \\textasciitilde{} \\textbackslash{} \\textasciicircum{} \\# \\$ \\textless{}"
    assert f"\\caption{{{words}}}" in found and "\\label{fig:a-b}" in found


def test_pictures_that_are_there_are_kept_up_with_the_data(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "demo", arms=("grpo",), seeds=1, steps=3)
    make(folder, "clip", images=[(PAGE, "pdf")])
    old = (folder / "figures" / "clip-page.pdf").read_bytes()
    (folder / "grpo-s0" / "metrics.jsonl").unlink()
    write_log(folder / "grpo-s0" / "metrics.jsonl", records("grpo", 7, 3))
    report = make(folder, "clip")
    names = {path.name for path in report.files["clip"]}
    assert names == {"clip.csv", "clip.json", "clip.svg", "clip-page.pdf", "clip-page.tex"}
    assert verify(folder / "figures" / "clip.json").problems == []
    (folder / "figures" / "clip-page.pdf").write_bytes(old)
    (problem,) = verify(folder / "figures" / "clip.json").problems
    assert problem.file.endswith("clip-page.pdf")


def test_the_command(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"reward": FIGURES["reward"]})
    folder = write_study(tmp_path / "demo", arms=("gspo",), seeds=1, steps=2)
    assert gspo_here("report", "plots", folder, "--format", "jpg").code == 2 and not (folder / "figures").exists()
    done = ok(gspo_here("report", "plots", folder, "--paper", "column", "--json"))
    found = json.loads(done.out)
    assert str(folder / "figures" / "reward-column.pdf") in found["figures"]["reward"]
    assert not list((folder / "figures").glob("*.svg"))


NAME = "score-arithmetic-avg4"


def scores_of(folder: Path) -> PlotResult:
    return plot_scores(find_study(str(folder), folder))


def with_evals(arm: str, seed: int, scores: dict[int, float]) -> list[Any]:
    """A run's lines with `eval` lines after the steps named; step 0 comes first."""
    found: list[Any] = []
    for record in [None, *records(arm, seed, 20)]:
        step = 0 if record is None else record["step"]
        found += [record] if record else []
        if step in scores and (record is None or record["kind"] == "step"):
            found.append(line(step, "eval", None, {"arithmetic/avg@4": scores[step]}, {"arithmetic/avg@4": 800}))
    return found


def write_summary(
    run: Path, step: int, average: float | None, metric: str = "arithmetic/avg@4", **changes: object
) -> Path:
    path = run / "eval" / metric.split("/")[0] / f"step-{step:06d}" / "summary.json"
    path.parent.mkdir(parents=True)
    about = {"metric": metric, "average": average, "standard_error": 0.02, "num_problems": 200, "num_answers": 800,
             "sampling": {}, "data": {}}  # fmt: skip
    path.write_text(json.dumps(about | changes))
    return path


def points(folder: Path, panel: str, arm: str, seed: int, name: str = NAME) -> dict[float, float]:
    table = read_csv(folder, name)
    mine = table[(table["panel"] == panel) & (table["arm"] == arm) & (table["seed"] == seed)]
    return dict(zip(mine["x"], mine["y"], strict=True))


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    for seed in (0, 1, 2):
        write_run(tmp_path, "gspo", seed, with_evals("gspo", seed, {0: 0.4, 10: 0.5, 20: 0.6 + seed / 100}))
        write_run(tmp_path, "grpo", seed, with_evals("grpo", seed, {0: 0.4, 10: 0.45, 20: 0.5}))
    return tmp_path


def test_logged_scores_against_steps_and_tokens(scored: Path) -> None:
    report = scores_of(scored)
    assert list(report.files) == [NAME]
    assert points(scored, "steps", "gspo", 1) == {0: 0.4, 10: 0.5, 20: 0.61}
    tokens = points(scored, "tokens", "gspo", 1)
    assert list(tokens.values()) == [0.4, 0.5, 0.61]
    start, middle, end = tokens
    assert start == 0 and 8 * TOKENS_A_STEP < middle < 12 * TOKENS_A_STEP + 4000 and end > 1.9 * middle
    mean = read_csv(scored, NAME).query("panel == 'steps' and arm == 'gspo' and series == 'mean' and x == 20")
    assert mean["y"].tolist() == pytest.approx([0.61]) and mean["low"].isna().all()  # three seeds have no band
    assert side_file(scored, NAME)["evaluations"] == []


def test_a_run_without_logged_scores_is_drawn_from_its_checkpoints(tmp_path: Path) -> None:
    run = write_run(tmp_path, "gspo", 0, records("gspo", 0, 20))
    assert scores_of(run).files == {}
    for step, value in ((5, 0.4), (20, 0.6)):
        write_summary(run, step, value)
    assert list(scores_of(run).files) == [NAME] and points(run, "steps", "gspo", 0) == {5: 0.4, 20: 0.6}


def test_scores_of_other_problems_are_not_of_the_curve(scored: Path) -> None:
    write_summary(scored / "gspo-s1", 20, 0.75, num_answers=12, num_problems=3)
    write_summary(scored / "gspo-s2", 20, 0.75, num_answers=4000, num_problems=1000)
    write_summary(scored / "grpo-s0", 20, 0.7, sampling={"temperature": 0.2})
    write_summary(scored / "grpo-s1", 20, 0.7)
    notes = " ".join(scores_of(scored).notes)
    assert points(scored, "steps", "gspo", 1) == {0: 0.4, 10: 0.5, 20: 0.61}
    assert points(scored, "steps", "gspo", 2) == {20: 0.75} and points(scored, "steps", "grpo", 0)[20] == 0.7
    assert (
        "Not drawn: evaluations of gspo-s1 of fewer problems than others (1)." in notes
        and "Not drawn: scores of gspo-s2 in training" in notes
    )
    assert "differ in their sampling or data" in notes


def test_evaluated_checkpoints_stand_for_and_beside_the_log(scored: Path) -> None:
    write_summary(scored / "gspo-s1", 20, 0.75)
    write_summary(scored / "gspo-s1", 5, 0.47)
    path = write_summary(scored / "gspo-s1", 15, 0.33, metric="aime24/avg@32")
    write_summary(scored / "gspo-s1", 20, None, metric="aime24/avg@32")  # nothing could be graded
    report = scores_of(scored)
    assert set(report.files) == {NAME, "score-aime24-avg32"}
    assert points(scored, "steps", "gspo", 1) == {0: 0.4, 5: 0.47, 10: 0.5, 20: 0.75}
    assert points(scored, "steps", "gspo", 0) == {0: 0.4, 10: 0.5, 20: 0.6}
    assert points(scored, "steps", "gspo", 1, "score-aime24-avg32") == {15: 0.33}
    used = side_file(scored, "score-aime24-avg32")["evaluations"]
    assert [(e["run"], e["step"], e["value"]) for e in used] == [("gspo-s1", 15, 0.33)]
    path.write_text("{}")
    assert "summary" in refusal(scores_of, scored)
