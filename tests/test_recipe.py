"""Recipes are found, merged, changed and checked; whatever is wrong with one is said in three lines."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program import refusal

import gspo_cli
from gspo_cli import config, model_config, recipe, rollout_config, task_config
from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.tables import Table
from gspo_cli.training.study.arms import plan_runs

MINIMAL = 'name = "mine"\n[model]\npath = "some/model"\n'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes `<name>.toml` and gives its path."""

    def write_recipe(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_recipe


def refused(path: str, options: dict[str, Any] | None = None, sets: tuple[str, ...] = ()) -> GspoError:
    """The error that a recipe gives."""
    with pytest.raises(GspoError) as caught:
        recipe.load(path, options, sets)
    assert caught.value.code == ExitCode.USER_ERROR
    return caught.value


# Finding


def test_a_recipe_is_found_by_name_or_path_with_or_without_a_byte_order_mark(write: Any, tmp_path: Path) -> None:
    assert recipe.load("quickstart").name == "quickstart"
    assert recipe.load(write(MINIMAL)).model.path == "some/model"
    (tmp_path / "notepad.toml").write_bytes(b'\xef\xbb\xbfextends = "quickstart"\nname = "marked"\n')
    assert recipe.load(str(tmp_path / "notepad.toml")).name == "marked"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("quikstart", "did you mean 'quickstart'? "), ("zzzzzz", ""), ("x" * 300, ""), ("absent.toml", "")],
)
def test_an_unknown_recipe_is_named_with_the_nearest(write: Any, name: str, hint: str) -> None:
    for error in (refused(name), refused(write(f'extends = "{name}"\n{MINIMAL}'))):
        assert error.message == f"no recipe {name!r}"
        assert error.hint == f"{hint}`gspo recipes ls` lists the shipped recipes"


@pytest.mark.parametrize(
    ("content", "said", "where"),
    [(b"seed = ", "valid TOML", ""), (b"seed = " + b"1" * 5000, "valid TOML", ""),
     (b"a" + b".b" * 900 + b" = 1", "valid TOML", ""), (b'seed = 1\nname = "caf\xe9"\n', "in UTF-8", "line 2: ")],
    ids=["no value", "a long number", "a key of 900 parts", "Latin-1"],
)  # fmt: skip
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes, said: str, where: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    error = refused(str(path))
    assert error.message == f"{path} is not {said}" and error.why.startswith(where)


def test_a_child_with_another_algorithm_leaves_its_parents_parameters(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        'extends = "quickstart"\nname = "base"\n[algo]\nname = "gspo"\nclip = { low = 0.1 }'
    )
    (tmp_path / "child.toml").write_text('extends = "base"\nname = "child"\n[algo]\nname = "grpo"')
    (run,) = plan_runs(recipe.load(str(tmp_path / "child.toml")), ["grpo"], [0])
    assert run.params.clip.low == 0.2


# The shipped ones


def test_the_dense_quickstart_is_one_key_away() -> None:
    dense, by_set = recipe.load("quickstart-dense"), recipe.load("quickstart", {}, ["model.tiny.kind=qwen3"])
    assert dense.model_dump() | {"name": "quickstart"} == by_set.model_dump()


# Merging


def test_extends_merges_table_by_table_and_the_child_wins(write: Any) -> None:
    write(
        MINIMAL + "[train]\nsteps = 7\nminibatches = 3\n[algo]\nname = 'grpo'\nclip = {low = 0.1, high = 0.3}\n", "base"
    )
    child = recipe.load(write('extends = "base"\nname = "child"\n[train]\nsteps = 9\n[algo.clip]\nhigh = 0.5\n'))
    assert (child.name, child.train.steps, child.train.minibatches) == ("child", 9, 3)
    assert child.algo.params == {"clip": {"low": 0.1, "high": 0.5}}


@pytest.mark.parametrize("cycle", [("one",), ("one", "two", "three")])
def test_a_cycle_of_extends_is_an_error(write: Any, cycle: tuple[str, ...]) -> None:
    for name, parent in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        path = write(f'extends = "{parent}"\n' + MINIMAL, name)
    error = refused(path)
    assert error.message.endswith("extends itself")
    assert all(f"{name}.toml" in error.why for name in cycle)


def test_the_nearer_source_wins(write: Any) -> None:
    write(MINIMAL + "[train]\nsteps = 1\nwarmup = 1\n", "first")
    write('extends = "first"\n[train]\nsteps = 2\nwarmup = 2\nminibatches = 2\nlr = 0.2\n', "base")
    path = write('extends = "base"\n[train]\nwarmup = 3\nminibatches = 3\nlr = 0.3\n')
    train = recipe.load(path, {"train": {"minibatches": 4, "lr": 0.4}}, ["train.lr=0.6", "train.lr=0.5"]).train
    assert train.grad_clip == 1.0  # the class default
    assert (train.steps, train.warmup, train.minibatches, train.lr) == (2, 3, 4, 0.5)


# --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4e-4", 4e-4), ("2", 2), ("true", True), ("[0.9, 0.95]", [0.9, 0.95]), ("{low = 0.1}", {"low": 0.1}),
        ('"quoted"', "quoted"), ("plain", "plain"), ("./some/path", "./some/path"), ("", ""), ("a=b", "a=b"),
        ("2024-01-01", "2024-01-01"), ("07:32:00", "07:32:00"), ("[2024-01-01]", ["2024-01-01"]),
    ],
)  # fmt: skip
def test_a_set_value_is_toml_or_else_text(text: str, value: Any) -> None:
    parsed = recipe.parse_set(f"a.b={text}").table["a"]["b"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("assignment", ["", "train.lr", "=1", ".lr=1", "train.=1", "train..lr=1", "a" + ".b" * 900])
def test_an_assignment_without_key_or_value_is_refused(assignment: str) -> None:
    assert "lacks a key or value" in refusal(recipe.parse_set, assignment)


def test_a_date_like_text_stays_text_in_a_recipe(write: Any) -> None:
    assert recipe.load(write(MINIMAL), sets=["model.revision=2024-01-01"]).model.revision == "2024-01-01"
    assert recipe.load(write(MINIMAL + "revision = 2024-01-01\n")).model.revision == "2024-01-01"


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "+nan"])
@pytest.mark.parametrize("key", ["train.lr", "algo.lr", "algo.clip.high", "arms.other.lr"])
def test_no_number_is_infinite_or_nan(write: Any, key: str, value: str) -> None:
    error = refused(write(MINIMAL), sets=(f"{key}={value}",))
    assert error.message.startswith(f"--set {key}={value}: {key} =")


# Wrong keys and values


@pytest.mark.parametrize(
    ("text", "key", "known", "near"),
    [
        ("sead = 1\n" + MINIMAL, "sead", "the top level", "seed"),
        (MINIMAL + "[rollout]\nprompt = 3\n", "rollout.prompt", "[rollout]", "prompts"),
        ('name = "mine"\n[model]\ntiny = {hiden = 16}\n', "model.tiny.hiden", "[model.tiny]", "hidden"),
        (MINIMAL + "[report.tuning.x]\ntrials = 1\nsead = [1]\n", "report.tuning.x.sead", "[report.tuning.x]", "seeds"),
        (MINIMAL + "[[task.rewards]]\nname = 'task'\nwait = 1\n", "task.rewards.0.wait", "[task.rewards.0]", "weight"),
    ],
)
def test_an_unknown_key_names_file_table_and_nearest(write: Any, text: str, key: str, known: str, near: str) -> None:
    path = write(text)
    error = refused(path)
    assert error.message == f"{path}: unknown key {key!r}"
    assert error.why.startswith(f"{known} has the keys ")
    assert error.hint == f"did you mean {near!r}?"


def test_an_unknown_key_names_the_file_it_came_from(write: Any) -> None:
    base = write(MINIMAL + "[train]\nstepps = 2\n", "base")
    child = write('extends = "base"\n[train]\nsteps = 3\n', "child")
    assert refused(child).message == f"{base}: unknown key 'train.stepps'"
    assert (
        refused(write(MINIMAL), sets=("train.stepps=2",)).message == "--set train.stepps=2: unknown key 'train.stepps'"
    )


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("train.steps=0", "train.steps"), ("train.steps=true", "train.steps"),
        ("train.steps=1.5", "train.steps"), ("train.steps=many", "train.steps"),
        ("train.lr=-1", "train.lr"), ("rollout.samples=1", "rollout.samples"), ("train=3", "train"),
        ("rollout.engine=magic", "rollout.engine"), ("task.columns.promt=q", "task.columns.promt"),
        ("name=../out", "name"), ("model.tiny.hidden=12", "model.tiny.hidden"), ("report.margin=0", "report.margin"),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_source_and_key(write: Any, assignment: str, key: str) -> None:
    error = refused(write(MINIMAL), sets=(assignment,))
    assert error.message.startswith(f"--set {assignment}: {key}: ")
    assert error.hint == f"fix {key}"


@pytest.mark.parametrize(
    "clip",
    ["{low = 0.0, high = 0.1}", "{low = 1.5, high = 0.1}", "{low = 0.1, high = -1}", "'x'", "{low = 0.1, high = '1'}"],
)
def test_a_clip_range_that_makes_no_sense_is_refused(write: Any, clip: str) -> None:
    loaded = recipe.load(write(MINIMAL), sets=[f"algo.clip={clip}"])
    assert "clip" in refusal(plan_runs, loaded, ["gspo"], [0])


# Arms

ARMS = """
[algo]
name = "gspo"
lr = 5e-4
clip = { low = 1e-3, high = 2e-3 }
[arms]
other = { name = "grpo" }
wide = { clip = { high = 9e-3 } }
slow = { lr = 1e-5 }
grpo = { name = "grpo", clip = { low = 0.1 } }
"""


def algo_of(text: str, arm: str) -> dict[str, Any]:
    """The complete `[algo]` table of one arm."""
    (run,) = plan_runs(Recipe.model_validate(tomllib.loads(MINIMAL + text)), [arm], [0])
    assert run.arm == arm
    assert run.recipe.arms == {}
    return run.recipe.algo.model_dump()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_an_arm_with_its_published_setting(name: str) -> None:
    (run,) = plan_runs(Recipe.model_validate(tomllib.loads(MINIMAL)), [name], [0])
    published = replace(ALGORITHMS[name].Params(), **ALGORITHMS[name].run_defaults(run.recipe))
    assert run.algorithm is ALGORITHMS[name]
    assert run.params == published


def test_an_arm_is_a_label_with_what_it_changes_else_an_algorithm() -> None:
    other, plain = algo_of(ARMS, "other"), algo_of(ARMS, "gspo")
    assert (other["name"], other["lr"]) == ("grpo", 5e-4)  # of another algorithm: the learning rate and nothing else
    assert other["clip"] == {"low": 0.2, "high": 0.27}  # GRPO's own published range
    assert (plain["name"], plain["lr"], plain["clip"]) == ("gspo", 5e-4, {"low": 1e-3, "high": 2e-3})
    assert algo_of(ARMS, "wide")["clip"] == {"low": 1e-3, "high": 9e-3}
    assert algo_of(ARMS, "slow") == plain | {"lr": 1e-5}
    assert algo_of(ARMS, "grpo")["clip"] == {"low": 0.1, "high": 0.27}  # the label comes before the algorithm


@pytest.mark.parametrize(
    ("text", "arm", "words"),
    [
        (ARMS, "widee", "no algorithm or arm 'widee'|did you mean 'wide'?"),
        ("[arms]\nmine = { name = 'gspoo' }\n", "mine", "no algorithm or arm 'gspoo'"),
        ("[arms]\nmine = { lr = -1 }\n", "mine", "lr"),
    ],
)
def test_a_wrong_arm_is_refused(text: str, arm: str, words: str) -> None:
    said = refusal(algo_of, text, arm)
    assert all(word in said for word in words.split("|"))


def test_a_start_model_for_each_seed() -> None:
    loaded = recipe.load("quickstart", {}, ["cold_start.per_seed=true", "cold_start.seed=5"])
    runs = plan_runs(loaded, ["grpo", "gspo"], [0, 3])
    starts = [(run.recipe.seed, run.recipe.cold_start.seed) for run in runs if run.recipe.cold_start]
    assert starts == [(0, 5), (0, 5), (3, 8), (3, 8)]
    # resolved: taken up again from its own configuration, a run has the same start, and its cache the same key
    assert all(run.recipe.seeded(run.recipe.seed) == run.recipe for run in runs)
    plain = plan_runs(recipe.load("quickstart", {}, ["cold_start.seed=8"]), ["gspo"], [3])[0]
    assert plain.recipe.cold_start == runs[-1].recipe.cold_start


def test_a_few_start_models_that_the_seeds_share_in_turn() -> None:
    runs = plan_runs(recipe.load("quickstart", {}, ["cold_start.starts=3"]), ["grpo", "gspo"], range(6))
    starts = {(run.arm, run.recipe.seed): run.recipe.cold_start.seed for run in runs if run.recipe.cold_start}
    assert starts == {(arm, seed): seed % 3 for arm in ("grpo", "gspo") for seed in range(6)}
    both = ["cold_start.starts=3", "cold_start.per_seed=true"]
    assert "either per_seed or starts" in refusal(recipe.load, "quickstart", {}, both)


def test_the_checkpoint_of_earlier_versions_is_read_and_no_other(write: Any) -> None:
    assert "checkpoint" not in recipe.load(write(MINIMAL + "[report]\ncheckpoint = 'last'\n")).model_dump()["report"]
    assert "unknown key 'report.checkpoint'" in refused(write(MINIMAL + "[report]\ncheckpoint = 'best'\n")).message


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        ('name = "mine"\n', (), "mine.toml: model: Field required"),
        (MINIMAL + "tiny = {}\n", (), "give either path or tiny"),
        (MINIMAL, ("train.minibatches=9", "rollout.prompts=8"), "minibatches = 9 is more than rollout.prompts = 8"),
        (
            MINIMAL,
            ("task.reward=exact", "task.rewards=[{name = 'exact'}]"),
            "task: give either task.reward or task.rewards",
        ),
        (MINIMAL, ("task.held_out=[1]",), "--set task.held_out=[1]: task.held_out: Input"),
        (MINIMAL, ("train.optimizer.betas=[2, 0]",), "--set train.optimizer.betas=[2, 0]: train.optimizer.betas.0: "),
        (MINIMAL + "[train.optimizer]\nbetas = [0.9, inf]\n", (), "mine.toml: train.optimizer.betas.1 = inf"),
    ],
)
def test_what_does_not_fit_is_said(write: Any, text: str, sets: tuple[str, ...], message: str) -> None:
    assert message in refused(write(text), sets=sets).message


@pytest.mark.parametrize("text", [
    "[train.optimizer]\nbetas = [0.9, 1.5]", "[report]\nlooks = [12, 8]", "[report]\nlooks = [8, 8]",
    f"seed = {2**63}", f"[train]\nsteps = {10**20}", "# " + "x" * (1 << 24),
])  # fmt: skip
def test_values_that_nothing_could_use_are_refused(write: Any, text: str) -> None:
    refused(write(f'name = "mine"\n{text}\n' if text.startswith(("seed", "#")) else f"{MINIMAL}{text}\n"))


@pytest.mark.parametrize(
    ("table", "key"),
    [("[train]\nsteps = '8'", "train.steps"), ("[train]\nlr = '1e-4'", "train.lr"), ("seed = '3'", "seed"),
     ("[report]\nlooks = [8, '12']", "report.looks"), ("[checkpoint]\nstart = 'false'", "checkpoint.start"),
     ("[task]\nheld_out = 0.1\nguesses = '0.5'", "task.guesses")],
)  # fmt: skip
def test_text_is_no_number(write: Any, table: str, key: str) -> None:
    text = f"{table}\n{MINIMAL}" if table.startswith("seed") else f"{MINIMAL}{table}\n"
    error = refused(write(text))
    assert f"{key}: " in error.message and "is expected, not text: remove the quotation marks" in error.message


def test_a_path_is_beside_the_recipe_or_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "recipes", tmp_path / "here"
    for folder, files in ((there, ("a.jsonl", "both.jsonl", "held.jsonl")), (here, ("both.jsonl", "c.jsonl"))):
        folder.mkdir()
        for file in files:
            (folder / file).touch()
    monkeypatch.chdir(here)
    for path, found in (("a.jsonl", there / "a.jsonl"), ("both.jsonl", there / "both.jsonl"), ("c.jsonl", "c.jsonl")):
        task = f'[task]\nname = "data"\npath = "{path}"\nheld_out = "held.jsonl"\n'
        (there / "mine.toml").write_text(f'{MINIMAL}{task}[eval]\ndata = {{ "x.y" = "{path}" }}\n')
        loaded = recipe.load("../recipes/mine.toml")
        assert (loaded.task.path, loaded.task.held_out) == (str(found), str(there / "held.jsonl"))
        assert loaded.eval.data == {"x.y": str(found)} and loaded.model.path == "some/model"
    assert recipe.load("../recipes/mine.toml", sets=["task.path=a.jsonl"]).task.path == "a.jsonl"
    monkeypatch.chdir(there)
    assert recipe.load("mine.toml").task.held_out == "held.jsonl"


def test_every_key_is_read_somewhere() -> None:
    package = Path(gspo_cli.__file__).parent
    read = {*re.findall(r"\.(\w+)", "\n".join(file.read_text("utf-8") for file in package.rglob("*.py")))}
    modules = (config, model_config, rollout_config, task_config)
    tables = {one for m in modules for one in vars(m).values() if isinstance(one, type) and issubclass(one, Table)}
    unread = {f"{table.__name__}.{key}" for table in tables for key in table.model_fields if key not in read}
    assert tables and not unread, f"nothing in the package reads {unread}: a recipe sets them in vain"
