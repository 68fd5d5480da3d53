"""The JSON schema takes every recipe, refuses what is plainly wrong, and says what each key means."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from program import Gspo

from gspo_cli import recipe
from gspo_cli.authoring import TEMPLATES, recipe_schema


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
