"""What the command line sets in `[algo]` holds for every arm whose algorithm has the key.

Precedence in an arm, from lowest to highest: the algorithm's published setting, `[algo]` of the recipe, the arm's table
in `[arms]`, `algo.KEY` of the command line, `arms.LABEL.KEY` of the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import asdict
from functools import reduce
from typing import Any

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec
from gspo_cli.config import AlgoConfig, Recipe, flat, merge, nest
from gspo_cli.errors import GspoError
from gspo_cli.recipe import contains, is_file, unknown_keys

GENERAL = AlgoConfig.model_fields.keys()
OVERRIDDEN = ("lr", "minibatches")
"""Keys of `[train]` that an arm's key of the same name in `[algo]` overrides."""


def algo_table(recipe: Recipe, arm: str, name: str, algorithm: AlgorithmSpec) -> dict[str, Any]:
    """What is set in an arm's `[algo]`, by its algorithm or anybody."""
    algo, given = recipe.algo.model_dump(exclude_unset=True), recipe._command_line
    typed = flat(given.get("algo", {}))
    held = {key: value for key, value in typed.items() if key != "name" and has_key(algorithm, key, value)}
    if name != recipe.algo.name:
        algo = {key: value for key, value in algo.items() if key in GENERAL}
    elif foreign := typed.keys() - held.keys():
        algo = nested({key: value for key, value in flat(algo).items() if key not in foreign})
    table = dict(algorithm.PRESET)
    for over in (algo, recipe.arms.get(arm, {}), nested(held), given.get("arms", {}).get(arm, {})):
        table = merge(table, over)
    return merge(algorithm.run_defaults(recipe), table)


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `flat`."""
    return reduce(merge, (nest(key, value) for key, value in values.items()), {})


def has_key(algorithm: AlgorithmSpec, key: str, value: Any) -> bool:
    """Whether `[algo]` of this algorithm has a dotted key."""
    return key.partition(".")[0] in GENERAL or not any(unknown_keys(algorithm.Params(), nest(key, value), ()))


def check_command_line(recipe: Recipe, arms: dict[str, tuple[str, AlgorithmSpec]]) -> list[str]:
    """A line for each key that only some of the arms can take; an arm comes with its algorithm's name.

    Errors: GspoError for a key that none can take, with the nearest, and for an arm that is not among these.
    """
    given, notes = recipe._command_line, list[str]()
    for label in given.get("arms", {}):
        if label not in arms:
            near = difflib.get_close_matches(label, arms, n=1) if label not in ALGORITHMS else []
            raise GspoError(
                f"{source_of(recipe, 'arms', label)}: no arm {label!r} trains",
                f"the arms of this study are {', '.join(arms)}",
                f"did you mean {near[0]!r}?" if near else f"name it with --algo, or --set arms.{label}.name=ALGORITHM",
            )
    for key, value in flat(given.get("algo", {})).items():
        takers = [arm for arm, (name, algorithm) in arms.items()
                  if (name == value if key == "name" else has_key(algorithm, key, value))]  # fmt: skip
        if not takers and key != "name":
            raise unknown_key(recipe, key, arms)
        notes += only(recipe, f"algo.{key}", takers, arms)
    for key in OVERRIDDEN:
        if key in given.get("train", {}):
            takers = [arm for arm, algo in arms.items() if algo_table(recipe, arm, *algo).get(key) is None]
            notes += only(recipe, f"train.{key}", takers, arms)
    return [*notes, *dropped_keys(recipe, arms)]


def only(recipe: Recipe, key: str, takers: list[str], arms: dict[str, tuple[str, AlgorithmSpec]]) -> Iterator[str]:
    """The line for a key that these arms take, unless all do. Errors: GspoError when none does."""
    if not takers:
        raise GspoError(
            f"{source_of(recipe, *key.split('.'))}: no arm takes it",
            "no arm is of that algorithm" if key == "algo.name" else f"each has {key.replace('train', 'algo')} instead",
            "choose the arms with --algo" if key == "algo.name" else f"set {key.replace('train', 'algo')}",
        )
    if len(takers) < len(arms):
        yield f"{key}: {', '.join(takers)} only"


def dropped_keys(recipe: Recipe, arms: dict[str, tuple[str, AlgorithmSpec]]) -> Iterator[str]:
    """A line for each parameter in the file's `[algo]` that an arm of another algorithm does not take over."""
    owner, owners = AlgoConfig().name, dict[str, str]()
    for layer in recipe._sources:
        if is_file(layer) and isinstance(layer.table.get("algo"), dict):
            owner = str(layer.table["algo"].get("name", owner))
            owners |= dict.fromkeys((key for key in layer.table["algo"] if key not in GENERAL), owner)
    for key, owner in owners.items():
        without = [arm for arm, (name, _) in arms.items() if name != owner and key not in recipe.arms.get(arm, {})]
        if without:
            yield f"[algo] {key} of the recipe is for {owner}, not for {', '.join(without)}"


def unknown_key(recipe: Recipe, key: str, arms: dict[str, tuple[str, AlgorithmSpec]]) -> GspoError:
    """The error for a dotted key that `[algo]` of no arm has."""
    paths = [
        known.split(".") for _, algorithm in arms.values() for known in (*GENERAL, *flat(asdict(algorithm.Params())))
    ]
    path, depth = key.split("."), 0
    while any(known[: depth + 1] == path[: depth + 1] for known in paths):
        depth += 1
    siblings = list(dict.fromkeys(known[depth] for known in paths if known[:depth] == path[:depth] and known[depth:]))
    full, near = ".".join(path[: depth + 1]), difflib.get_close_matches(path[depth], siblings, n=1)
    owners = [name for name, algorithm in ALGORITHMS.items() if has_key(algorithm, full, {})]
    return GspoError(
        f"{source_of(recipe, 'algo', *path)}: unknown key 'algo.{full}'",
        f"[{'.'.join(['algo', *path[:depth]])}] of {', '.join(arms)} has the keys {', '.join(siblings)}",
        f"it is a key of {', '.join(owners)}: add such an arm, or remove it"
        if owners
        else f"did you mean {near[0]!r}?"
        if near
        else "remove it, or see `gspo recipes show quickstart`",
    )


def source_of(recipe: Recipe, *path: str) -> str:
    """Where a key was set last."""
    return next((layer.source for layer in reversed(recipe._sources) if contains(layer.table, path)), ".".join(path))
