"""Every `gspo` command that the documentation shows is one that the program takes: options, arguments, recipes, keys.

That they do what the page says is `test_commands_run.py`'s.
"""

import re
from typing import Any

import pytest
import typer
from pages import PAGES, ROOT, blocks
from shell import commands
from test_architecture import COMMANDS

from gspo_cli import recipe
from gspo_cli.cli.main import GLOBAL
from gspo_cli.errors import GspoError

PLACEHOLDERS = re.compile(r"\.\.\.|\[[-A-Z]")
"""What makes an inline command a sketch."""
RECIPE_NAMES = {"RECIPE", "NAME", "my-task/recipe.toml", "my-data/recipe.toml"}
"""Stand for any recipe, or one that the page makes."""


USAGE: Any = typer.BadParameter.__base__
"""What the parser raises; Typer gives it no public name."""


def check(words: list[str]) -> None:
    """Errors: what the program itself would say."""
    words = [word for word in words if word not in GLOBAL]
    if words[0].startswith("--"):  # --help, --version
        return
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
    if name is None:
        is_group = any(known.startswith(f"{words[0]} ") for known in COMMANDS) and len(words) == 1
        assert is_group, f"no command {' '.join(words)}"
        return
    given = COMMANDS[name].make_context(name, words[1 + name.count(" ") :]).params
    if "set_" in given and (asked := given.get("recipe") or given.get("name")) and asked not in RECIPE_NAMES:
        recipe.load(asked, {}, given["set_"] or [])


SHOWN = [
    pytest.param(words, id=f"{block} {' '.join(words[:3])}")
    for page in PAGES
    for block in [*blocks(page, "bash"), *blocks(page, "")]
    for words in commands(block.text)
]
INLINE = [
    pytest.param(line, id=f"{page.name} {line}")
    for page in PAGES
    for line in sorted(set(re.findall(r"`(gspo [^`\n]+)`", page.read_text(encoding="utf-8"))))
    if not PLACEHOLDERS.search(line)
]


@pytest.mark.parametrize("words", SHOWN)
def test_a_shown_command_is_one_that_the_program_takes(words: list[str]) -> None:
    check(words)


@pytest.mark.parametrize("line", INLINE)
def test_so_is_one_within_a_sentence(line: str) -> None:
    for words in commands(line):
        if " ".join(words) not in COMMANDS:  # a bare name is no call
            check(words)


@pytest.mark.parametrize(
    "line",
    ["train --stepz 3", "report plot", "train no-such-recipe", "train --set train.stepz=3", "runs diff one", "trian"],
)
def test_a_wrong_one_is_noticed(line: str) -> None:
    with pytest.raises((GspoError, AssertionError, USAGE)) as caught:
        check(line.split())
    assert str(caught.value)


def test_a_block_that_is_not_run_says_why() -> None:
    reasons = [block.why_not for page in PAGES for block in blocks(page, "bash") if block.why_not is not None]
    assert reasons and all(len(reason) > 10 for reason in reasons)
    for page in PAGES:  # a comment that stands anywhere else than before a block excuses nothing
        text = page.read_text(encoding="utf-8")
        excused = [block for language in ("bash", "python") for block in blocks(page, language) if block.why_not]
        assert text.count("<!-- not run") == len(excused), page.relative_to(ROOT)
