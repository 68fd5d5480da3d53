"""What commands print is for people: whole sentences, no Python values, nothing that is not there."""

from __future__ import annotations

import pytest
from program import Gspo, Spawned

from gspo_cli.cli.recipes import first_sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# One thing. Another.\nname = 1\n", "One thing."),
        ("# It spans\n# two lines (arXiv 2507.18071, Fig. 1 and 2)\n# SAPO joins them.\n",
         "It spans two lines (arXiv 2507.18071, Fig. 1 and 2)"),
        ("# Qwen3 on one GPU: GSM8K, GRPO against GSPO.\n", "Qwen3 on one GPU: GSM8K, GRPO against GSPO."),
        ("# Does it? (Yes.)\n", "Does it? (Yes.)"),
    ],
)  # fmt: skip
def test_the_first_sentence_of_a_recipe(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_recipes_are_listed_with_whole_sentences(gspo_here: Gspo) -> None:
    lines = gspo_here("recipes", "ls").out.splitlines()
    assert any(line.startswith("quickstart ") for line in lines) and all(line.rstrip()[-1] in ".?)" for line in lines)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("name", ["gspo", "sapo", "ppo", "dapo"])
def test_an_algorithm_is_explained_without_dictionaries(gspo_here: Gspo, name: str) -> None:
    out = gspo_here("report", "explain", name).out
    assert "{" not in out.replace("{i,t}", "") and "None" not in out
    assert " = " in out


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_sign_gets_a_question_mark() -> None:
    done = Spawned("report", "explain", "gspo", PYTHONIOENCODING="ascii").wait()
    assert (done.code, done.err) == (0, "") and "2507.18071, ?5.1" in done.out


@pytest.mark.slow
def test_a_terminal_that_claims_no_width_gets_whole_lines() -> None:
    assert "quickstart" in Spawned("recipes", "ls", COLUMNS="0").wait().out
