"""`--set`, `--sweep` and `--resume`: what the command line asks for is what every arm trains with."""

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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--algo grpo --set algo.clp.hihg=5", ["unknown key 'algo.clp'", "did you mean 'clip'?"]),
        ("--algo grpo --set algo.clip.hihg=5", ["unknown key 'algo.clip.hihg'", "did you mean 'high'?"]),
        ("--algo grpo --set algo.cap=5", ["unknown key 'algo.cap'", "cispo, minirl"]),
        ("--algo grpo,gspo --sweep algo.cap=5,6", ["unknown key 'algo.cap'"]),
        ("--algo grpo,cispo --grid algo.cap=5,6", ["cap"]),
        ("--algo gspo --set arms.grpo.clip.high=5", ["no arm 'grpo' trains"]),
        ("--algo gspo --sweep arms.grpo.clip.high=5,6", ["no arm 'grpo' trains"]),
        ("--algo grpo,gspo --set algo.name=sapo", ["algo.name=sapo", "--algo"]),
        ("--algo reinforce --set train.minibatches=2", ["train.minibatches=2: no arm takes it"]),
        ("--sweep algo.lr=1e-4,1e-5 --set algo.lr=1e-3", ["--sweep and --set algo.lr"]),
        ("--sweep train.steps=1,2 --set train.steps=3", ["--sweep and --set train.steps"]),
        ("--grid algo.lr=1e-4,1e-5 --set algo.lr=1e-3", ["--grid and --set algo.lr"]),
        ("--name one --set name=two", ["--name and --set name"]),
        ("--seeds 0-1 --set seed=5", ["--seed and --set seed"]),
    ],
)
def test_what_would_be_dropped_is_refused(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, options: str, words: list[str]
) -> None:
    done = gspo_here("train", smoke, *options.split(), "--out", tmp_path / "out")
    assert done.code == 2, done.err
    assert all(word in done.err for word in words), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["rollout", "cold-start", "recipes show", "report fidelity"])
def test_other_commands_refuse_a_slip(gspo_here: Gspo, smoke: Path, tmp_path: Path, command: str) -> None:
    out = () if command == "recipes show" else ("--out", tmp_path / "out")
    done = gspo_here(*command.split(), smoke, "--set", "algo.clp.hihg=5", *out)
    assert done.code == 2 and "unknown key 'algo.clp'" in done.err, done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", ["--grid algo.lr=1,2", "--tuned x", "quickstart-dense"])
def test_a_resume_refuses_what_it_cannot_take(gspo_here: Gspo, tmp_path: Path, options: str) -> None:
    done = gspo_here("train", *options.split(), "--resume", tmp_path)
    assert done.code == 2 and "with --resume" in done.err, done.err


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
