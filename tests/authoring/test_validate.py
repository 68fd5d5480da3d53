"""`gspo recipes validate` finds what is wrong without a model, and names file, table and the nearest right name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo

from gspo_cli import recipe
from gspo_cli.authoring import find_errors


def faults_of(folder: Path, text: str) -> list[str]:
    """What is said of a recipe that extends the quickstart."""
    path = folder / "mine.toml"
    path.write_text(f'extends = "quickstart"\n{text}')
    return [str(error) for error in find_errors(path)]


def test_every_shipped_recipe_is_free_of_faults_and_has_its_files_name() -> None:
    assert [error for name in recipe.names() for error in find_errors(recipe.find(name))] == []
    assert [recipe.load(name).name for name in recipe.names()] == [Path(name).name for name in recipe.names()]


@pytest.mark.parametrize(
    ("text", "place", "near"),
    [
        ("[train]\nstepps = 3", "unknown key 'train.stepps'", "did you mean 'steps'?"),
        ("[algo]\nname = 'gsppo'", "algo: no algorithm or arm 'gsppo'", "did you mean 'gspo'?"),
        ("[arms]\nwide = { clip = { hihg = 1 } }", "unknown key 'arms.wide.clip.hihg'", "did you mean 'high'?"),
        ("[arms]\nwide = { name = 'grppo' }", "arms.wide: no algorithm or arm 'grppo'", "did you mean 'grpo'?"),
        ("[algo]\nname = 'reinforce'\nminibatches = 4", "algo: reinforce with 4 mini-batches", "algo.minibatches = 1"),
        ("[task]\nname = 'arithmetik'", "task: no task 'arithmetik'", "did you mean 'arithmetic'?"),
        ("[task]\nname = 'gsm8k'\npath = 'no.jsonl'", "task: no data file", "no.jsonl"),
        ("[task]\nname = 'no_module:Task'", "task: cannot load 'no_module:Task'", "beside the recipe"),
        ("[eval]\nbench = ['math50']", "eval: no benchmark 'math50'", "did you mean 'math500'?"),
        ("[eval.data]\narithmetic = 'no.jsonl'", "eval.data.arithmetic", "e.g. --data arithmetic=8-11"),
        ("[cold_start]\npath = 'no.jsonl'", "cold_start.path: no data file no.jsonl", "check the path"),
        ("[report]\nmetric = 'reward/meen:last10'", "report.metric: no metric", "did you mean 'reward/mean'?"),
    ],
)
def test_a_fault_is_said_with_its_place(tmp_path: Path, text: str, place: str, near: str) -> None:
    (said,) = faults_of(tmp_path, text)
    assert said.startswith(f"error: {tmp_path / 'mine.toml'}: {place}")
    assert near in said


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    assert len(faults_of(tmp_path, "sead = 1\n[train]\nstepps = 3\nlr = 'x'")) == 3
    assert len(faults_of(tmp_path, "[algo]\nname = 'gsppo'\n[task]\nname = 'x'\n[eval]\nbench = ['x']")) == 3


def test_the_command_ends_with_2_and_says_the_same_as_json(gspo_here: Gspo, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = ")
    done = gspo_here("recipes", "validate", path, "quickstart")
    assert (done.code, done.err) == (2, "")
    assert done.out.splitlines()[0] == f"{path}: 1 error" and done.out.splitlines()[-1].endswith("quickstart.toml: ok")
    done = gspo_here("recipes", "validate", path, "quickstart", "--json")
    broken, sound = map(json.loads, done.out.splitlines())
    assert (done.code, broken["ok"], sound["ok"], sound["errors"]) == (2, False, True, [])
    assert broken["errors"][0].keys() == {"error", "why", "do"}
