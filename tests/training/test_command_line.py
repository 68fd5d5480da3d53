"""What the command line sets is what is trained: every key x every algorithm x every way to set it."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from gspo_cli import recipe
from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig, Recipe, flat
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.recipe import known_keys
from gspo_cli.training.study.arms import Run, arm_notes, plan_runs
from gspo_cli.training.study.plans import StudyPlan
from gspo_cli.training.study.sweep import parse_sweep, sweep_cells
from gspo_cli.training.study.tuning import expand, parse_grid, with_tuning

GENERAL = [key for key in known_keys(AlgoConfig) if key != "name"]
OWN = {name: list(flat(asdict(algorithm.Params()))) for name, algorithm in ALGORITHMS.items()}
KEYS = list(dict.fromkeys([*GENERAL, *itertools.chain.from_iterable(OWN.values())]))
TEXT = """
name = "mine"
[model]
path = "some/model"
[rollout]
prompts = 8
[algo]
name = "gspo"
"""


def published(key: str) -> Any:
    """A key's default: that of the first algorithm that has it, or the general one."""
    owner = next((name for name in ALGORITHMS if key in OWN[name]), None)
    return flat(AlgoConfig().model_dump() if owner is None else asdict(ALGORITHMS[owner].Params()))[key]


def other_values(key: str) -> list[Any]:
    """Two other values than the default, of its kind."""
    default, annotation = published(key), None
    if key in GENERAL:
        table, _, last = key.rpartition(".")
        model = type(getattr(AlgoConfig(), table)) if table else AlgoConfig
        annotation = model.model_fields[last].annotation
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return [value for value in get_args(kind) if value != default][:2]
    if isinstance(default, bool):
        return [not default, default]
    if default is None:
        return [2, 3] if "minibatches" in key else [0.5, 0.75] if "frac" in key else [3.0, 4.0]
    return [default + 1, default + 2] if isinstance(default, int) else [default * 1.25 + 0.1, default * 1.5 + 0.1]


def value_of(run: Run, key: str) -> Any:
    """What a run trains with, by its `config.json`; an algorithm's own key must be the same in its parameters."""
    value = flat(run.recipe.algo.model_dump())[key]
    own = flat(asdict(run.params))
    assert key not in own or own[key] == value
    return value


def text_of(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def as_set(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    yield load(folder, [f"algo.{key}={text_of(values[0])}"]), arms, values[0]


def as_sweep(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    axes = parse_sweep([f"algo.{key}={','.join(map(text_of, values))}"])
    for cell, value in zip(sweep_cells(axes), values, strict=True):
        yield load(folder, cell.sets), arms, value


def as_grid(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    grid = parse_grid([f"algo.{key}={','.join(map(text_of, values))}"])
    expanded, labels, trials = expand(load(folder), arms, grid)
    for label in labels:
        yield expanded, [label], trials[label]["chosen"][key]


def as_tuned(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    found = {arm: {"trials": 2, "chosen": {key: values[0]}, "scores": []} for arm in arms}
    (folder / "tuning.json").write_text(json.dumps({"arms": found}))
    yield with_tuning(load(folder), arms, [0], folder), arms, values[0]


def as_label(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    for arm in arms:  # a plain arm, which is not in [arms]
        yield load(folder, [f"arms.{arm}.{key}={text_of(values[0])}"]), [arm], values[0]


def in_file(folder: Path, arms: list[str], key: str, values: list[Any]) -> Iterator[tuple[Recipe, list[str], Any]]:
    first, _, rest = key.partition(".")
    text = f"{{ {rest} = {text_of(values[0])} }}" if rest else text_of(values[0])
    for arm in arms:
        yield load(folder, [], f"[arms.{arm}]\n{first} = {text}\n"), [arm], values[0]


WAYS = [as_set, as_sweep, as_grid, as_tuned, as_label, in_file]
SHARED = [as_set, as_sweep]
"""Ways that name no arm."""


def load(folder: Path, sets: Any = (), more: str = "") -> Recipe:
    (folder / "mine.toml").write_text(TEXT + more)
    return recipe.load(str(folder / "mine.toml"), {}, sets)


def recorded(plan: StudyPlan) -> StudyPlan:
    """A plan as `study.json` or a worker gets it."""
    return StudyPlan.from_table(json.loads(json.dumps(plan.as_table())))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_key_holds_or_is_refused(tmp_path: Path, algorithm: str, way: Any) -> None:
    trained = 0
    for key in KEYS:
        has, values = key in GENERAL or key in OWN[algorithm], other_values(key)
        try:
            cases = [(plan_runs(filled, arms, [0]), StudyPlan(filled, arms, [0], ""), value)
                     for filled, arms, value in way(tmp_path, [algorithm], key, values)]  # fmt: skip
        except GspoError as error:
            assert error.code == ExitCode.USER_ERROR
            assert not has or key in GENERAL, f"{key}: {error}"  # some general keys need another recipe
            continue
        assert has, f"{key} is none of {algorithm}"
        for runs, plan, value in cases:
            again = plan_runs(recorded(plan).recipe, plan.arms, plan.seeds)
            for run in (*runs, *again):
                assert (value_of(run, key), run.recipe.algo.name) == (value, algorithm), key
                trained += 1
    assert trained >= 2 * (len(OWN[algorithm]) + 6)


@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_only_some_arms_have_is_said(tmp_path: Path, algorithm: str, way: Any) -> None:
    """A key of another algorithm beside this one: that arm takes it, this one keeps its published setting."""
    plain = plan_runs(load(tmp_path), [algorithm], [0])[0].params
    foreign = {key: name for name in ALGORITHMS for key in OWN[name] if key not in OWN[algorithm]}
    for key, owner in foreign.items():
        for filled, arms, value in way(tmp_path, [algorithm, owner], key, other_values(key)):
            assert arm_notes(filled, arms) == [f"algo.{key}: {owner} only"]
            without, taker = plan_runs(filled, arms, [0])
            assert (without.params, value_of(taker, key)) == (plain, value)
    assert foreign


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_slip_is_refused_with_the_nearest(tmp_path: Path, name: str) -> None:
    for key in (*OWN[name], *GENERAL):
        *table, last = key.split(".")
        for wrong in {
            ".".join([*table, last + "x"]),
            ".".join(["x" + table[0], *table[1:], last]) if table else key + "x",
        }:
            with pytest.raises(GspoError) as caught:
                plan_runs(load(tmp_path, [f"algo.{wrong}=1"]), [name], [0])
            slip, meant = next((w, k) for w, k in zip(wrong.split("."), key.split("."), strict=True) if w != k)
            assert caught.value.code == ExitCode.USER_ERROR
            assert caught.value.message.startswith(f"--set algo.{wrong}=1: unknown key 'algo.")
            assert caught.value.message.endswith(f"{slip}'") and caught.value.hint == f"did you mean {meant!r}?"


# Precedence


def test_the_command_line_wins_over_files_and_a_label_over_all_arms(tmp_path: Path) -> None:
    file = "clip = { low = 1e-3, high = 2e-3 }\n[arms]\nwide = { clip = { high = 3e-3 } }\ngrpo = { lr = 1e-5 }\n"
    sets = ["algo.clip.high=0.4", "arms.wide.clip.high=0.5", "algo.lr=3e-5"]
    runs = {run.arm: run.recipe.algo for run in plan_runs(load(tmp_path, sets, file), ["gspo", "wide", "grpo"], [0])}
    assert {arm: (algo.name, algo.params["clip"], algo.lr) for arm, algo in runs.items()} == {
        "gspo": ("gspo", {"low": 1e-3, "high": 0.4}, 3e-5),
        "wide": ("gspo", {"low": 1e-3, "high": 0.5}, 3e-5),
        "grpo": ("grpo", {"low": 0.2, "high": 0.4}, 3e-5),
    }


@pytest.mark.parametrize(("name", "key", "value"), [
    (name, key, value) for name in ALGORITHMS for key, value in ALGORITHMS[name].PRESET.items()
])  # fmt: skip
def test_a_preset_gives_way_to_the_command_line(tmp_path: Path, name: str, key: str, value: Any) -> None:
    other = next(other for other in (published(key), *other_values(key)) if other not in (value, None))
    sets = [f"algo.{key}={text_of(other)}", *(["algo.allow_stale=true"] if "allow_stale" in OWN[name] else [])]
    (run,) = plan_runs(load(tmp_path, sets), [name], [0])
    assert value_of(run, key) == other != value


def test_a_key_of_train_that_an_arm_overrides_is_said(tmp_path: Path) -> None:
    filled = load(tmp_path, ["train.lr=3e-4", "train.minibatches=2"], "[arms]\nslow = { lr = 1e-5 }\n")
    arms = ["slow", "reinforce", "grpo"]
    assert arm_notes(filled, arms) == ["train.lr: reinforce, grpo only", "train.minibatches: slow, grpo only"]
    with pytest.raises(GspoError, match=r"train.lr=3e-4: no arm takes it"):
        plan_runs(filled, ["slow"], [0])


def test_a_key_of_the_file_that_an_arm_drops_is_said(tmp_path: Path) -> None:
    filled = load(
        tmp_path, (), "clip = { high = 0.5 }\nlr = 1e-5\n[arms]\nown = { name = 'grpo', clip = { high = 0.3 } }\n"
    )
    assert arm_notes(filled, ["gspo", "cispo", "grpo", "own"]) == [
        "[algo] clip of the recipe is for gspo, not for cispo, grpo"
    ]


def test_another_algorithm_on_the_command_line_does_not_inherit_the_file_s_clip(tmp_path: Path) -> None:
    filled = load(tmp_path, ["algo.dual_clip=3.0", "algo.name=grpo"], "clip = { low = 1e-3, high = 2e-3 }\n")
    (run,) = plan_runs(filled, recipe.default_arms(filled), [0])
    assert (run.arm, run.recipe.algo.params) == ("grpo", {"clip": {"low": 0.2, "high": 0.27}, "dual_clip": 3.0})
    with pytest.raises(GspoError, match=r"algo\.name=grpo: no arm takes it"):
        plan_runs(load(tmp_path, ["algo.name=grpo"]), ["gspo"], [0])


# Labels


def test_the_command_line_adds_no_arm_without_its_name(tmp_path: Path) -> None:
    arms = "[arms]\ngspo = {}\ngrpo = {}\n"
    for sets, trained in (
        ([], ["gspo", "grpo"]),
        (["arms.gspo.lr=1e-5"], ["gspo", "grpo"]),
        (["arms.slow.name=gspo", "arms.slow.lr=1e-5"], ["gspo", "grpo", "slow"]),
        (["arms.gropo.lr=1e-5"], ["gspo", "grpo"]),
    ):
        assert recipe.default_arms(load(tmp_path, sets, arms)) == trained
    assert recipe.default_arms(load(tmp_path, ["arms.grpo.lr=1e-5"])) == ["gspo"]


@pytest.mark.parametrize(
    ("label", "hint"), [("gropo", "did you mean 'grpo'?"), ("cispo", "--algo"), ("x", "arms.x.name=")]
)
def test_an_arm_that_does_not_train_is_refused(tmp_path: Path, label: str, hint: str) -> None:
    with pytest.raises(GspoError, match=f"no arm '{label}' trains") as caught:
        plan_runs(load(tmp_path, [f"arms.{label}.lr=1e-5"]), ["grpo", "gspo"], [0])
    assert hint in caught.value.hint


def test_an_arm_with_another_algorithm_drops_the_former_one_s_parameters(tmp_path: Path) -> None:
    arms = '[arms]\nmine = { name = "grpo", lr = 1e-5, clip = { low = 0.5, high = 0.9 } }\n'
    (run,) = plan_runs(load(tmp_path, ["arms.mine.name=gspo"], arms), ["mine"], [0])
    assert run.params == ALGORITHMS["gspo"].Params() and run.recipe.algo.lr == 1e-5


def test_a_label_with_a_dot_stands_in_quotes(tmp_path: Path) -> None:
    (run,) = plan_runs(load(tmp_path, ['arms."a.b".lr=1e-5'], '[arms]\n"a.b" = { name = "grpo" }\n'), ["a.b"], [0])
    assert run.recipe.algo.lr == 1e-5


@pytest.mark.parametrize("setting", ["arms={}", "algo.clip={}"])
def test_an_empty_table_that_would_clear_keys_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(GspoError, match="changes nothing"):
        load(tmp_path, ["algo.clip.low=0.1", setting], '[arms]\nmine = { name = "grpo" }\n')


# Two options for one key


@pytest.mark.parametrize("sets", [["algo.lr=1e-5"], ["arms.grpo.lr=1e-5"], ["algo.lr=1e-5", "arms.grpo.clip.low=0.1"]])
def test_a_tuned_key_is_not_set_as_well(tmp_path: Path, sets: list[str]) -> None:
    loaded = load(tmp_path, sets)
    with pytest.raises(GspoError, match=r"--grid and --set \S+lr"):
        expand(loaded, ["grpo"], parse_grid(["algo.lr=1e-4,2e-4"]))
    found = {"grpo": {"trials": 2, "chosen": {"lr": 1e-4}, "scores": []}}
    (tmp_path / "tuning.json").write_text(json.dumps({"arms": found}))
    with pytest.raises(GspoError, match=r"--tuned and --set \S+lr"):
        with_tuning(loaded, ["grpo"], [0], tmp_path)


def test_a_key_that_an_arm_cannot_take_is_blamed_on_the_grid(tmp_path: Path) -> None:
    filled, labels, _ = expand(load(tmp_path), ["grpo"], parse_grid(["algo.cap=1,2"]))
    with pytest.raises(GspoError, match=r"error: --grid: unknown key 'arms\.grpo\.1\.cap'"):
        plan_runs(filled, labels, [0])


def test_a_number_that_toml_would_read_as_text_is_a_number() -> None:
    assert parse_grid(["algo.lr=.5e-4,5."])[0].values == [5e-5, 5.0]


def test_trials_keep_what_the_command_line_set_for_their_arm(tmp_path: Path) -> None:
    sets = ["algo.clip.low=0.3", "arms.grpo.clip.low=0.1"]
    filled, labels, _ = expand(load(tmp_path, sets), ["grpo", "gspo"], parse_grid(["algo.clip.high=0.4,0.5"]))
    runs = plan_runs(recorded(StudyPlan(filled, labels, [0], "")).recipe, labels, [0])
    assert {run.arm: tuple(run.recipe.algo.params["clip"].values()) for run in runs} == {
        "grpo.1": (0.1, 0.4), "grpo.2": (0.1, 0.5), "gspo.1": (0.3, 0.4), "gspo.2": (0.3, 0.5),
    }  # fmt: skip
    filled, labels, _ = expand(load(tmp_path, ["arms.cispo.cap=2"]), ["grpo"], parse_grid(["algo.lr=1,2"]))
    with pytest.raises(GspoError, match="no arm 'cispo' trains"):
        plan_runs(filled, labels, [0])
