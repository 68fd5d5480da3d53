"""The arms' settings and tuning: what a comparison is conditional on, and whether both arms had an equal chance."""

from dataclasses import dataclass
from typing import Any

from gspo_cli.config import AlgoConfig, ReportConfig, Tuning, flat
from gspo_cli.report.runs.facts import FROM_TRAIN, TRAINER, Facts, conditions_of, different_conditions, tuning_command
from gspo_cli.report.runs.pairs import Pair
from gspo_cli.report.runs.synthetic import synthetic_settings

TUNABLE = ("lr", "minibatches", "kl.coef")
"""General keys whose best value depends on the algorithm; a difference that no tuning chose is an unequal chance."""
NOT_RECORDED = "conditions of the tuning not recorded"
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the two arms of a pair were run with."""

    differences: list[Table]
    """`key`, `baseline`, `treatment` of every `[algo]` key in which the arms differ; null = the arm has no such key."""
    unequal: str
    """Why the arms did not have an equal chance; empty if they had."""
    edges: list[Table]
    """`arm`, `key`, `value`, `grid` of every choice at the edge of its grid."""
    tuning: str
    """How both arms were tuned, as a sentence."""
    wider: list[str]
    """Commands that tune over a wider grid."""
    starts: int | None = None
    """How many start models the seeds share; None where each seed has its own, or there is one seed."""
    tuned_elsewhere: str = ""
    """Under which other conditions the arms were tuned, or that these were not recorded; empty if under their own."""
    synthetic: str = ""
    """Synthetic noise and row lengths of both arms, as sentences."""


def settings_of(pair: Pair, config: ReportConfig) -> Settings:
    """The settings of two arms, from their first runs and the recipe's `report.tuning`."""
    sides = ((pair.baseline, pair.left), (pair.treatment, pair.right))
    runs = {arm: next(iter(side.values())).facts for arm, side in sides}
    tables = {arm: _algo(facts) for arm, facts in runs.items()}
    left, right = tables[pair.baseline], tables[pair.treatment]
    differ = [
        {"key": key, "baseline": left.get(key), "treatment": right.get(key)}
        for key in left | right
        if key != "name" and left.get(key) != right.get(key)
    ]
    tuning = {arm: own if (own := config.tuning.get(arm)) and own.trials else None for arm in runs}
    edges = [edge for arm, own in tuning.items() if own for edge in _edges(arm, own)]
    seeds = next((list(own.seeds) for own in tuning.values() if own), [])
    wider = [
        tuning_command(runs[pair.baseline], list(tuning), seeds, f"algo.{key}", _wider(edges, key))
        for key in dict.fromkeys(edge["key"] for edge in edges)
    ]
    starts = {record.facts.run_json.get("model_sha256") for record in pair.records} - {None}
    shared = len(starts) if len(pair.seeds) > len(starts) > 0 else None
    ran = {arm: conditions_of(facts.config_flat) for arm, facts in runs.items()}
    elsewhere = _elsewhere(ran, tuning, set(config.tuned))
    one_algorithm = left.get("name") == right.get("name")
    unequal = _unequal(tables, tuning, differ, one_algorithm)
    first, *others = (own and own.chosen for own in tuning.values())
    if not one_algorithm or any(chosen != first for chosen in others):
        unequal = unequal or elsewhere
    synthetic = synthetic_settings(runs[pair.baseline].config)
    return Settings(differ, unequal, edges, _tuning(tuning, elsewhere), wider, shared, elsewhere, synthetic)


def _algo(facts: Facts) -> Table:
    """An arm's `[algo]` table by dotted key, with what it takes over from `[train]`; keys that are not set left out."""
    table = {key.removeprefix("algo.").removeprefix(TRAINER): value for key, value in facts.algorithm_keys.items()}
    for key, other in FROM_TRAIN.items():
        key = key.removeprefix("algo.")
        table[key] = table.get(key) if table.get(key) is not None else facts.config_flat.get(other)
    return {key: value for key, value in table.items() if value is not None}


def _unequal(by_arm: dict[str, Table], tuning: dict[str, Tuning | None], differ: list[Table], one: bool) -> str:
    """Why the arms did not have an equal chance. Arms of one algorithm differ in what is compared, and need no tuning
    as long as neither had any."""
    if len(tuning) == 1:
        return ""  # one arm against a fixed value
    (a, first), (b, second) = tuning.items()
    if first is None and second is None:
        return "" if one else "neither arm was tuned"
    if first is None or second is None:
        return f"only {a if second is None else b} was tuned"
    if first.trials != second.trials:
        return f"{a} had {first.trials} tuning trials, {b} {second.trials}"
    if len(first.seeds) != len(second.seeds):
        return f"{a} was tuned on {len(first.seeds)} seeds, {b} on {len(second.seeds)}"
    if _common_grid(first) != _common_grid(second):
        return "the arms were tuned over different grids"
    for arm, own in tuning.items():
        for key, value in flat(own.chosen if own else {}).items():
            if by_arm[arm].get(key, value) != value:
                return f"{arm} ran with {key} = {_number(by_arm[arm][key])}, its tuning chose {_number(value)}"
    missed = [d["key"] for d in differ if d["key"] in TUNABLE and d["key"] not in flat(first.chosen)]
    return "" if one or not missed else f"{missed[0]} differs, and no tuning chose it"


def _common_grid(own: Tuning) -> Table:
    """What was tried of the keys that every algorithm has. Grids of its own keys, such as a clip range, may differ."""
    return {key: (own.grid or {}).get(key) for key in own.chosen if key.partition(".")[0] in AlgoConfig.model_fields}


def _elsewhere(ran: dict[str, Table], tuning: dict[str, Tuning | None], free: set[str]) -> str:
    """How the conditions of the trials differ from those of the runs; `free` = keys that were tuned too.

    A tuning without a study was declared in the recipe, for the recipe.
    """
    keys, texts, unknown = set[str](), list[str](), False
    for arm, own in tuning.items():
        if own is None:
            continue
        unknown |= own.conditions is None and own.study is not None
        tuned = {f"algo.{key}" for key in flat(own.chosen)}
        keys |= tuned
        skipped = tuned | free | {other for key, other in FROM_TRAIN.items() if key in tuned}
        different = different_conditions(own.conditions, ran[arm]) if own.conditions is not None else []
        texts += [f"{key}={_number(a)} instead of {_number(b)}" for key, a, b in different if key not in skipped]
    if texts:
        what = "learning rates" if keys <= {"algo.lr"} else " and ".join(sorted(keys))
        return f"{what} tuned at {', '.join(dict.fromkeys(texts))}"
    return NOT_RECORDED if unknown else ""


def _edges(arm: str, own: Tuning) -> list[Table]:
    """The numeric choices that are the smallest or largest value tried."""
    rows = []
    for key, values in (own.grid or {}).items():
        chosen = flat(own.chosen).get(key)
        numbers = sorted(v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
        if len(numbers) > 1 and len(numbers) == len(values) and chosen in (numbers[0], numbers[-1]):
            rows.append({"arm": arm, "key": key, "value": chosen, "grid": numbers})
    return rows


def _wider(edges: list[Table], key: str) -> list[str]:
    """One grid for all arms: a key's own, with two more values beyond each edge that an arm chose, by its factor."""
    values: set[float] = set()
    for edge in (e for e in edges if e["key"] == key):
        grid = edge["grid"]
        factor = grid[1] / grid[0] if grid[0] else 2.0
        step = factor if edge["value"] == grid[-1] else 1 / factor
        values |= {*grid, *(edge["value"] * step**i for i in (1, 2))}
    return list(dict.fromkeys(f"{value:.6g}" for value in sorted(values)))


def _tuning(tuning: dict[str, Tuning | None], elsewhere: str) -> str:
    if not any(tuning.values()):
        return "Neither arm was tuned; `gspo train --grid` tunes both alike, and `--tuned` takes what it chose."
    head = f"{elsewhere[0].upper()}{elsewhere[1:]}" if elsewhere else "Tuned"
    trials = {arm: _trials(own) for arm, own in sorted(tuning.items())}
    if len(set(trials.values())) == 1:
        return f"{head}: both arms {next(iter(trials.values()))}."
    return f"{head}: {'; '.join(f'{arm} {text}' for arm, text in trials.items())}."


def _trials(own: Tuning | None) -> str:
    if own is None:
        return "not at all"
    grid = "; ".join(f"{key} in {', '.join(map(_number, values))}" for key, values in (own.grid or {}).items())
    over = f" over {grid}" if grid else f" of {', '.join(own.chosen)}" if own.chosen else ""
    return f"{own.trials} trials{over} on {len(own.seeds)} seeds"


def conditions(settings: Settings, names: dict[str, str]) -> str:
    """The settings in which the arms differ and their tuning, as sentences; `names` = arm -> its name in a sentence."""
    parts = []
    if settings.differences:
        baseline, treatment = names.values()
        sides = ("baseline", "treatment") if baseline <= treatment else ("treatment", "baseline")
        shown = "; ".join(
            f"{d['key']} {' and '.join(_number(d[side]) for side in sides)}"
            for d in settings.differences if _is_condition(d)
        )  # fmt: skip
        parts.append(f"Settings of {' and '.join(sorted((baseline, treatment)))}: {shown}." if shown else "")
    parts += [settings.tuning, settings.synthetic]
    for edge in settings.edges:
        choice = f"{names.get(edge['arm'], edge['arm'])}'s {edge['key']} {_number(edge['value'])}"
        parts.append(f"{choice} is at the edge of its grid: widen it.")
    if settings.starts is not None:
        which = (
            f"these {settings.starts} start models, which the" if settings.starts > 1 else "this start model, which all"
        )
        parts.append(f"For {which} seeds share.")
    return " ".join(part for part in parts if part)


def _is_condition(difference: Table) -> bool:
    """Whether a difference belongs into a sentence: general keys, and those of their own that both arms have."""
    general = difference["key"].partition(".")[0] in AlgoConfig.model_fields
    return general or None not in (difference["baseline"], difference["treatment"])


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
