"""One rule finds studies and runs by name, for every command, for completion and for lists."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from program import Gspo, check_refused, ok, refusal

from gspo_cli.cli.options import complete_run, complete_study
from gspo_cli.runlog.folder import find_folder


@pytest.fixture(scope="module")
def place(trained: Path, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study `results/units`, and a folder of recipes that has its name."""
    folder = tmp_path_factory.mktemp("work")
    shutil.copytree(trained, folder / "results" / "units")
    (folder / "units").mkdir()
    shutil.copy(smoke, folder / "units" / "recipe.toml")
    return folder


@pytest.fixture
def work(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working folder."""
    monkeypatch.chdir(place)
    return place


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    "words",
    ["report compare", "report claims", "report clip", "runs verify", "runs path", "runs export", "train --resume"],
)
def test_a_recipes_folder_does_not_hide_a_study(words: str, gspo_here: Gspo) -> None:
    ok(gspo_here(*words.split(), "units"))
    assert gspo_here(*words.split(), "unit").code == 2


@pytest.mark.parametrize(
    "words", [("runs", "show"), ("runs", "samples"), ("runs", "doctor"), ("runs", "path", "--weights")], ids=" ".join
)
def test_a_run_is_found_by_study_name_and_id(words: tuple[str, ...], work: Path, gspo_here: Gspo) -> None:
    run = json.loads((work / "results/units/gspo-s0/run.json").read_text())["run_id"]
    by_name = [gspo_here(*words, name) for name in ("units/gspo-s0", "gspo-s0", run[:8])]
    assert {done.code for done in by_name} == {0}, by_name[0].err
    assert len({done.out for done in by_name}) == 1
    check_refused(gspo_here(*words, "units"), "is a study of 2 runs", "results/units/grpo-s0")
    if "--weights" in words:
        assert (work / by_name[0].out.strip() / "model.safetensors").is_file()
    else:
        check_refused(gspo_here(*words, "gspo-s1"), "no run", "did you mean 'gspo-s0'?")


@pytest.mark.usefixtures("work")
def test_a_model_is_no_run_of_the_same_name(gspo_here: Gspo) -> None:
    shutil.copytree("results/units/gspo-s0/checkpoints/step-000002/model", "gspo-s0")
    done = gspo_here("eval", "benchmarks", "gspo-s0", "--limit", "2", "--samples", "1", "--json")
    shutil.rmtree("gspo-s0")
    assert done.code == 0 and json.loads(done.out)["folder"].startswith("results/eval-gspo-s0/"), done.err


@pytest.mark.usefixtures("work")
def test_a_rollout_of_few_prompts_needs_no_fewer_mini_batches(gspo_here: Gspo) -> None:
    done = gspo_here("rollout", "units/gspo-s0", "--set", "rollout.prompts=1", "--out", "my-batch")
    assert done.code == 0 and "to 1 prompts" in done.out, done.err
    check_refused(gspo_here("rollout", "units", "--out", "other"), "is a study of 2 runs")


def test_several_runs_of_a_name_are_named(tmp_path: Path) -> None:
    for study in ("one", "other"):
        (tmp_path / study / "gspo-s0").mkdir(parents=True)
        (tmp_path / study / "gspo-s0" / "run.json").write_text('{"run_id": "abcdef"}')
    for name in ("gspo-s0", "abcd"):
        said = refusal(find_folder, name, tmp_path)
        assert "several runs" in said and "other/gspo-s0" in said
    assert find_folder("one/gspo-s0", tmp_path) == tmp_path / "one" / "gspo-s0"
    assert find_folder("abc", tmp_path) is None, "too short for an id"


def test_the_shell_completes_studies_and_their_runs(work: Path) -> None:
    context: Any = SimpleNamespace(params={"out": work / "results"})
    assert complete_study(context, "") == ["units"]
    assert complete_study(context, "units/") == ["units/grpo-s0", "units/gspo-s0"]
    assert complete_run(context, "units/gs") == ["units/gspo-s0"]
