"""Equal tuning: as many trials for every arm; each point of its grid is an arm in a study of trials.

Successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943) trains all trials briefly, the best of them longer.
Unlike there, a stage keeps a third of the trials, and each stage adds a seed.
"""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe, Tuning, flat, merge, nest, nested
from gspo_cli.errors import GspoError
from gspo_cli.plugins import is_plugin
from gspo_cli.recipe import Layer, parse_set, refuse_twice
from gspo_cli.runlog.checksums import add_checksums
from gspo_cli.runlog.fs import require_regular, write_text
from gspo_cli.training.study.arms import algorithm_of
from gspo_cli.training.study.sweep import divide

FILE = "tuning.json"
"""In the study of trials: what was tried, what it cost, what was chosen."""

MOST_TRIALS = 1000
"""Of an arm."""

OF_A_TRIAL = ("trial", "score", "batches")
"""What the file says of a trial beside its keys."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One `--grid`: the values of a key of `[algo]`."""

    arm: str | None
    """The only arm that it holds for; None = all."""
    key: str
    """Its dotted name within the table; empty: the values are tables, merged into the arm's."""
    values: list[Any]

    def table(self, value: Any) -> dict[str, Any]:
        """What one of its values sets."""
        table: dict[str, Any] = nest(self.key, value) if self.key else value
        return table

    @property
    def keys(self) -> list[str]:
        """The keys that it sets, by dotted name."""
        return list(flat(reduce(merge, map(self.table, self.values), {})))


def parse_grid(texts: list[str]) -> list[Axis]:
    """`algo.lr=5e-5,1e-4` for all arms, `arms.LABEL.clip.high=0.2,0.4` for one; `arms.LABEL={},{dual_clip=3}` tries
    whole tables. Commas within brackets and quotes do not divide.

    Errors: GspoError for another key, fewer than two values, or a value that stands twice.
    """
    axes = []
    for text in texts:
        path, _, values = text.partition("=")
        table, _, key = path.strip().partition(".")
        arm, key = key.partition(".")[::2] if table == "arms" else (None, key)
        found = [_number(parse_set(f"value={part.strip()}").table["value"]) for part in divide(values) if part.strip()]
        tables = all(isinstance(value, dict) for value in found)
        if table not in ("algo", "arms") or arm == "" or len(found) < 2 or not (key or tables):
            raise GspoError(
                f"--grid {text} is not a grid",
                "a grid is a key of [algo], or of one arm, with at least two values, comma-separated",
                "e.g. --grid algo.lr=5e-5,1e-4 or --grid arms.grpo.clip.high=0.2,0.4",
            )
        if any(value in found[:number] for number, value in enumerate(found)):
            raise GspoError(f"--grid {text} has a value twice", "its trials would be equal", "give each value once")
        axes.append(Axis(arm, key, found))
    return axes


def _number(value: Any) -> Any:
    """A value; a number where the text reads as one, such as `.5e-4`, which is none in TOML."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def expand(recipe: Recipe, arms: list[str], grid: list[Axis]) -> tuple[Recipe, list[str], dict[str, Any]]:
    """(the recipe with one arm per trial, the trials' labels, trial -> its arm and chosen keys).

    The first axis changes slowest, so that values added to it leave the earlier trials' labels as they were.
    Errors: GspoError for an axis of an arm that does not train.
    """
    if missing := [axis.arm for axis in grid if axis.arm is not None and axis.arm not in arms]:
        raise GspoError(
            f"--grid names the arm {missing[0]!r}", f"the arms to tune are {', '.join(arms)}", "name it in --algo"
        )
    for arm in arms:
        refuse_bare_plugin(recipe, arm, "--grid")
        keys = [f"{key}." for axis in grid if axis.arm in (None, arm) for key in axis.keys]
        for one, other in itertools.combinations(keys, 2):
            if one.startswith(other) or other.startswith(one):
                raise GspoError(
                    f"--grid sets {one[:-1]} of {arm} twice", "the later values would replace the earlier ones",
                    "give a key in one --grid",
                )  # fmt: skip
        if math.prod(len(axis.values) for axis in grid if axis.arm in (None, arm)) > MOST_TRIALS:
            raise GspoError(
                f"--grid gives {arm} more than {MOST_TRIALS} trials", "the values of all its grids are combined",
                "give fewer values",
            )  # fmt: skip
        if "name." in keys:
            raise GspoError(
                "--grid tries algorithms", "an arm is one algorithm, with settings of its own", "use --algo"
            )
    _refuse_set(recipe, arms, [key for axis in grid for key in axis.keys], "--grid")
    trial_arms, trials = dict(recipe.arms), dict[str, Any]()
    for arm in arms:
        axes = [axis for axis in grid if axis.arm in (None, arm)]
        for number, values in enumerate(itertools.product(*(axis.values for axis in axes)), start=1):
            tables = [axis.table(value) for axis, value in zip(axes, values, strict=True)]
            chosen, label = flat(reduce(merge, tables, {})), f"{arm}.{number}"
            trial_arms[label] = with_chosen(recipe, arm, chosen)
            trials[label] = {"arm": arm, "chosen": chosen}
    expanded, given = recipe.model_copy(update={"arms": trial_arms}), recipe._command_line
    expanded._sources = (*recipe._sources, Layer("--grid", {"arms": {label: trial_arms[label] for label in trials}}))
    own = given.get("arms", {})
    moved = {label: own[trial["arm"]] for label, trial in trials.items() if trial["arm"] in own}
    expanded._command_line = given | {"arms": {arm: own[arm] for arm in own if arm not in arms} | moved}
    return expanded, list(trials), trials


def refuse_bare_plugin(recipe: Recipe, arm: str, option: str) -> None:
    """Errors: GspoError for an own algorithm without a label, which no table of a recipe could name."""
    if is_plugin(arm) and arm not in recipe.arms:
        raise GspoError(
            f"{option} with the arm {arm}", "trials and their choice are kept under an arm's label",
            f"give it one: --set arms.mine.name={arm} --algo mine,...",
        )  # fmt: skip


def _refuse_set(recipe: Recipe, arms: list[str], keys: Iterable[str], option: str) -> None:
    """Errors: GspoError where `--set` decides a tuned key, for all arms or one."""
    refuse_twice(recipe, [f"{table}.{key}" for key in keys for table in ("algo", *(f"arms.{a}" for a in arms))], option)


def with_chosen(recipe: Recipe, arm: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """An arm's table with dotted keys set."""
    return merge({"name": algorithm_of(recipe, arm)[0]} | recipe.arms.get(arm, {}), nested(chosen))


def with_tuning(recipe: Recipe, arms: list[str], seeds: list[int], study: Path) -> Recipe:
    """The recipe with each arm's choice from a study of trials; the cost is recorded under `report.tuning`.

    Errors: GspoError if the trials lack an arm or used one of these seeds.
    """
    for arm in arms:
        refuse_bare_plugin(recipe, arm, "--tuned")
    try:
        require_regular(study / FILE)
        found = json.loads((study / FILE).read_text(encoding="utf-8"))
        tuning = {
            arm: Tuning.model_validate(
                {k: v for k, v in found["arms"][arm].items() if k in Tuning.model_fields}
                | {"grid": _grid(found["arms"][arm])}
            )
            for arm in arms
        }
    except KeyError as error:
        raise GspoError(
            f"{study / FILE} has no arm {error}", "in a fair study every arm is tuned alike",
            "tune it with the same --grid, or leave the arm out",
        ) from error  # fmt: skip
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise GspoError(
            f"{study} holds no finished tuning", str(error), "make one: gspo train --algo ARMS --grid KEY=VALUES"
        ) from error
    for arm, own in tuning.items():
        if shared := sorted(set(own.seeds) & set(seeds)):
            raise GspoError(
                f"seed {shared[0]} was used to tune {arm}", "what chose a setting cannot test it", "give other --seeds"
            )
        _refuse_set(recipe, [arm], own.chosen, "--tuned")
    chosen_arms = {arm: with_chosen(recipe, arm, tuning[arm].chosen) for arm in arms}
    report = recipe.report.model_copy(update={"tuning": {**recipe.report.tuning, **tuning}})
    return recipe.model_copy(update={"arms": {**recipe.arms, **chosen_arms}, "report": report})


def _grid(arm: dict[str, Any]) -> dict[str, list[Any]]:
    """The values tried for each key, from the trials' scores, in the order of size where they are numbers."""
    rows = arm.get("scores", ())
    keys = dict.fromkeys([*arm["chosen"], *(key for row in rows for key in row if key not in OF_A_TRIAL)])
    tried = {key: [row[key] for row in rows if key in row] for key in keys}
    return {key: sorted(dict.fromkeys(values), key=lambda v: (str(type(v)), v)) for key, values in tried.items()}


def parse_halving(text: str, seeds: list[int]) -> list[int]:
    """Rollout batches of each stage. Errors: GspoError for lengths that do not rise, or fewer seeds than stages."""
    parts = text.split(",")
    steps = [int(part) for part in parts if part.strip().isdecimal() and len(part) < 10]
    if len(steps) < len(parts) or len(steps) < 2 or sorted({0, *steps}) != [0, *steps]:
        raise GspoError(
            f"--halving {text} is not a list of stages", "each stage trains for more rollout batches than the last",
            "e.g. --halving 30,60,120",
        )  # fmt: skip
    if len(seeds) < len(steps):
        raise GspoError(
            f"--halving {text} with {len(seeds)} seeds",
            "the first stage trains one seed, and each further stage adds one",
            f"give {len(steps)} seeds, such as --seeds 100-{99 + len(steps)}",
        )
    return steps


def survivors(arms: dict[str, Any]) -> list[str]:
    """The trials that the next stage trains, from the scores of a stage: the best third of each arm, at least two. An
    arm from which none would be dropped is decided."""
    kept: list[str] = []
    for result in arms.values():
        ranked = [row["trial"] for row in result["scores"]]
        number = max(2, round(len(ranked) / 3))
        kept += ranked[:number] if number < len(ranked) else []
    return kept


def join_stages(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Arm -> its choice in the last stage that it took part in, with the trials, scores, seeds and cost of all stages.

    A trial's score is that of the last stage that trained it; `batches` says how long that was.
    """
    joined: dict[str, Any] = {}
    for stage in stages:
        for arm, result in stage.items():
            before = joined.get(arm, {"scores": [], "seeds": [], "gen_tokens": 0.0, "seconds": 0.0})
            own = {row["trial"] for row in result["scores"]}
            joined[arm] = result | {
                "scores": [*result["scores"], *(row for row in before["scores"] if row["trial"] not in own)],
                "seeds": sorted({*before["seeds"], *result["seeds"]}),
                "gen_tokens": before["gen_tokens"] + result["gen_tokens"],
                "seconds": round(before["seconds"] + result["seconds"], 3),
            }
            joined[arm]["trials"] = len(joined[arm]["scores"])
    return joined


def record_tuning(study: Path, tuning: dict[str, Any]) -> dict[str, Any]:
    """Write what was tried and chosen into the study of the trials, and return it."""
    write_text(study / FILE, json.dumps(tuning, indent=1, sort_keys=True, allow_nan=False) + "\n")
    add_checksums(study, [study / FILE])
    return tuning
