"""`gspo recipes validate` finds what is wrong without a model, and names file, table and the nearest right name."""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from program import Gspo, refusal

from gspo_cli import recipe
from gspo_cli.authoring import TEMPLATES, copy_recipe, find_errors, recipe_schema


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
        ("[arms]\nwide = { name = 'grppo' }", "arms.wide: no algorithm or arm 'grppo'", "did you mean 'grpo'?"),
        ("[algo]\nname = 'reinforce'\nminibatches = 4", "algo: reinforce with 4 mini-batches", "algo.minibatches = 1"),
        ("[task]\nname = 'gsm8k'\npath = 'no.jsonl'", "task: no data file", "no.jsonl"),
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


@pytest.mark.parametrize("name", recipe.names())
def test_a_copy_means_what_the_shipped_recipe_means(tmp_path: Path, name: str) -> None:
    copied = copy_recipe(name, tmp_path / "elsewhere" / "mine.toml")
    assert recipe.load(str(copied)).model_dump() == recipe.load(name).model_dump()


def test_a_copy_keeps_comments_and_names_its_base_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "claims/sampler-likelihoods-bf16"
    lines = copy_recipe(name, tmp_path).read_text().splitlines()
    shipped = recipe.find(name).read_text().splitlines()
    differ = [(ours, theirs) for ours, theirs in zip(lines, shipped, strict=True) if ours != theirs]
    assert differ == [('extends = "claims/sampler-likelihoods"', 'extends = "sampler-likelihoods"')]
    monkeypatch.chdir(tmp_path)
    assert copy_recipe("quickstart", None) == Path("quickstart.toml")
    assert "reward.toml would extend" in refusal(copy_recipe, "claims/reward", tmp_path)  # its base would be the copy


@pytest.mark.parametrize(
    ("name", "target", "word"),
    [
        ("quickstart", "taken.toml", "exists"),
        ("quickstart", "plain", "not a recipe file name"),
        ("claims/reward", "quickstart.toml", "would extend"),  # itself
        ("quikstart", "x.toml", "no recipe"),
        ("taken.toml", "x.toml", "is your own file"),
    ],
)
def test_what_would_go_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.toml").write_text("mine")
    assert word in refusal(copy_recipe, name, Path(target))
    assert [p.name for p in tmp_path.iterdir()] == ["taken.toml"] and Path("taken.toml").read_text() == "mine"


@cache
def validator() -> Draft202012Validator:
    """Of the schema, which must be one itself."""
    schema = recipe_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", recipe.names())
def test_every_shipped_recipe_fulfils_it(name: str) -> None:
    validator().validate(tomllib.loads(recipe.find(name).read_text(encoding="utf-8")))


def test_so_do_the_recipe_to_start_from_and_a_resolved_one(gspo_here: Gspo) -> None:
    text = (TEMPLATES / "recipe.toml.in").read_text(encoding="utf-8").replace("$", "").replace("# ", "", 1)
    validator().validate(tomllib.loads(text.partition("\n")[2]))
    validator().validate(json.loads(gspo_here("recipes", "show", "quickstart", "--json").out))


@pytest.mark.parametrize(
    "table",
    [
        {"sead": 1}, {"train": {"stepps": 1}}, {"train": {"steps": 0}}, {"train": {"lr": "x"}}, {"name": "../x"},
        {"algo": {"name": "gsppo"}}, {"algo": {"clip": {"low": "x"}}}, {"arms": {"mine": {"lr": -1}}},
        {"eval": {"bench": ["math50"]}}, {"task": {"name": "arithmetik"}}, {"rollout": {"engine": "vlm"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_plainly_wrong_is_refused(table: dict[str, Any]) -> None:
    assert not validator().is_valid(table)


def test_keys_are_described_and_have_their_defaults() -> None:
    schema = recipe_schema()
    steps = schema["$defs"]["TrainConfig"]["properties"]["steps"]
    assert (steps["description"], steps["default"]) == ("Rollout batches.", 60)
    assert "grpo {'low': 0.2, 'high': 0.27}" in schema["$defs"]["AlgoConfig"]["properties"]["clip"]["description"]
