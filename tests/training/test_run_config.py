"""A run's `config.json`: known by its own text, so that a run goes on under a version that has more keys."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gspo_cli import recipe
from gspo_cli.errors import GspoError
from gspo_cli.runlog.log import config_text
from gspo_cli.training.state.run_config import apply_overrides, config_hash


def test_a_run_of_a_version_without_a_key_goes_on_with_its_default() -> None:
    table = recipe.load("quickstart").model_dump(mode="json")
    del table["train"]["recompute"]
    written = sha256(config_text(table).encode()).hexdigest()
    resumed, changes = apply_overrides(table, {}, {}, [], written)
    assert not resumed.train.recompute and not changes


def test_an_edited_configuration_is_refused() -> None:
    loaded = recipe.load("quickstart")
    table = loaded.model_dump(mode="json")
    table["train"]["lr"] = 1.0
    with pytest.raises(GspoError, match="not the recipe that the run was started with"):
        apply_overrides(table, {}, {}, [], config_hash(loaded))


def test_a_change_that_no_recipe_has_is_not_allowed() -> None:
    loaded = recipe.load("quickstart")
    table = loaded.model_dump(mode="json")
    with pytest.raises(GspoError, match=r"--allow-change train\.stepz") as refused:
        apply_overrides(table, {}, {}, ["train.stepz"], config_hash(loaded))
    assert "train.steps" in refused.value.hint
    with pytest.raises(GspoError, match="name = 'quickstart' -> 'other'"):
        apply_overrides(table, {}, {"name": "other"}, [], config_hash(loaded))
