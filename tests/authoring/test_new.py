"""`gspo recipes new` writes what trains at once, from any folder; its module is the one that is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo, tree

from gspo_cli.authoring import find_errors, new_recipe
from gspo_cli.errors import GspoError
from gspo_cli.plugins import add_search_folder, load_plugin

QUICK = ("--steps", "2", "--set", "cold_start.steps=5")


def without_comment_signs(path: Path, start: str) -> None:
    """Takes them off from the line that begins with `start` to the next empty line, or the end."""
    before, _, after = path.read_text().partition(f"# {start}")
    block, gap, rest = after.partition("\n\n")
    path.write_text(before + (start + block).replace("\n# ", "\n").replace("\n#\n", "\n\n") + gap + rest)


def test_the_new_recipe_trains_as_it_stands(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.plugins._loaded_folders", [])  # other tests in this process loaded modules
    done = gspo_here("recipes", "new", tmp_path / "sorted-one", "--json")
    recipe, module = map(Path, json.loads(done.out).values())
    assert (recipe.name, module.name, done.code) == ("recipe.toml", "sorted_one.py", 0)
    done = gspo_here("train", recipe, *QUICK, "--out", tmp_path / "out", "--name", "s")
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "s" / "gspo-s0" / "run.json").read_text())
    assert record["plugins"]["sorted_one:SortedLetters"]["file"] == "sorted_one.py"
    assert json.loads((tmp_path / "out" / "s" / "study.json").read_text())["plans"][0]["modules"] == [
        str(module.parent)
    ]


@pytest.mark.slow
def test_its_reward_and_algorithm_train_and_the_study_is_finished_from_elsewhere(
    gspo: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, module = new_recipe(tmp_path / "work" / "sorted-two")
    without_comment_signs(module, "from gspo_cli.algorithms")
    without_comment_signs(recipe, "[arms]")
    recipe.write_text(recipe.read_text().replace("# reward =", "reward ="))
    assert find_errors(recipe) == []
    out = tmp_path / "out"
    keep = ("--set", "checkpoint.keep_optimizer=true")
    done = gspo("train", recipe, *QUICK, *keep, "--algo", "gspo,mine", "--jobs", "2", "--out", out, "--name", "s")
    assert done.code == 0, done.err
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path / "far")
    for what in (out / "s" / "mine-s0", out / "s"):
        steps = "3" if what.name == "mine-s0" else "4"
        allow = ("--steps", steps, "--allow-change", "train.steps")
        done = gspo("train", "--resume", what, *allow)
        assert done.code == 0, done.err


@pytest.mark.parametrize("name", ["json", "3 x", "..", "-x", "torch"])
def test_a_name_that_cannot_be_a_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GspoError):
        new_recipe(tmp_path / name)
    assert tree(tmp_path) == {}
    (tmp_path / "mine").mkdir()
    with pytest.raises(GspoError, match="exists"):
        new_recipe(tmp_path / "mine")


# Modules beside a recipe


def test_a_module_beside_the_recipe_comes_before_one_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, value in (("beside", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "both_places.py").write_text(f"value = {value}")
    monkeypatch.chdir(tmp_path / "here")
    add_search_folder(tmp_path / "beside")
    assert load_plugin("both_places:value", needs=()) == 1


def test_a_module_never_takes_the_place_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise SystemExit")
    add_search_folder(tmp_path)
    with pytest.raises(GspoError, match="cannot load 'colorsys:x'") as caught:
        load_plugin("colorsys:x", needs=())
    assert str(tmp_path / "colorsys.py") in caught.value.why and "name" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "attribute", "why"),
    [("1 / 0", "x", "ZeroDivisionError: division by zero"), ("def f(:", "x", "SyntaxError"),
     ("import no_such_library", "x", "no_such_library"), ("reward = len", "rewrad", "has no 'rewrad'")],
)  # fmt: skip
def test_what_is_wrong_with_a_module_is_said(tmp_path: Path, text: str, attribute: str, why: str) -> None:
    name = f"faulty_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(f"\n{text}\n")
    add_search_folder(tmp_path)
    with pytest.raises(GspoError) as caught:
        load_plugin(f"{name}:{attribute}", needs=())
    assert why in caught.value.why
    assert "line 2" in caught.value.why or "did you mean 'reward'?" in caught.value.hint
