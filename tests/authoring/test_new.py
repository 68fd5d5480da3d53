"""`gspo recipes new` writes what trains at once, from any folder; its module is the one that is run."""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, check_refused, ok, refusal, tree, write_rows

from gspo_cli.authoring import find_errors, new_data_recipe, new_recipe
from gspo_cli.plugins import add_search_folder, load_plugin
from gspo_cli.recipe import load
from gspo_cli.tasks import make_task
from gspo_cli.tasks.guess import guess_columns

QUICK = ("--steps", "2", "--set", "cold_start.steps=5")


def without_comment_signs(path: Path, start: str) -> None:
    """Takes them off from the line that begins with `start` to the next empty line, or the end."""
    before, _, after = path.read_text().partition(f"# {start}")
    block, gap, rest = after.partition("\n\n")
    path.write_text(before + (start + block).replace("\n# ", "\n").replace("\n#\n", "\n\n") + gap + rest)


def test_the_new_recipe_trains_as_it_stands(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.plugins._loaded_folders", [])  # other tests in this process loaded modules
    done = gspo_here("recipes", "new", tmp_path / "sorted-one", "--json")
    recipe, module = map(Path, json.loads(done.out).values())
    assert (recipe.name, module.name, done.code) == ("recipe.toml", "sorted_one.py", 0)
    ok(gspo_here("train", recipe, *QUICK, "--out", tmp_path / "out", "--name", "s"))
    record = json.loads((tmp_path / "out" / "s" / "gspo-s0" / "run.json").read_text())
    assert record["plugins"]["sorted_one:SortedLetters"]["file"] == "sorted_one.py"
    plan = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["plans"][0]
    assert plan["modules"] == [str(module.parent)]


@pytest.mark.slow
def test_its_reward_and_algorithm_train_and_the_study_is_finished_from_elsewhere(
    gspo: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, module = new_recipe(tmp_path / "work" / "sorted-two")
    without_comment_signs(module, "from gspo_cli.algorithms")
    without_comment_signs(recipe, "[arms]")
    recipe.write_text(recipe.read_text().replace("# reward =", "reward ="))
    assert find_errors(recipe) == []
    out = tmp_path / "out"
    keep = ("--set", "checkpoint.keep_optimizer=true")
    ok(gspo("train", recipe, *QUICK, *keep, "--algo", "gspo,mine", "--jobs", "2", "--out", out, "--name", "s"))
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path / "far")
    for what in (out / "s" / "mine-s0", out / "s"):
        steps = "3" if what.name == "mine-s0" else "4"
        allow = ("--steps", steps, "--allow-change", "train.steps")
        ok(gspo("train", "--resume", what, *allow))


@pytest.mark.parametrize("name", ["json", "3 x", "..", "-x", "torch"])
def test_a_name_that_cannot_be_a_module_is_refused(tmp_path: Path, name: str) -> None:
    refusal(new_recipe, tmp_path / name)
    assert tree(tmp_path) == {}
    (tmp_path / "mine").mkdir()
    assert "exists" in refusal(new_recipe, tmp_path / "mine")


# Modules beside a recipe


def test_a_module_beside_the_recipe_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("beside", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "both_places.py").write_text(f"value = {value}")
    monkeypatch.chdir(tmp_path / "here")
    add_search_folder(tmp_path / "beside")
    assert load_plugin("both_places:value", needs=()) == 1


def test_a_module_never_takes_the_place_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise SystemExit")
    add_search_folder(tmp_path)
    said = refusal(load_plugin, "colorsys:x", needs=())
    assert "cannot load 'colorsys:x'" in said and str(tmp_path / "colorsys.py") in said and "name" in said


@pytest.mark.parametrize(
    ("text", "attribute", "why"),
    [("1 / 0", "x", "ZeroDivisionError: division by zero"), ("def f(:", "x", "SyntaxError"),
     ("import no_such_library", "x", "no_such_library"), ("reward = len", "rewrad", "has no 'rewrad'")],
)  # fmt: skip
def test_what_is_wrong_with_a_module_is_said(tmp_path: Path, text: str, attribute: str, why: str) -> None:
    name = f"faulty_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(f"\n{text}\n")
    add_search_folder(tmp_path)
    said = refusal(load_plugin, f"{name}:{attribute}", needs=())
    assert why in said and ("line 2" in said or "did you mean 'reward'?" in said)


LONG = "Eine Frage, die länger ist als die Antwort: Nummer"


def rows(count: int = 60, **columns: Any) -> list[dict[str, Any]]:
    """Rows with a number, a question and these columns, each a function of the number."""
    return [
        {"Nr": n, "Frage": f"{LONG} {n}?"} | {name: make(n) for name, make in columns.items()} for n in range(count)
    ]


ROWS_AND_GUESSES: list[tuple[list[dict[str, Any]], tuple[str, str | None, str | None]]] = [
    (rows(Wert=lambda n: 3 * n % 7), ("Frage", "Wert", "number")),
    (rows(Wert=lambda n: f"Also {n} + 1 = {n + 1} #### {n + 1}"), ("Frage", "Wert", "number")),
    (rows(Wahl=lambda n: "ABCD"[n % 4]), ("Frage", "Wahl", "choice")),
    (rows(Stufe=lambda n: "leicht" if n % 2 else "schwer", Stadt=lambda n: f"Stadt {n}"), ("Frage", "Stadt", "exact")),
    (rows(Formel=lambda n: f"x^{{{n}}}"), ("Frage", "Formel", "math")),
    (rows(Bericht=lambda n: f"ein langer Satz mit mehr als sechs Wörtern, {n}"), ("Frage", "Bericht", None)),
    (rows(), ("Frage", None, None)),
    (rows(tests=lambda n: {"inputs": [str(n)], "outputs": ["1"]}), ("Frage", None, "code")),
    ([{"solution": str(n), "problem": f"{n}?", "other": "x" * n} for n in range(3)], ("problem", "solution", "number")),
    ([{"conv": [{"role": "user", "content": "Hi"}], "Label": n} for n in (1, 5)], ("conv", "Label", "number")),
]


@pytest.mark.parametrize(
    ("data", "expected"), ROWS_AND_GUESSES, ids=[str(expected) for _, expected in ROWS_AND_GUESSES]
)
def test_columns_are_guessed_by_name_or_by_what_they_hold(
    data: list[dict[str, Any]], expected: tuple[str, str | None, str | None]
) -> None:
    found = guess_columns("data", data)
    assert (found.prompt, found.answer, found.reward) == expected


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "expected"), ROWS_AND_GUESSES[:-2], ids=[str(expected) for _, expected in ROWS_AND_GUESSES[:-2]]
)
def test_the_recipe_is_valid_and_its_prompts_hold_the_question(
    here: Path, data: list[dict[str, Any]], expected: tuple[str, str | None, str | None]
) -> None:
    write_rows(here / "rows.jsonl", data)
    name = f"work/own-{len(expected[1] or '')}-{expected[2]}"
    made = new_data_recipe(Path(name), "rows.jsonl")
    recipe = load(made.files[0])
    assert recipe.task.path == str(here / "rows.jsonl") and made.rows == 60 and len(made.shown) == 3
    train, held = (make_task(recipe.task).problems(split) for split in ("train", "held_out"))
    assert len(held) == made.held_out > 0 and len(train) + len(held) == 60 and recipe.eval.bench == ("held_out",)
    assert all(LONG in problem.prompt for problem in train)
    errors = find_errors(Path(made.files[0]))
    if expected[2] is None:  # its reward is still to be written
        assert len(made.files) == 2 and len(errors) == 1 and "write the reward here" in errors[0].why
    elif expected[2] != "code":  # needs a sandbox
        assert errors == []


def test_the_command_shows_what_it_found_and_asks_nothing(gspo_here: Gspo, here: Path) -> None:
    write_rows(here / "rows.jsonl", ROWS_AND_GUESSES[3][0])
    done = ok(gspo_here("recipes", "new", "my-own", "--data", "rows.jsonl"))
    assert "guessed: the prompt is Frage, the answer Stadt, the reward exact" in done.out and "row 3:" in done.out
    assert sorted(path.name for path in (here / "my-own").iterdir()) == ["recipe.toml"]
    check_refused(gspo_here("recipes", "new", "my-own", "--data", "rows.jsonl"), "exists")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "b": null}\n', "no column of rows.jsonl can be the prompt"),
        ("", "holds no rows"),
        ("[1]\n", "is not an object"),
    ],
)
def test_data_without_a_prompt_write_nothing(here: Path, text: str, said: str) -> None:
    (here / "rows.jsonl").write_text(text)
    before = tree(here)
    assert said in refusal(new_data_recipe, here / "my-own", "rows.jsonl")
    assert tree(here) == before
