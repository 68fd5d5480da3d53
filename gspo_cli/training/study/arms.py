"""The runs of a study: every arm with every seed, from one start model and in one data order.

Precedence in an arm, from lowest to highest: the algorithm's published setting, `[algo]` of the recipe, the arm's table
in `[arms]`, `algo.KEY` of the command line, `arms.LABEL.KEY` of the command line.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from inspect import signature
from typing import Any

from pydantic import ValidationError

from gspo_cli.algorithms import ALGORITHMS, NEEDED, AlgorithmSpec, LossInputs
from gspo_cli.config import AlgoConfig, Recipe, flat, merge, nest, nested
from gspo_cli.errors import GspoError, nearest
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.recipe import Layer, check_params, contains, is_file, no_algorithm, unknown_keys, user_error
from gspo_cli.training.study.checks import check_combination, check_recipe_engine


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    arm: str
    recipe: Recipe
    """With the arm's `[algo]` filled in, the algorithm's parameters complete, and the seed set."""
    algorithm: AlgorithmSpec
    params: Any

    @property
    def name(self) -> str:
        """The run's folder within the study."""
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.arm).strip('-')}-s{self.recipe.seed}"


def plan_runs(recipe: Recipe, arms: list[str], seeds: list[int], here: bool = True) -> list[Run]:
    """The runs of a study, seed by seed, so that an interrupted study has whole pairs.

    `here` = they will run on this machine, whose device the engine must suit.
    Errors: GspoError for an unknown arm or algorithm, or parameters that it does not take.
    """
    arm_notes(recipe, arms)
    resolved = {arm: resolve_arm(recipe, arm, here) for arm in arms}
    runs = [
        Run(arm, filled.seeded(seed), algorithm, params)
        for seed in seeds
        for arm, (filled, algorithm, params) in resolved.items()
    ]
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            twins = sorted({run.arm for run in runs if run.name == name})
            raise GspoError(
                f"arms {' and '.join(twins)} would share the run folder {name}",
                "folder names keep letters, digits, dots, hyphens and underscores of a label",
                "give one of them another label",
            )
    return runs


def find_algorithm(name: str, arms: Collection[str] = ()) -> AlgorithmSpec:
    """The algorithm of that name, or the user's own by `module:attribute`.

    Errors: GspoError for an unknown one, with the nearest algorithm or arm.
    """
    if is_plugin(name):
        module = load_plugin(name, needs=NEEDED)
        refuse_slips(name, module)
        return checked_names(name, AlgorithmSpec.of(module))
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    raise no_algorithm(name, ALGORITHMS, arms)


def arm_notes(recipe: Recipe, arms: Sequence[str]) -> list[str]:
    """What was set, and does not hold for all of these arms: a line each. Errors: GspoError if it holds for none."""
    return check_command_line(recipe, {arm: algorithm_of(recipe, arm) for arm in arms})


def algorithm_of(recipe: Recipe, arm: str) -> tuple[str, AlgorithmSpec]:
    """An arm's algorithm, and its name: that of its table, or its label's, or that of `[algo]`."""
    default = recipe.algo.name if arm in recipe.arms and arm not in ALGORITHMS else arm
    name = str(recipe.arms.get(arm, {}).get("name", default))
    return name, find_algorithm(name, recipe.arms)


def resolve_arm(recipe: Recipe, arm: str, here: bool = True) -> tuple[Recipe, AlgorithmSpec, Any]:
    """The recipe for one arm: a label of `[arms]`, or an algorithm's name for its plain arm.

    An arm with another algorithm than `[algo]` keeps that table's general keys (`lr`) and drops those of the other
    algorithm (`clip`, ...), unless the command line set them: a file's clip range is meant for one algorithm.
    Errors: as `plan_runs`.
    """
    name, algorithm = algorithm_of(recipe, arm)
    algo = algo_table(recipe, arm, name, algorithm)
    try:
        params = check_params(algorithm.Params, {key: value for key, value in algo.items() if key not in GENERAL})
    except ValidationError as error:
        raise locate_error(error, recipe, arm, algorithm.Params, [k for k in GENERAL if k != "name"]) from error
    except ValueError as error:
        raise GspoError(
            f"algorithm {name}: {error}", "the parameters are checked before anything runs", "correct the value"
        ) from error
    complete = recipe.algo.model_dump() | algo | asdict(params) | {"name": name}
    allowed = GENERAL | asdict(params).keys()
    table = recipe.model_dump(mode="json", exclude={"arms"})  # each arm's copy of all arms would be quadratic
    table |= {"algo": {k: v for k, v in complete.items() if k in allowed}, "arms": {}}
    try:
        filled = Recipe.model_validate(table)
    except ValidationError as error:
        raise locate_error(error, recipe, arm, Recipe) from error
    check_combination(filled, algorithm, params)
    if is_plugin(str(name)):
        from gspo_cli.training.study.trial import try_algorithm  # loads torch

        try_algorithm(str(name), algorithm, params)
    if here:
        check_recipe_engine(filled, trains=True)
    return filled, algorithm, params


def locate_error(
    error: ValidationError, recipe: Recipe, arm: str, model: type[Any], also: Sequence[str] = ()
) -> GspoError:
    """A validation error with the file and table it came from: the arm's table, or `[algo]`."""
    problem = error.errors(include_url=False)[0]
    loc = [str(part) for part in problem["loc"]]
    within = loc[1:] if loc[:1] == ["algo"] else loc
    layers = list(recipe._sources) or [Layer(f"arm {arm}", {})]
    given, prefix = [recipe._command_line, {"arms": recipe.arms}], tuple[str, ...](["algo"])
    for path, table in itertools.product((within[:1], within), reversed(given)):
        prefix = next((p for p in (("arms", arm), ("algo",)) if path and contains(table, (*p, *path))), prefix)
    return user_error(problem, layers, model, prefix=prefix, also=also, skip=len(loc) - len(within))


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
            raise GspoError(
                f"{source_of(recipe, 'arms', label)}: no arm {label!r} trains",
                f"the arms of this study are {', '.join(arms)}",
                nearest(
                    label, [] if label in ALGORITHMS else arms, f"use --algo, or --set arms.{label}.name=ALGORITHM"
                ),
            )
    for key, value in flat(given.get("algo", {})).items():
        takers = [arm for arm, (name, algorithm) in arms.items()
                  if (name == value if key == "name" else has_key(algorithm, key, value))]  # fmt: skip
        if not takers and key != "name":
            raise unknown_key(recipe, key, arms)
        if takers and all(contains(given.get("arms", {}).get(arm), tuple(key.split("."))) for arm in takers):
            raise GspoError(
                f"{source_of(recipe, 'algo', *key.split('.'))}: no arm takes it",
                f"the command line also sets it in {' and '.join(takers)}",
                "leave one of them out",
            )
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
    full = ".".join(path[: depth + 1])
    owners = [name for name, algorithm in ALGORITHMS.items() if has_key(algorithm, full, {})]
    return GspoError(
        f"{source_of(recipe, 'algo', *path)}: unknown key 'algo.{full}'",
        f"[{'.'.join(['algo', *path[:depth]])}] of {', '.join(arms)} has the keys {', '.join(siblings)}",
        f"it is a key of {', '.join(owners)}: add such an arm, or remove it"
        if owners
        else nearest(path[depth], siblings, "remove it, or see `gspo recipes show quickstart`"),
    )


def source_of(recipe: Recipe, *path: str) -> str:
    """Where a key was set last."""
    return next((layer.source for layer in reversed(recipe._sources) if contains(layer.table, path)), ".".join(path))


def refuse_slips(name: str, module: Any) -> None:
    """Errors: GspoError for a constant that is a slip for an optional name, which would be left out silently."""
    optional = [f.name for f in fields(AlgorithmSpec) if f.name.isupper() and not hasattr(module, f.name)]
    for given in filter(str.isupper, dir(module)):
        if near := get_close_matches(given, optional, n=1, cutoff=0.8):
            why = f"the optional names are {', '.join(optional)}"
            raise GspoError(f"{name!r} has {given!r}, which nothing reads", why, f"did you mean {near[0]!r}?")


def checked_names(name: str, algorithm: AlgorithmSpec) -> AlgorithmSpec:
    """The algorithm. Errors: GspoError unless `Params` is a dataclass, `UNIT` one of the two and its loss takes two
    arguments."""
    why, do = "the arms of a study are told apart by what they hold", "docs/extending.md has a complete example"
    if not (isinstance(algorithm.Params, type) and is_dataclass(algorithm.Params)):
        raise GspoError(f"algorithm {name!r}: Params is not a dataclass", why, do)
    if algorithm.UNIT not in ("token", "sequence"):
        raise GspoError(f'algorithm {name!r}: UNIT is neither "token" nor "sequence"', "each has its own ratio", do)
    try:
        signature(algorithm.loss).bind("inputs", "params")
    except TypeError as error:
        raise GspoError(
            f"algorithm {name!r}: loss({', '.join(signature(algorithm.loss).parameters)}) is not loss(inputs, params)",
            f"inputs is a gspo_cli.algorithms.LossInputs with {', '.join(f.name for f in fields(LossInputs))}",
            f"write loss(inputs, params) and read inputs.log_probs_BT and so on; {do}",
        ) from error
    return algorithm
