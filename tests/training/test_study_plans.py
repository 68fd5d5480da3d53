"""Which runs a path to resume stands for, and whether its configuration is still the one that it began with."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from gspo_cli import recipe
from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.log import config_text
from gspo_cli.training.state.run_config import apply_overrides, config_hash
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


def test_a_run_of_a_version_without_a_key_goes_on_with_its_default() -> None:
    table = recipe.load("quickstart").model_dump(mode="json")
    del table["train"]["recompute"]
    written = sha256(config_text(table).encode()).hexdigest()
    resumed, changes = apply_overrides(table, {}, {}, [], written)
    assert not resumed.train.recompute and not changes


def test_a_change_that_no_recipe_has_is_not_allowed() -> None:
    loaded = recipe.load("quickstart")
    table = loaded.model_dump(mode="json")
    with pytest.raises(GspoError, match=r"--allow-change train\.stepz") as refused:
        apply_overrides(table, {}, {}, ["train.stepz"], config_hash(loaded))
    assert "train.steps" in refused.value.hint
    with pytest.raises(GspoError, match="name = 'quickstart' -> 'other'"):
        apply_overrides(table, {}, {"name": "other"}, [], config_hash(loaded))


def test_a_run_goes_on_with_servers_elsewhere() -> None:
    loaded = recipe.load("quickstart", sets=["rollout.engine=vllm-server", "rollout.vllm.url=http://a:8000"])
    table, urls = loaded.model_dump(mode="json"), ["http://b:8000", "http://c:8000"]
    wanted, allowed = {"rollout": {"vllm": {"url": urls}}}, ["rollout.vllm.url"]
    resumed, changes = apply_overrides(table, {}, wanted, allowed, config_hash(loaded))
    assert resumed.rollout.vllm.url == tuple(urls) and changes == {"rollout.vllm.url": urls}
    assert apply_overrides(table, changes, {}, [], config_hash(loaded)) == (resumed, changes)
