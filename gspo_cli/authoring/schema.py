"""The JSON schema of recipes, for editors: every key with its meaning, default and range."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pydantic import TypeAdapter

from gspo_cli import config
from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.evals import BENCHMARKS
from gspo_cli.tasks import TASKS

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> Schema:
    """A schema that every valid recipe fulfils. What several keys mean together is for `gspo recipes validate`."""
    schema = config.Recipe.model_json_schema()
    tables: dict[str, Schema] = schema["$defs"] | {"Recipe": schema}
    for name, meanings in field_docs().items():
        for key, meaning in meanings.items():
            if name in tables and key in tables[name]["properties"]:
                tables[name]["properties"][key]["description"] = meaning
    for table in tables.values():
        table.pop("required", None)  # what one file lacks may stand in the one that it extends
    _one_of(tables["AlgoConfig"], "name", list(ALGORITHMS))
    _one_of(tables["TaskConfig"], "name", list(TASKS))
    tables["EvalConfig"]["properties"]["bench"]["items"] = {"enum": list(BENCHMARKS)}
    _add_parameters(tables["AlgoConfig"], schema["$defs"])
    arms = schema["properties"]["arms"]["patternProperties"]
    arms |= {pattern: {"$ref": "#/$defs/AlgoConfig"} for pattern in arms}
    extends = {"type": "string", "description": "A recipe to start from: beside this file, or a shipped one."}
    schema["properties"] = {"extends": extends} | schema["properties"]
    return {"$schema": DIALECT} | schema | {"title": "gspo recipe"}


def field_docs() -> dict[str, dict[str, str]]:
    """Class -> field -> the sentence under it in `config.py`."""
    classes = [node for node in ast.parse(inspect.getsource(config)).body if isinstance(node, ast.ClassDef)]
    return {
        found.name: {
            field.target.id: " ".join(below.value.value.split())
            for field, below in zip(found.body, found.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }
        for found in classes
    }  # fmt: skip


def _one_of(table: Schema, key: str, names: list[str]) -> None:
    """A name that is known, or `module:attribute`."""
    entry = table["properties"][key]
    entry.pop("type")
    entry["anyOf"] = [{"enum": names}, {"type": "string", "pattern": ":"}]


def _add_parameters(table: Schema, definitions: dict[str, Schema]) -> None:
    """The keys of `[algo]` that belong to one algorithm or several, each said with whose they are."""
    forms: dict[str, list[Schema]] = {}
    defaults: dict[str, list[str]] = {}
    for name, algorithm in ALGORITHMS.items():
        own = TypeAdapter(algorithm.Params).json_schema(ref_template="#/$defs/{model}")
        definitions |= own.get("$defs", {})
        for key, entry in own["properties"].items():
            defaults.setdefault(key, []).append(f"{name} {entry.pop('default', None)}")
            entry.pop("title", None)
            known = forms.setdefault(key, [])
            known += [] if entry in known else [entry]
    for key, known in forms.items():
        parameter = {"anyOf": known, "description": f"By default: {'; '.join(defaults[key])}"}
        table["properties"].setdefault(key, parameter)
