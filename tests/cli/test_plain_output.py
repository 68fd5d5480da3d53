"""What commands print is for people: whole sentences, no Python values, nothing that is not there."""

from __future__ import annotations

import pytest
from program import Gspo, Spawned

from gspo_cli.cli.options import check_seed
from gspo_cli.cli.recipes import first_sentence
from gspo_cli.errors import GspoError


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
    assert lines and all(line.rstrip()[-1] in ".?)" for line in lines)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("name", ["gspo", "sapo", "ppo", "dapo"])
def test_an_algorithm_is_explained_without_dictionaries(gspo_here: Gspo, name: str) -> None:
    out = gspo_here("report", "explain", name).out
    assert "{" not in out.replace("{i,t}", "") and "None" not in out
    assert " = " in out


def test_the_help_of_train_names_the_table_of_arms(gspo_here: Gspo) -> None:
    assert "[arms]" in gspo_here("train", "--help").out


def test_a_seed_is_not_negative() -> None:
    assert check_seed(0) == 0
    with pytest.raises(GspoError, match="seed -1 is negative"):
        check_seed(-1)


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_sign_gets_a_question_mark() -> None:
    done = Spawned("report", "explain", "gspo", PYTHONIOENCODING="ascii").wait()
    assert (done.code, done.err) == (0, "") and "2507.18071, ?5.1" in done.out


@pytest.mark.slow
def test_a_terminal_that_claims_no_width_gets_whole_lines() -> None:
    assert "quickstart" in Spawned("recipes", "ls", COLUMNS="0").wait().out
