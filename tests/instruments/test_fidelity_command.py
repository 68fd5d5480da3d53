"""`gspo report fidelity` as a user runs it: files, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from program import Gspo

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.instruments.fidelity import report
from gspo_cli.instruments.fidelity.measure import Plan
from gspo_cli.instruments.fidelity.report import Request, check_request, names
from gspo_cli.recipe import load
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
    with pytest.raises(GspoError, match=what):
        check_request(quickstart, wrong)


def test_arms_that_a_request_adds(quickstart: Recipe) -> None:
    wanted = request(arms=("grpo", "reinforce"), clips=(0.0067, 0.2))
    assert names(wanted) == ["grpo", "reinforce", "gspo-0.0067", "gspo-0.2"]
    arms = check_request(quickstart, wanted).arms
    assert arms["gspo-0.2"] == {"name": "gspo", "clip": {"low": 0.2, "high": 0.2}}
    assert arms["reinforce"]["allow_stale"] is True  # old data is what is measured
    assert quickstart.arms == {}


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


@pytest.mark.slow
def test_files_and_identities_of_a_small_run(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    out = tmp_path / "fidelity"
    command = [
        "report", "fidelity", str(smoke), "--algo", "grpo,gspo,reinforce", "--clip", "0.9", "--updates", "0,1",
        "--noise", "0,0.5", "--seeds", "0-1", "--batches", "2", "--reference", "3", "--out", str(out), "--json",
    ]  # fmt: skip
    done = gspo_here(*command)
    assert done.code == 0, done.err
    (found,) = (json.loads(text) for text in done.out.splitlines())
    rows = [row for row in found["rows"] if row["seed"] is None]
    assert len(rows) == 4 * 2 * 2 and len(found["rows"]) == 3 * len(rows)
    on_policy = [row for row in rows if row["updates"] == 0 and row["noise"] == 0]
    assert len({(row["cosine"], row["ceiling"], row["effective"]) for row in on_policy}) == 1
    table = pd.read_csv(out / "fidelity.csv")
    assert len(table) == len(found["rows"]) and {"cosine", "ceiling", "gap", "projection"} <= set(table)
    assert all(Path(path).is_file() for path in found["files"])
    assert any("synthetic" in note for note in found["notes"])
    # the same command again gives the same bytes
    before = (out / "fidelity.csv").read_bytes()
    assert gspo_here(*command).code == 0
    assert (out / "fidelity.csv").read_bytes() == before
