"""A copied recipe is the shipped one, wherever it lies; nothing of the user's is overwritten or taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_cli import recipe
from gspo_cli.authoring import copy_recipe
from gspo_cli.errors import GspoError


@pytest.mark.parametrize("name", recipe.names())
def test_a_copy_means_what_the_shipped_recipe_means(tmp_path: Path, name: str) -> None:
    copied = copy_recipe(name, tmp_path / "elsewhere" / "mine.toml")
    assert recipe.load(str(copied)).model_dump() == recipe.load(name).model_dump()


def test_a_copy_keeps_the_comments_and_only_names_its_base_in_full(tmp_path: Path) -> None:
    name = "claims/sampler-likelihoods-bf16"
    lines = copy_recipe(name, tmp_path).read_text().splitlines()
    shipped = recipe.find(name).read_text().splitlines()
    differ = [(ours, theirs) for ours, theirs in zip(lines, shipped, strict=True) if ours != theirs]
    assert differ == [('extends = "claims/sampler-likelihoods"', 'extends = "sampler-likelihoods"')]


def test_a_folder_takes_the_recipe_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert copy_recipe("claims/reward", tmp_path) == tmp_path / "reward.toml"
    monkeypatch.chdir(tmp_path)
    assert copy_recipe("gsm8k", None) == Path("gsm8k.toml")


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
    with pytest.raises(GspoError, match=word):
        copy_recipe(name, Path(target))
    assert [p.name for p in tmp_path.iterdir()] == ["taken.toml"] and Path("taken.toml").read_text() == "mine"
