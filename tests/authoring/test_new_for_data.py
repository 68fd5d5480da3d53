"""`gspo recipes new --data`: what is guessed from the rows, and that the recipe it writes is a good one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, tree

from gspo_cli.authoring import find_errors, new_data_recipe
from gspo_cli.errors import GspoError
from gspo_cli.recipe import load
from gspo_cli.tasks import make_task
from gspo_cli.tasks.guess import guess_columns

LONG = "Eine Frage, die länger ist als die Antwort: Nummer"


def rows(count: int = 60, **columns: Any) -> list[dict[str, Any]]:
    """Rows with a number, a question and these columns, each a function of the number."""
    return [
        {"Nr": n, "Frage": f"{LONG} {n}?"} | {name: make(n) for name, make in columns.items()} for n in range(count)
    ]


CASES: list[tuple[list[dict[str, Any]], tuple[str, str | None, str | None]]] = [
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


@pytest.mark.parametrize(("data", "expected"), CASES, ids=[str(expected) for _, expected in CASES])
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


@pytest.mark.parametrize(("data", "expected"), CASES[:-2], ids=[str(expected) for _, expected in CASES[:-2]])
def test_the_recipe_is_valid_and_its_prompts_hold_the_question(
    here: Path, data: list[dict[str, Any]], expected: tuple[str, str | None, str | None]
) -> None:
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    name = f"work/own-{len(expected[1] or '')}-{expected[2]}"
    made = new_data_recipe(Path(name), "rows.jsonl")
    recipe = load(made.files[0])
    assert recipe.task.path == str(here / "rows.jsonl") and made.rows == 60 and len(made.shown) == 3
    train, held = (make_task(recipe.task).problems(split) for split in ("train", "held_out"))
    assert len(held) == made.held_out > 0 and len(train) + len(held) == 60 and recipe.eval.bench == ("held_out",)
    assert all(LONG in problem.prompt for problem in train)
    errors = find_errors(Path(made.files[0]))
    if expected[2] is None:  # its reward is still to be written
        assert (
            len(made.files) == 2 and len(errors) == 1 and "NotImplementedError: write the reward here" in errors[0].why
        )
    elif expected[2] != "code":  # needs a sandbox
        assert errors == []


def test_the_command_shows_what_it_found_and_asks_nothing(gspo_here: Gspo, here: Path) -> None:
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CASES[3][0]))
    done = gspo_here("recipes", "new", "my-own", "--data", "rows.jsonl")
    assert done.code == 0, done.err
    for text in ("60 rows; the columns are Nr, Frage, Stufe, Stadt", "row 3:", 'Stadt = "Stadt 2"',
                 "guessed: the prompt is Frage, the answer Stadt, the reward exact", "my-own/recipe.toml"):  # fmt: skip
        assert text in done.out
    assert sorted(path.name for path in (here / "my-own").iterdir()) == ["recipe.toml"]
    done = gspo_here("recipes", "new", "my-own", "--data", "rows.jsonl")
    assert done.code == 2 and "exists" in done.err


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
    with pytest.raises(GspoError) as refused:
        new_data_recipe(here / "my-own", "rows.jsonl")
    assert said in refused.value.message and tree(here) == before
