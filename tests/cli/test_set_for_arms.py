"""`--set` and `--resume`: what the command line asks for is what every arm trains with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from program import Gspo


@pytest.mark.parametrize(
    ("options", "expected", "said"),
    [
        ("--algo grpo --set algo.clip.high=5 --set algo.clip.low=0.9",
         {"grpo": {"clip": {"low": 0.9, "high": 5.0}}}, []),
        ("--algo cispo,gspo --set algo.cap=1.05",
         {"cispo": {"cap": 1.05}, "gspo": {"clip": {"low": 3e-4, "high": 4e-4}}}, ["algo.cap: cispo only"]),
        ("--algo dr_grpo --set algo.dual_clip=1.5", {"dr_grpo": {"dual_clip": 1.5}}, []),
        ("--algo reinforce --set algo.allow_stale=true", {"reinforce": {"allow_stale": True}}, []),
        ("--algo grpo,gspo --set arms.grpo.clip.high=5",
         {"grpo": {"clip": {"low": 0.2, "high": 5.0}}, "gspo": {"clip": {"low": 3e-4, "high": 4e-4}}}, []),
    ],
)  # fmt: skip
def test_a_dry_run_shows_what_each_arm_trains_with(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, options: str, expected: dict[str, dict[str, object]], said: list[str]
) -> None:
    command = ("train", smoke, *options.split(), "--dry-run", "--out", tmp_path)
    done = gspo_here(*command, "--json")
    assert done.code == 0, done.err
    algos = {arm: plan["algo"] for arm, plan in json.loads(done.out)["arms"].items()}
    assert {arm: {key: algos[arm][key] for key in keys} for arm, keys in expected.items()} == expected
    assert [line for line in done.err.splitlines() if line.endswith(" only")] == said
    shown = gspo_here(*command).out
    assert all(f"[algo of {arm}] name = " in shown for arm in expected)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_was_set_survives_a_study_s_plan(gspo_here: Gspo, smoke: Path, tmp_path: Path, jobs: str) -> None:
    """Trained at once, by workers, and by a resume of what had not begun, with a change of the resume."""
    study, sets = tmp_path / "study", ("--set", "algo.clip.high=0.5", "--set", "arms.gspo.clip.high=0.7")
    both = ("train", smoke, "--algo", "grpo,gspo", "--steps", "1", "--name", "study", "--out", tmp_path)
    done = gspo_here(*both, *sets, "--jobs", jobs)
    assert done.code == 0, done.err

    def trained(arm: str) -> tuple[float, float, int]:
        record, config = (json.loads((study / f"{arm}-s0" / f"{n}.json").read_text()) for n in ("run", "config"))
        lines = (study / f"{arm}-s0" / "metrics.jsonl").read_text().splitlines()
        return record["algo"]["clip"]["high"], config["algo"]["clip"]["high"], json.loads(lines[-1])["step"]

    assert (trained("grpo"), trained("gspo")) == ((0.5, 0.5, 1), (0.7, 0.7, 1))
    shutil.rmtree(study / "gspo-s0")  # as if the study had been cut off before it
    resume = ("train", "--resume", study, "--jobs", jobs)
    done = gspo_here(*resume, "--set", "algo.clip.high=0.9", "--allow-change", "algo.clip.high")
    assert done.code == 2 and not (study / "gspo-s0" / "metrics.jsonl").exists(), done.err
    done = gspo_here(*resume, "--steps", "2", "--allow-change", "train.steps")
    assert done.code == 0, done.err
    assert (trained("grpo"), trained("gspo")) == ((0.5, 0.5, 2), (0.7, 0.7, 2))
    configs = [json.loads((study / f"{arm}-s0" / "config.json").read_text()) for arm in ("grpo", "gspo")]
    assert [config["train"]["steps"] for config in configs] == [1, 1]
