"""The figure of benchmark scores: logged ones and evaluated checkpoints, against steps and against tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn import read_csv, side_file
from report_runs import TOKENS_A_STEP, line, records, write_run

from gspo_cli.errors import GspoError
from gspo_cli.report.figures import plots
from gspo_cli.report.figures.plots import PlotResult, plot, plot_scores
from gspo_cli.report.runs.folders import find_study

NAME = "score-arithmetic-avg4"


def make(folder: Path) -> PlotResult:
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


def summary(run: Path, step: int, average: float | None, metric: str = "arithmetic/avg@4") -> Path:
    path = run / "eval" / metric.split("/")[0] / f"step-{step:06d}" / "summary.json"
    path.parent.mkdir(parents=True)
    about = {"metric": metric, "average": average, "standard_error": 0.02, "num_problems": 200}
    path.write_text(json.dumps(about))
    return path


def points(folder: Path, panel: str, arm: str, seed: int, name: str = NAME) -> dict[float, float]:
    table = read_csv(folder, name)
    mine = table[(table["panel"] == panel) & (table["arm"] == arm) & (table["seed"] == seed)]
    return dict(zip(mine["x"], mine["y"], strict=True))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed in (0, 1, 2):
        write_run(tmp_path, "gspo", seed, with_evals("gspo", seed, {0: 0.4, 10: 0.5, 20: 0.6 + seed / 100}))
        write_run(tmp_path, "grpo", seed, with_evals("grpo", seed, {0: 0.4, 10: 0.45, 20: 0.5}))
    return tmp_path


def test_logged_scores_against_steps_and_tokens(study: Path) -> None:
    report = make(study)
    assert list(report.files) == [NAME]
    assert points(study, "steps", "gspo", 1) == {0: 0.4, 10: 0.5, 20: 0.61}
    tokens = points(study, "tokens", "gspo", 1)
    assert list(tokens.values()) == [0.4, 0.5, 0.61]
    start, middle, end = tokens
    assert start == 0 and 8 * TOKENS_A_STEP < middle < 12 * TOKENS_A_STEP + 4000 and end > 1.9 * middle
    mean = read_csv(study, NAME).query("panel == 'steps' and arm == 'gspo' and series == 'mean' and x == 20")
    assert mean["y"].tolist() == pytest.approx([0.61]) and mean["low"].isna().all()  # three seeds have no band
    assert side_file(study, NAME)["evaluations"] == []


def test_evaluated_checkpoints_stand_for_and_beside_the_log(study: Path) -> None:
    summary(study / "gspo-s1", 20, 0.75)
    summary(study / "gspo-s1", 5, 0.47)
    path = summary(study / "gspo-s1", 15, 0.33, metric="aime24/avg@32")
    summary(study / "gspo-s1", 20, None, metric="aime24/avg@32")  # nothing could be graded
    report = make(study)
    assert set(report.files) == {NAME, "score-aime24-avg32"}
    assert points(study, "steps", "gspo", 1) == {0: 0.4, 5: 0.47, 10: 0.5, 20: 0.75}
    assert points(study, "steps", "gspo", 0) == {0: 0.4, 10: 0.5, 20: 0.6}
    assert points(study, "steps", "gspo", 1, "score-aime24-avg32") == {15: 0.33}
    used = side_file(study, "score-aime24-avg32")["evaluations"]
    assert [(e["run"], e["step"], e["value"]) for e in used] == [("gspo-s1", 15, 0.33)]
    path.write_text("{}")
    with pytest.raises(GspoError, match="summary"):
        make(study)


def test_a_run_without_logged_scores_is_drawn_from_its_checkpoints(tmp_path: Path) -> None:
    run = write_run(tmp_path, "gspo", 0, records("gspo", 0, 20))
    assert make(run).files == {}
    for step, value in ((5, 0.4), (10, 0.5), (20, 0.6)):
        summary(run, step, value)
    assert list(make(run).files) == [NAME]
    assert points(run, "steps", "gspo", 0) == {5: 0.4, 10: 0.5, 20: 0.6}
    assert (run / "figures" / f"{NAME}.svg").is_file()


def test_report_plots_draws_scores_beside_the_other_figures(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"reward": plots.FIGURES["reward"]})
    assert set(plot(find_study(str(study), study)).files) == {"reward", NAME}
