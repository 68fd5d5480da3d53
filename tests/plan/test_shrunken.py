"""Every recipe for a real model, trained on a CPU with the overrides that docs/real-models.md gives."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from program import Gspo, ok, strict_lines

from gspo_cli import recipe as recipes

PAGE = Path(__file__).parents[2] / "docs" / "real-models.md"
REAL = [name for name in recipes.names() if name.startswith("real/")]


def command(name: str) -> list[str]:
    """The page's command for a recipe, after the recipe's name."""
    found = re.search(r"\ngspo train real/\S+ (--steps 2 .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    dense = [] if "a3b" in name else ["--set", "model.tiny.kind=qwen3"]
    return shlex.split(found[1].replace("\\\n", " ")) + dense


@pytest.mark.parametrize("name", REAL)
def test_the_overrides_of_the_page_make_any_of_them_small(name: str) -> None:
    sets = [value for option, value in pairwise(command(name)) if option == "--set"]
    full, small = recipes.load(name), recipes.load(name, {}, sets)
    assert small.model.tiny and not small.model.path and small.task.name == "arithmetic"
    assert small.train == full.train and small.arms == full.arms and small.report == full.report


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_shrunken_recipe_trains(name: str, gspo: Gspo, tmp_path: Path) -> None:
    ok(gspo("train", name, *command(name), "--out", tmp_path, "--name", "small"))
    for arm in recipes.load(name).arms:
        lines = strict_lines(tmp_path / "small" / f"{arm}-s0" / "metrics.jsonl")
        assert sum(line["kind"] == "update" for line in lines) == 8
        assert any(line["metrics"].get("update/applied") for line in lines), "no update was made"
        assert {line["step"] for line in lines if line["kind"] == "eval"} == {0, 2}
        violations = [line["metrics"].get("replay/violations") for line in lines if line["kind"] == "update"]
        assert any(v == 0 for v in violations) == (arm == "grpo_r2")
        assert not any(violations)
