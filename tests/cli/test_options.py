"""What a command is given has an effect, in every arm and cell, or is refused."""

import json
import shutil
from pathlib import Path

import pytest
from program import Gspo, check_refused, ok

from gspo_cli.config import TaskConfig
from gspo_cli.evals.targets import find_targets
from gspo_cli.tasks import Demonstrated, make_task


def test_a_template_is_around_the_questions_of_demonstrations_too() -> None:
    task = make_task(TaskConfig(template="Sum {question}"))
    assert isinstance(task, Demonstrated)
    pairs = task.demonstrations(0, 20)
    assert all(prompt.startswith("Sum ") and not text.startswith("Sum") for prompt, text in pairs)
    assert pairs == [(f"Sum {prompt}", text) for prompt, text in make_task(TaskConfig()).demonstrations(0, 20)]  # type: ignore[attr-defined]
    assert task.problems("train")[0].prompt.startswith("Sum ")


def test_an_evaluation_of_a_run_writes_prompts_as_the_run_did(tmp_path: Path) -> None:
    run = tmp_path / "s" / "gspo-s0"
    (run / "checkpoints" / "step-000001" / "model").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"seed": 3}))
    task = {"system": "Add.", "chat_template_kwargs": {"enable_thinking": False}, "template": "Sum {question}"}
    (run / "config.json").write_text(json.dumps({"model": {}, "rollout": {"stop": ["a"]}, "task": task}))
    (target,) = find_targets(str(run), tmp_path, False, None, [])
    assert (target.prompting.system, target.prompting.chat_template_kwargs) == ("Add.", {"enable_thinking": False})
    assert target.prompting.template is None  # a benchmark has a wording of its own


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_was_set_survives_a_study_s_plan(gspo_here: Gspo, smoke: Path, tmp_path: Path, jobs: str) -> None:
    """Trained at once, by workers, and by a resume of what had not begun, with a change of the resume."""
    study, sets = tmp_path / "study", ("--set", "algo.clip.high=0.5", "--set", "arms.gspo.clip.high=0.7")
    both = ("train", smoke, "--algo", "grpo,gspo", "--steps", "1", "--name", "study", "--out", tmp_path)
    ok(gspo_here(*both, *sets, "--jobs", jobs))

    def trained(arm: str) -> tuple[float, float, int]:
        record, config = (json.loads((study / f"{arm}-s0" / f"{n}.json").read_text()) for n in ("run", "config"))
        lines = (study / f"{arm}-s0" / "metrics.jsonl").read_text().splitlines()
        return record["algo"]["clip"]["high"], config["algo"]["clip"]["high"], json.loads(lines[-1])["step"]

    assert (trained("grpo"), trained("gspo")) == ((0.5, 0.5, 1), (0.7, 0.7, 1))
    shutil.rmtree(study / "gspo-s0")  # as if the study had been cut off before it
    resume = ("train", "--resume", study, "--jobs", jobs)
    check_refused(gspo_here(*resume, "--set", "algo.clip.high=0.9", "--allow-change", "algo.clip.high"))
    assert not (study / "gspo-s0" / "metrics.jsonl").exists()
    ok(gspo_here(*resume, "--steps", "2", "--allow-change", "train.steps"))
    assert (trained("grpo"), trained("gspo")) == ((0.5, 0.5, 2), (0.7, 0.7, 2))
    configs = [json.loads((study / f"{arm}-s0" / "config.json").read_text()) for arm in ("grpo", "gspo")]
    assert [config["train"]["steps"] for config in configs] == [1, 1]


SWEEP = ("--sweep", "noise.token=0,0.3", "--seeds", "0-1", "--steps", "1", "--algo", "grpo,gspo")


def test_a_dry_run_counts_the_runs_and_writes_nothing(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    done = gspo_here("train", smoke, *SWEEP, "--dry-run", "--out", tmp_path / "out", "--name", "noise")
    assert done.code == 0 and "2 cells, 8 runs" in done.err, done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_cells_train_resume_and_make_a_map(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    place = ("--out", tmp_path)
    assert gspo_here("train", smoke, *SWEEP, *place, "--name", "noise").code == 0
    cells = [tmp_path / "noise" / name for name in ("token-0", "token-0.3")]
    for cell, noise in zip(cells, (0.0, 0.3), strict=True):
        assert {run.parent.name for run in cell.glob("*/run.json")} == {"grpo-s0", "grpo-s1", "gspo-s0", "gspo-s1"}
        config = json.loads((cell / "gspo-s0" / "config.json").read_text())
        assert config["noise"]["token"] == noise and config["name"] == cell.name
    kept = (cells[0] / "grpo-s0" / "metrics.jsonl").read_bytes()
    shutil.rmtree(cells[1] / "gspo-s1")  # as if the second cell had been cut off before its last run
    assert gspo_here("train", "--resume", tmp_path / "noise").code == 0
    assert (cells[1] / "gspo-s1" / "metrics.jsonl").is_file()
    assert (cells[0] / "grpo-s0" / "metrics.jsonl").read_bytes() == kept
    done = gspo_here("report", "map", "noise", *place, "--figures", tmp_path / "map", "--json")
    found = json.loads(done.out)
    assert found["axes"] == ["noise.token"]
    assert [cell["values"] for cell in found["cells"]] == [{"noise.token": 0.0}, {"noise.token": 0.3}]
    assert {cell["comparison"]["verdict"] for cell in found["cells"]} == {"no_claim"}  # two seeds
    for run in cells[1].glob("*-s*"):
        shutil.rmtree(run)  # the map of a sweep whose second cell has not begun has the same axis
    done = gspo_here("report", "map", "noise", *place, "--figures", tmp_path / "map", "--json")
    assert json.loads(done.out)["axes"] == ["noise.token"], done.err
    assert json.loads(done.out)["cells"][1]["why"] == "no run has begun"
