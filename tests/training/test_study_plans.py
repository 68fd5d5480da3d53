"""Which runs a path to resume stands for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.training.study.plans import StudyPlan, record_plan, runs_with_plans


def test_a_study_or_one_of_its_runs_goes_on_elsewhere(tmp_path: Path) -> None:
    study = tmp_path / "study"
    recipe = Recipe.model_validate({"name": "study", "model": {"path": "x"}})
    record_plan(study, StudyPlan(recipe, ["grpo", "gspo"], [0, 1], ""))
    (study / "gspo-s1").mkdir()
    assert [p.folder.name for p in runs_with_plans(study)] == ["grpo-s0", "gspo-s0", "grpo-s1", "gspo-s1"]
    (one,) = runs_with_plans(study / "gspo-s1")
    assert one.folder == study / "gspo-s1" and one.plan and one.plan.arms == ["grpo", "gspo"]
    assert one.run and (one.run.arm, one.run.recipe.seed) == ("gspo", 1)
    alone = shutil.copytree(study / "gspo-s1", tmp_path / "gspo-s1")
    for stranger in (alone, study / "gspo-s2", tmp_path):
        with pytest.raises(GspoError, match="no study in"):
            runs_with_plans(stranger)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"plans": 3}', '{"plans": [1]}', '{"plans": [], "begun": 3}', '{"plans": [{}]}',
     '{"plans": [{"recipe": {}, "arms": 3, "seeds": [], "text": ""}]}'],
)  # fmt: skip
def test_a_damaged_file_of_a_study_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(GspoError, match=r"study\.json") as caught:
        runs_with_plans(tmp_path)
    assert caught.value.code == ExitCode.STORAGE
