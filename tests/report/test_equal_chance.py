"""Settings, tuning and seeds of a study stand in its sentence; what was not planned or not fair says less."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from compare_studies import change, compared, config, configure, flat, write_plan, write_run, write_study
from program import Gspo, ok

from gspo_cli.config import flat as dotted
from gspo_cli.report.runs.facts import conditions_of
from gspo_cli.report.runs.seeds import departure

EIGHT = (0.03, 0.02, 0.04, 0.01, 0.05, 0.02, 0.03, 0.025)
GRID = {"lr": [5e-5, 1e-4, 2e-4]}
NAMES = {"chosen": {"name": "ppo"}, "grid": {"name": ["ppo", "grpo"]}}


def tuned(study: Path, a: dict[str, Any] | None, b: dict[str, Any] | None, **lr: float) -> Path:
    """The study with this recorded tuning, and each arm at this learning rate."""
    table = {arm: own for arm, own in (("grpo", a), ("gspo", b)) if own}
    for run in study.glob("*-s*"):
        change(run / "config.json", {"report.tuning": table, "algo.lr": lr.get(run.name.split("-")[0])})
    return study


def trials(lr: float, **more: Any) -> dict[str, Any]:
    return {"trials": 3, "seeds": [100, 101], "chosen": {"lr": lr}, "grid": GRID} | more


def test_an_arm_at_a_hopeless_learning_rate_is_not_beaten(tmp_path: Path, gspo_here: Gspo) -> None:
    study = tuned(write_study(tmp_path / "demo", flat(EIGHT), seeds=8), None, None, grpo=1e-9, gspo=4e-4)
    found = compared(gspo_here, study)
    assert found["verdict"] == "suggestive" and "better" not in found["sentence"]
    assert "neither arm was tuned" in found["sentence"] and "lr 1e-09 and 0.0004" in found["sentence"]
    assert gspo_here("report", "compare", str(study), "--require", "better").code == 3


CASES = {
    "one": (trials(1e-4), None, "only grpo was tuned"),
    "more trials": (trials(1e-4), trials(1e-4, trials=9), "grpo had 3 tuning trials, gspo 9"),
    "more seeds": (trials(1e-4), trials(1e-4, seeds=[100]), "tuned on 2 seeds"),
    "another grid": (trials(1e-4), trials(1e-4, grid={"lr": [1e-5, 1e-4, 1e-3]}), "different grids"),
    "not as chosen": (trials(2e-4), trials(1e-4), "grpo ran with lr = 0.0001, its tuning chose 0.0002"),
    "not a number": (trials(1e-4, **NAMES), trials(1e-4, **NAMES), "its tuning chose ppo"),
}


@pytest.mark.parametrize("name", CASES)
def test_unequal_tuning_suggests_at_most(name: str, tmp_path: Path, gspo_here: Gspo) -> None:
    grpo, gspo, why = CASES[name]
    found = compared(gspo_here, tuned(write_study(tmp_path / "demo"), grpo, gspo, grpo=1e-4, gspo=1e-4))
    assert found["verdict"] == "suggestive" and why in found["sentence"]


def test_equal_tuning_stands_in_the_sentence_and_an_edge_asks_for_a_wider_grid(tmp_path: Path, gspo_here: Gspo) -> None:
    study = tuned(write_study(tmp_path / "demo"), trials(1e-4), trials(2e-4), grpo=1e-4, gspo=2e-4)
    found = compared(gspo_here, study)
    assert found["verdict"] == "better"
    tuning = "Tuned: both arms 3 trials over lr in 5e-05, 0.0001, 0.0002 on 2 seeds."
    assert f"Settings of GRPO and GSPO: lr 0.0001 and 0.0002. {tuning}" in found["sentence"]
    assert "GSPO's lr 0.0002 is at the edge of its grid: widen it." in found["sentence"]
    assert "GRPO's lr" not in found["sentence"]
    (command,) = found["settings"]["wider"]
    assert "--algo grpo,gspo --seeds 100,101" in command and "--name demo-tuning" in command
    assert command.endswith("--grid algo.lr=5e-05,0.0001,0.0002,0.0004,0.0008")  # for both arms, which need one grid


def test_the_command_for_a_wider_grid_of_a_tuned_study_is_one_that_train_takes(tmp_path: Path, gspo_here: Gspo) -> None:
    study = tuned(write_study(tmp_path / "demo"), trials(5e-5), trials(2e-4), grpo=5e-5, gspo=2e-4)
    argv = ["gspo", "train", "quickstart", "--tuned", "results/tuning", "--algo", "grpo,gspo", "--seeds=0-5"]
    for run in study.glob("*-s*"):
        change(run / "run.json", {"argv": argv})
    (command,) = compared(gspo_here, study)["settings"]["wider"]
    assert command.endswith("--grid algo.lr=1.25e-05,2.5e-05,5e-05,0.0001,0.0002,0.0004,0.0008")
    ok(gspo_here(*shlex.split(command)[1:], "--dry-run"))


def test_a_rate_that_no_tuning_chose_is_no_equal_chance(tmp_path: Path, gspo_here: Gspo) -> None:
    own = {"trials": 3, "seeds": [100], "chosen": {"clip.low": 0.04}}
    found = compared(gspo_here, tuned(write_study(tmp_path / "demo"), own, own, grpo=1e-9, gspo=1e-4))
    assert found["verdict"] == "suggestive" and "lr differs, and no tuning chose it" in found["sentence"]


def conditions(arm: str, **changes: Any) -> dict[str, Any]:
    """Those of a trial in the demo study, with dotted keys changed."""
    return conditions_of(dotted(config(arm, 100))) | {key.replace("__", "."): v for key, v in changes.items()}


ELSEWHERE = {
    "own": ({}, None, "Tuned: both arms 3 trials"),
    "noise": ({}, {"noise": {"token": 1.0}}, "learning rates tuned at noise.token=0 instead of 1"),
    "of the arm": ({}, {"algo.minibatches": 16}, "learning rates tuned at train.minibatches=4 instead of 16"),
    "clip range": ({"algo__clip__low": 0.2}, None, "learning rates tuned at algo.clip.low=0.2 instead of 0.04"),
    "two": ({"rollout__prompts": 8, "task__terms": [3, 5]}, {"task.terms": [8, 11]},
            "learning rates tuned at rollout.prompts=8 instead of 32, task.terms=[3, 5] instead of [8, 11]"),
    "seed, name, report": ({}, {"report.margin": 3.0, "model.threads": 2, "name": "other"}, "Tuned: both"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_arms_count_as_tuned_only_under_their_trials_conditions(name: str, tmp_path: Path, gspo_here: Gspo) -> None:
    trial, run, said = ELSEWHERE[name]
    own = [trials(1e-4, study="tuning", conditions=conditions(arm, **trial)) for arm in ("grpo", "gspo")]
    study = tuned(write_study(tmp_path / "demo"), *own, grpo=1e-4, gspo=1e-4)
    configure(study, run or {})
    found = compared(gspo_here, study)
    assert said in found["sentence"] or said[0].upper() + said[1:] in found["sentence"], found["sentence"]
    if said.startswith("Tuned"):
        assert found["verdict"] == "better"
    else:
        assert found["verdict"] == "suggestive" and "Tuned" not in found["sentence"]
        assert said in found["settings"]["unequal"]


def test_a_tuning_of_an_earlier_version_does_not_say_under_which_conditions(tmp_path: Path, gspo_here: Gspo) -> None:
    own = trials(1e-4, study="tuning")
    sentence = compared(gspo_here, tuned(write_study(tmp_path / "demo"), own, own, grpo=1e-4, gspo=1e-4))["sentence"]
    assert "Conditions of the tuning not recorded: both arms 3 trials over lr" in sentence and "Tuned" not in sentence


def test_arms_of_one_algorithm_with_one_choice_need_no_tuning_here(tmp_path: Path, gspo_here: Gspo) -> None:
    """They differ in what is compared, and in nothing that was tuned."""
    study, own = write_study(tmp_path / "demo", arms=("grpo", "grpo_r2")), {}
    for arm in ("grpo", "grpo_r2"):
        own[arm] = trials(1e-4, study="tuning", conditions=conditions(arm, noise__token=0.3))
    for folder in study.glob("*-s*"):
        table = {"report.tuning": own, "report.treatment": "grpo_r2", "algo.lr": 1e-4}
        change(folder / "config.json", table | {"algo.replay": "r2" if "r2" in folder.name else "none"})
    found = compared(gspo_here, study)
    assert found["verdict"] == "better" and "tuned at noise.token=0.3 instead of 0" in found["sentence"]


def test_deleted_seeds_make_it_exploratory(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", flat(EIGHT), seeds=8)
    assert compared(gspo_here, study)["declared"]
    for arm in ("grpo", "gspo"):
        for seed in (3, 6):
            shutil.rmtree(study / f"{arm}-s{seed}")
    found = compared(gspo_here, study)
    assert not found["declared"]
    assert found["sentence"].startswith("Exploratory (planned seeds 3, 6 missing): GSPO better than GRPO")


def test_added_seeds_make_it_exploratory(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", flat(EIGHT), seeds=6)
    for arm in ("grpo", "gspo"):
        for seed in (6, 7):
            write_run(study, arm, seed, flat(EIGHT)(arm, seed))
    write_plan(study, ("grpo", "gspo"), range(8))
    found = compared(gspo_here, study)
    assert found["sentence"].startswith("Exploratory (seeds 6, 7 added after the first plan): ")
    (study / "study.json").unlink()
    assert "the planned seeds are not recorded" in compared(gspo_here, study)["sentence"]


def test_planned_looks_are_no_exploration_but_cost_their_share(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", flat(EIGHT), seeds=8)
    (study / "study.json").unlink()
    write_plan(study, ("grpo", "gspo"), range(12))
    configure(study, {"report.looks": [8, 12]})
    found = compared(gspo_here, study)
    assert found["declared"] and found["looks"] == 2 and "Look 1 of 2, each at 5 % / 2." in found["sentence"]
    # the interval of one look is at 97.5 %: t(.9875, 7) = 2.841244 for Student's
    assert found["verdict"] == "better" and found["ci_t"][1] - found["effect"] == pytest.approx(
        2.841244 * found["sd"] / 8**0.5, rel=1e-5
    )
    for arm in ("grpo", "gspo"):
        shutil.rmtree(study / f"{arm}-s7")
    assert "7 seeds are not one of the planned looks (8, 12)" in compared(gspo_here, study)["sentence"]


def test_departures() -> None:
    assert departure([0, 1, 2], [0, 1, 2], [], ()) == ""
    assert departure([0, 1, 2], [0, 1], [2], ()) == "seed 2 invalidated"
    assert departure(list(range(9)), list(range(1, 7)), [], (6, 9)) == "planned seed 0 missing"


def test_a_start_model_per_seed_is_compared_within_pairs(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    assert "For this start model, which all seeds share." in compared(gspo_here, study)["sentence"]
    for run in study.glob("*-s*"):
        seed = int(run.name[-1])
        change(run / "run.json", {"model_sha256": str(seed) * 64})
        change(run / "config.json", {"cold_start": {"seed": seed}})
    found = compared(gspo_here, study)
    assert found["verdict"] == "better" and "start model" not in found["sentence"]
    change(study / "gspo-s3" / "run.json", {"model_sha256": "9" * 64})
    done = gspo_here("report", "compare", str(study), "--json")
    assert done.code == 3 and [r["check"] for r in json.loads(done.out)["reasons"]] == ["start"]


def test_a_removed_run_is_found_by_verify(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", seeds=1)
    change(study / "study.json", {"begun": ["grpo-s0", "gspo-s0", "gspo-s1"]})
    done = gspo_here("runs", "verify", str(study), "--json")
    assert "gspo-s1" in done.out and "the study began this run, and it is gone" in done.out


def test_seeds_that_share_a_few_start_models_tell_their_share_of_the_variance(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    assert compared(gspo_here, study)["start_share"] is None
    for run in study.glob("*-s*"):
        start = int(run.name[-1]) % 3
        change(run / "run.json", {"model_sha256": str(start) * 64})
        change(run / "config.json", {"cold_start": {"seed": start}})
    found = compared(gspo_here, study)
    assert "For these 3 start models, which the seeds share." in found["sentence"]
    # differences 3 2 4 1 5 2 of starts 0 1 2 0 1 2: means 2, 3.5, 3; between 1.1667, within 8.5 / 3 = 2.8333
    share = found["start_share"]["difference"]
    assert (share["starts"], share["seeds"], share["share"], share["ci"][0]) == (3, 6, 0.0, 0.0)
    assert share["sd_seeds"] == pytest.approx((8.5 / 3) ** 0.5 / 100)
