"""`gspo report fidelity` as a user runs it: files, refusals."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from program import refusal

from gspo_cli.config import Recipe
from gspo_cli.instruments.fidelity import report
from gspo_cli.instruments.fidelity.estimates import Fidelity
from gspo_cli.instruments.fidelity.figure import draw
from gspo_cli.instruments.fidelity.measure import Cell, Plan
from gspo_cli.instruments.fidelity.pool import table
from gspo_cli.instruments.fidelity.report import Request, check_request, merge_fidelity, records
from gspo_cli.recipe import load
from gspo_cli.report.figures.style import requested_images
from gspo_cli.types import Problem


def request(
    arms: tuple[str, ...] = ("grpo", "gspo"),
    clips: tuple[float, ...] = (),
    plan: Plan = Plan((0, 1), (0.0,), 1, 2),  # noqa: B008 - frozen
) -> Request:
    return Request(arms, clips, "grpo", (0,), plan)


@pytest.fixture(scope="module")
def quickstart() -> Recipe:
    return load("quickstart", {}, [])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (request(plan=Plan((), (0.0,), 1, 2)), "nothing to measure"),
        (request(plan=Plan((-1,), (0.0,), 1, 2)), "a negative number of updates"),
        (request(plan=Plan((0,), (-0.1,), 1, 2)), "noise that is no standard deviation"),
        (request(plan=Plan((0,), (float("nan"),), 1, 2)), "noise that is no standard deviation"),
        (request(plan=Plan((0,), (0.0,), 0, 2)), "no batch to measure"),
        (request(plan=Plan((0,), (0.0,), 1, 1)), "a reference of fewer than two batches"),
        (request(arms=("ppo",)), "arm ppo has a critic"),
        (request(arms=("gspoo",)), "no algorithm or arm 'gspoo'"),
    ],
)
def test_what_cannot_be_measured_is_refused(quickstart: Recipe, wrong: Request, what: str) -> None:
    assert what in refusal(check_request, quickstart, wrong)


def test_batches_are_sampled_as_training_samples_them(quickstart: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts follow `[task]`, and responses end at the recipe's stop strings."""
    rollout = quickstart.rollout.model_copy(update={"stop": ("+",)})
    recipe = quickstart.model_copy(update={"rollout": rollout})
    given: list[Any] = []
    monkeypatch.setattr(report, "collect", lambda *arguments: given.extend(arguments))
    engine = SimpleNamespace(sync=lambda *_: None, rest=lambda: None)
    stream = SimpleNamespace(problems=[Problem("1", "1=", "1")] * rollout.prompts)
    setup: Any = SimpleNamespace(engine=engine, model=None, tokenizer=None, task=None, stream=stream)
    report.sample(setup, recipe, 1, 0)
    assert given[-2:] == [recipe.task, ("+",)]


ARMS = {"grpo": "grpo", "gspo": "gspo"}


def cells(seed: int) -> list[Cell]:
    draws = np.random.default_rng(seed)

    def cell(arm: str, updates: int, noise: float) -> Cell:
        cosine, *others = draws.uniform(0.2, 0.9, 8)
        found = Fidelity(cosine, (cosine - 0.1, cosine + 0.1), *others[:4])
        clipped = None if arm == "grpo" and noise else others[4]
        return Cell(arm, updates, noise, seed, found, others[5], others[6], 0.5, clipped)

    return [cell(arm, updates, noise) for updates in (1, 4) for noise in (0.0, 0.3) for arm in ARMS]


def write(folder: Path, seed: int, **changes: Any) -> Path:
    about = {
        "figure": "fidelity", "gspo": "0", "model_sha256": "m", "recipe": "r", "updates_by": "grpo", "batches": 2,
        "reference": 3, "responses": 8, "baseline": "grpo", "seeds": [seed],
        "notes": ["Recipe r.", "Intervals: one seed."],
    }  # fmt: skip
    rows = records(table(cells(seed), ARMS, "grpo"))
    path = folder / f"{seed}.json"
    path.write_text(json.dumps(about | {"rows": rows} | changes))
    return path


def test_pooled_files_are_one_measurement(tmp_path: Path) -> None:
    files = [write(tmp_path, seed) for seed in (2, 0, 1)]
    found = merge_fidelity(files, tmp_path / "out", requested_images("svg", None))
    pooled = pd.read_csv(tmp_path / "out" / "fidelity.csv")
    at_once = table([cell for seed in (0, 1, 2) for cell in cells(seed)], ARMS, "grpo")
    pd.testing.assert_frame_equal(pooled, at_once.astype(pooled.dtypes.to_dict()), check_exact=False, rtol=1e-12)
    assert found["seeds"] == [0, 1, 2] and "over 3 seeds" in found["notes"][-1]
    assert not any("one seed" in note for note in found["notes"])
    again = merge_fidelity([tmp_path / "out", write(tmp_path, 3)], tmp_path / "four", requested_images("svg", None))
    assert again["seeds"] == [0, 1, 2, 3]  # what was pooled can be pooled again


def test_a_panel_without_a_cosine_is_empty_and_the_others_are_drawn() -> None:
    found = table(cells(0) + cells(1), ARMS, "grpo")
    found.loc[found["noise"] == 0, ["cosine", "low", "high"]] = np.nan
    empty, full = draw(found, []).axes
    assert empty.texts and not empty.lines and full.lines


def test_other_requests_are_not_pooled(tmp_path: Path) -> None:
    first = write(tmp_path, 0)
    fewer = records(table(cells(2)[:2], ARMS, "grpo"))
    for other, why in (
        (write(tmp_path, 1, reference=9), "they differ in reference: 3 and 9"),
        (write(tmp_path, 2, rows=fewer), "other arms, updates or noises"),
        (first, "their seeds are 0, 0"),
    ):
        assert why in refusal(merge_fidelity, [first, other], tmp_path / "out")
    (tmp_path / "x.json").write_text("{}")
    assert "is no measurement" in refusal(merge_fidelity, [tmp_path / "x.json"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
