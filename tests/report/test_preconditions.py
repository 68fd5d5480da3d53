"""What makes two arms incomparable is refused, named and told with both values; nothing else is said then."""

import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from compare_studies import (
    D1,
    STEPS,
    change,
    compared,
    configure,
    cube,
    end,
    flat,
    put,
    write_answers,
    write_plan,
    write_run,
    write_study,
)
from program import Done, Gspo, check_refused
from report_runs import line, rewrite_log, write_log

from gspo_cli.config import GuardConfig
from gspo_cli.errors import GspoError
from gspo_cli.report.compare.preconditions import MEANINGS
from gspo_cli.report.runs.facts import read_facts
from gspo_cli.report.runs.folders import read_study
from gspo_cli.runlog.log import SilentLog
from gspo_cli.runlog.schema import METRICS
from gspo_cli.training.guards import Guards
from gspo_cli.types import RolloutBatch, StepMetrics

Break = Callable[[Path], object]


def compare(gspo_here: Gspo, study: Path, *options: str) -> Done:
    return gspo_here("report", "compare", str(study), *options)


def changed(file: str, **changes: object) -> Break:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return lambda study: change(study / "gspo-s3" / file, keys)


run_json, configuration = partial(changed, "run.json"), partial(changed, "config.json")


def cut_log(study: Path) -> None:
    log = study / "gspo-s3" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-2]))


def copy_log(study: Path) -> None:
    shutil.copy(study / "gspo-s2" / "metrics.jsonl", study / "gspo-s3" / "metrics.jsonl")


def evaluated(study: Path) -> Path:
    for run in study.iterdir():
        if run.is_dir():
            write_answers(run, [1, 2, 3], k=4)
            change(next(run.glob("eval/*/*/summary.json")), {"seed": int(run.name[-1])})
    return study


def more_prompts(study: Path) -> None:
    """As dynamic sampling does."""
    rewrite_log(study / "gspo-s3" / "metrics.jsonl", '"compute/queries":640', '"compute/queries":700')


BREAKS: dict[str, tuple[str, Break, str, str]] = {
    "missing seed": ("pairs", lambda s: shutil.rmtree(s / "gspo-s3"), "no gspo-s3", "--algo gspo --seeds 3"),
    "other weights": ("start", run_json(model_sha256="x"), "x in gspo-s3", "train both arms"),
    "weights unknown": ("start", run_json(model_sha256=None), "not recorded in gspo-s3", "train both arms"),
    "other data": ("data", run_json(data_sha256="x"), "x in gspo-s3", "same rows"),
    "more steps": ("budget", configuration(train__steps=30), "30 in gspo-s3", "one recipe"),
    "more prompts": ("budget", configuration(rollout__prompts=64), "64 in gspo-s3", "one recipe"),
    "more updates": ("budget", configuration(algo__minibatches=8), "8 in gspo-s3", "one recipe"),
    "more queries": ("budget", more_prompts, "700 in gspo-s3", "area@tokens"),
    "other learning rate": ("config", configuration(train__lr=2e-4), "0.0002 in gspo-s3", "one recipe"),
    "still running": ("status", lambda s: end(s / "gspo-s3", None), "no end was recorded", "--resume"),
    "disk full": ("status", lambda s: end(s / "gspo-s3", "failed", exit=6, reason="no space"), "no space", "--resume"),
    "no log": ("cells", lambda s: (s / "gspo-s3" / "metrics.jsonl").unlink(), "no metrics.jsonl", "complete it"),
    "shorter log": ("cells", cut_log, "the log ends at step 19 of 20", "complete it"),
    "copied log": ("copies", copy_log, "gspo-s3", "remove the copy"),
    "other commit": ("code", run_json(code__commit="x"), "x in gspo-s3", "--allow code"),
    "uncommitted change": ("code", run_json(code__diff_sha256="x"), "x in gspo-s3", "--allow code"),
    "other machine": ("hardware", run_json(cpu="x"), "x in gspo-s3", "--allow hardware"),
    "other torch": ("versions", run_json(packages__torch="x"), "x in gspo-s3", "--allow versions"),
    "other engine": ("versions", run_json(engine__name="vllm"), "vllm in gspo-s3", "--allow versions"),
    "versions unknown": ("versions", run_json(packages=None), "not recorded in gspo-s3", "--allow versions"),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that may be compared; leave it unchanged."""
    return write_study(tmp_path_factory.mktemp("whole") / "demo", seeds=4)


@pytest.fixture
def study(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "demo"))


@pytest.mark.parametrize("name", BREAKS)
def test_each_check_alone(name: str, study: Path, gspo_here: Gspo) -> None:
    check, break_it, found, do = BREAKS[name]
    break_it(study)
    done = compare(gspo_here, study, "--json")
    assert done.code == 3
    said = json.loads(done.out)
    assert said["verdict"] == "refused" and said["sentence"].startswith("No comparison: ")
    reason, *more = said["reasons"]
    # a longer plan is not reached, other mini-batches are another setting, a missing table lacks its entries
    assert not more or name in ("more steps", "more updates", "versions unknown")
    assert reason["check"] == check
    assert found in f"{reason['baseline']} {reason['treatment']}"
    assert do in reason["do"]
    assert not {"p_t", "p_exact", "ci", "effect", "per_seed", "mde"} & set(said)


def test_a_refusal_on_the_terminal(study: Path, gspo_here: Gspo) -> None:
    shutil.rmtree(study / "gspo-s3")
    done = compare(gspo_here, study)
    assert done.code == 3 and "No comparison: 1 precondition fails." in done.out
    train = f"gspo train quickstart --set train.lr=2e-4 --algo gspo --seeds 3 --out {study.parent} --name demo"
    assert f"pairs: train what is missing: {train}\n" in done.out
    assert not any(word in done.out for word in ("interval", "p =", "p, ", "better", "+2.8"))
    narrowed = compare(gspo_here, study, "--seeds", "0-2")
    assert narrowed.code == 0 and "Exploratory (planned seed 3 missing)" in narrowed.out


def test_three_checks_can_be_waived_and_are_shown(study: Path, gspo_here: Gspo) -> None:
    run_json(cpu="fast", packages__torch="3")(study)
    assert compare(gspo_here, study, "--allow", "hardware").code == 3
    done = compare(gspo_here, study, "--allow", "hardware", "--allow", "versions")
    assert done.code == 0
    assert "Waived, hardware: cpu: CPU in grpo-s3; fast in gspo-s3." in done.out
    assert "Waived, versions: packages.torch" in done.out
    for other in ("config", "start", "everything"):
        check_refused(compare(gspo_here, study, "--allow", other), "only code, hardware, versions can be waived")


def test_hardware_may_differ_between_pairs_but_the_start_may_not(study: Path, gspo_here: Gspo) -> None:
    configure(study, {"cpu": "other"}, "*-s3", "run.json")
    assert compare(gspo_here, study).code == 0
    configure(study, {"model_sha256": "other"}, "*-s3", "run.json")
    assert compare(gspo_here, study).code == 3


def test_what_arms_are_made_of_may_differ(study: Path, gspo_here: Gspo) -> None:
    configure(study, {"algo.lr": 5e-5, "algo.clip.high": 1.0, "name": "other"}, "gspo-*")
    configure(study, {"engine.routes": True}, "gspo-*", "run.json")  # follows from algo.replay
    assert compare(gspo_here, study).code == 0
    change(study / "gspo-s3" / "config.json", {"algo.lr": 1e-9})  # but not within an arm: its sentence names one value
    done = compare(gspo_here, study)
    assert done.code == 3 and "algo.lr, within one arm" in " ".join(done.out.split())
    change(study / "gspo-s3" / "config.json", {"algo.lr": 5e-5})
    for arm, lr in (("grpo", 1e-4), ("gspo", 2e-4)):
        configure(study, {"report.tuned": ["train.lr"], "train.lr": lr}, f"{arm}-*")
    assert compare(gspo_here, study).code == 0


def test_equal_tokens_need_no_equal_updates(study: Path, gspo_here: Gspo) -> None:
    configure(study, {"algo.minibatches": 1}, "gspo-*")
    assert compare(gspo_here, study).code == 3
    done = compare(gspo_here, study, "--metric", "reward/mean:area@tokens")
    assert done.code == 0 and "20,000 and 20,000" in done.out


def test_runs_that_share_no_stretch_of_an_axis_are_refused(study: Path, gspo_here: Gspo) -> None:
    put_times = [{"kind": "rollout", "step": step, "rollout_s": 1e4, "update_s": 1.0} for step in range(1, STEPS + 1)]
    (study / "gspo-s3" / "perf.jsonl").write_text("".join(json.dumps(row) + "\n" for row in put_times))
    done = compare(gspo_here, study, "--metric", "reward/mean:area@seconds", "--json")
    (reason,) = json.loads(done.out)["reasons"]
    assert done.code == 3 and reason["check"] == "cells" and "seconds that all runs cover" in reason["what"]
    assert (reason["baseline"], reason["treatment"]) == ("some begin at 10001", "others end at 40")
    assert compare(gspo_here, study).code == 0


def test_a_run_without_a_value_in_its_last_batch_shortens_no_other(tmp_path: Path, gspo_here: Gspo) -> None:
    """It keeps its last value, as a run does that a guard stopped."""
    rewards = flat(D1)

    def some(arm: str, seed: int) -> list[float | None]:
        values: list[float | None] = [value * step / STEPS for step, value in enumerate(rewards(arm, seed), start=1)]
        return [*values[:-1], None] if (arm, seed) == ("gspo", 1) else values

    found = compared(gspo_here, write_study(tmp_path / "demo", some))
    # a straight line from 1/20 of a to a: its mean is 21/40 of a; of the cut one 19 steps, then 19/20
    assert found["per_seed"][0]["baseline"] == pytest.approx(0.5 * 21 / 40)
    cut = (sum(k + k + 1 for k in range(1, 19)) / 2 + 19) / 19 / STEPS
    assert found["per_seed"][1]["treatment"] == pytest.approx((0.51 + D1[1]) * cut)


def test_a_copied_run_folder_is_refused(study: Path, gspo_here: Gspo) -> None:
    shutil.copytree(study / "gspo-s3", study / "gspo-s3-again")
    done = compare(gspo_here, study)
    assert done.code == 3 and "two runs of arm 'gspo' with seed 3" in done.err
    for arm in ("grpo", "gspo"):
        shutil.copytree(study / f"{arm}-s3", study / f"{arm}-s6")
        change(study / f"{arm}-s6" / "run.json", {"seed": 6})
    shutil.rmtree(study / "gspo-s3-again")
    assert [r["check"] for r in json.loads(compare(gspo_here, study, "--json").out)["reasons"]] == ["copies", "copies"]


def test_answers(tmp_path: Path, gspo_here: Gspo) -> None:
    metric = ("--metric", "arithmetic/avg@4", "--json")
    study = cube(tmp_path / "demo", seeds=4)
    for name, code in (("avg@4", 0), ("pass@2", 0), ("pass@5", 3), ("avg@8", 3)):
        assert compare(gspo_here, study, "--metric", f"arithmetic/{name}").code == code
    assert compare(gspo_here, study, "--metric", "minicode/avg@4").code == 3

    def reasons(*options: str) -> list[tuple[str, str]]:
        found = json.loads(compare(gspo_here, study, *metric, *options).out)["reasons"]
        return [(r["check"], r["treatment"]) for r in found]

    run = study / "gspo-s3"
    write_answers(run, [4, 4, 3, 2, None], k=4)
    assert reasons() == [("cells", "1 answers without a verdict (grader errors)")]
    wrong = json.loads(compare(gspo_here, study, *metric, "--grader-errors", "wrong").out)
    assert wrong["ungraded_as_wrong"] == 1 and wrong["per_seed"][3]["treatment"] == (4 + 4 + 3 + 2 + 3) / 20
    assert compare(gspo_here, study, "--grader-errors", "right").code == 2
    logged = compare(gspo_here, study, "--metric", "reward/mean:last10", "--grader-errors", "wrong")
    check_refused(logged, "not computed from graded answers")
    write_answers(run, [4, 4, 3, 2, 4], k=5)
    assert reasons() == [("eval", "5 in gspo-s3"), ("cells", "5 samples a problem, not 4")]
    write_answers(run, [4, 4, 3, 2], k=4)
    assert reasons()[0][0] == "eval"
    write_answers(run, [4, 4, 3, 2, 4], k=4)
    change(run / "eval" / "arithmetic" / "step-000020" / "summary.json", {"temperature": 0.6})
    assert reasons() == [("eval", "0.6 in gspo-s3")]
    shutil.rmtree(run / "eval")
    assert reasons() == [("cells", "not evaluated")]
    write_answers(run, [4, 4, 3, 2, 4], k=4, step=10)
    assert reasons() == [("cells", "evaluated at step-000010, not at its last checkpoint step-000020")]


def test_training_that_stops_on_values_that_are_not_finite_is_known_by_its_reason(tmp_path: Path) -> None:
    update = StepMetrics({"loss": math.nan, "update/applied": 0.0})
    log = SilentLog(tmp_path, "")
    with pytest.raises(GspoError) as caught:
        Guards(GuardConfig(nonfinite_limit=1)).after_updates(log, RolloutBatch(3, (), 8), [update])
    folder = write_run(tmp_path / "demo", "grpo", 0, [0.5] * 3)
    end(folder, "failed", exit=int(caught.value.code), reason=str(caught.value))
    assert read_facts(read_study(tmp_path / "demo").runs[0]).not_finite


@pytest.mark.parametrize("name", ["run.json", "config.json", "events.jsonl", "invalidated.json"])
def test_a_corrupt_file_is_named(name: str, tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", seeds=1)
    (study / "gspo-s0" / name).write_text('{"a": NaN}\n')
    done = compare(gspo_here, study)
    assert done.code == 6 and name in done.err and done.out == ""
    put(study / "gspo-s0" / "config.json", {"algo": {"name": "gspo"}, "train": {"steps": "many"}})
    assert compare(gspo_here, study).code == 6


PROMPTS, SAMPLES = 32, 16


def frozen_batch(rng: np.random.Generator, dynamic: bool) -> tuple[list[float], list[float], int]:
    """(rewards of all groups, of the kept ones, prompts): half the prompts always solved, the others in 23 %."""
    kept: list[float] = []
    everything: list[float] = []
    prompts = num_kept = 0
    while num_kept < PROMPTS:
        chance = np.where(rng.random(PROMPTS) < 0.5, 1.0, 0.23)
        for group in (rng.random((SAMPLES, PROMPTS)) < chance).T.astype(float):
            everything += list(group)
            if (group.min() < group.max() or not dynamic) and num_kept < PROMPTS:
                kept, num_kept = [*kept, *group], num_kept + 1
        prompts += PROMPTS
    return everything, kept, prompts


def write_frozen(study: Path) -> Path:
    """Frozen weights, an arm with dynamic sampling and one without."""
    for arm, dynamic in (("grpo", False), ("grpo_ds", True)):
        for seed in range(6):
            rng, prompts, lines = np.random.default_rng([seed, dynamic]), 0, []
            for step in range(1, STEPS + 1):
                everything, kept, more = frozen_batch(rng, dynamic)
                prompts += more
                metrics = {"reward/mean": float(np.mean(everything)), "compute/gen_tokens": 8 * prompts * SAMPLES,
                           "length/mean": 8.0 + seed, "compute/queries": prompts}  # fmt: skip
                if dynamic:
                    metrics["reward/mean_kept"] = float(np.mean(kept))
                lines.append(line(step, "rollout", None, metrics, {"reward/mean": len(everything)}))
            write_log(write_run(study, arm, seed, [None] * STEPS) / "metrics.jsonl", lines)
        configure(study, {"algo.dynamic_sampling": dynamic}, f"{arm}-*")
    configure(study, {"report.metric": "reward/mean:area@tokens", "report.treatment": "grpo_ds"})
    write_plan(study, ("grpo", "grpo_ds"), range(6))
    return study


def test_frozen_weights_under_dynamic_sampling_are_not_different(tmp_path: Path, gspo_here: Gspo) -> None:
    found = compared(gspo_here, write_frozen(tmp_path / "demo"))
    assert found["verdict"] in ("equal", "inconclusive") and abs(found["effect"]) < 0.01


CASES = {
    "kept groups": ({}, "length/mean:last10", "algo.dynamic_sampling"),
    "masked": ({"dynamic_sampling": False, "truncation": "mask"}, "entropy/mean:last10", "algo.truncation"),
    "penalty": ({"dynamic_sampling": False, "overlong_cache_frac": 0.2}, "adv/abs_mean:last10",
                "algo.overlong_cache_frac"),
    "old policy": ({"dynamic_sampling": False, "old_log_probs": "sampler"}, "kl/old_k1:last10", "algo.old_log_probs"),
    "objective": ({"dynamic_sampling": False, "name": "gspo"}, "loss:last10", "algo.name"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_setting_that_changes_a_metric(name: str, tmp_path: Path, gspo_here: Gspo) -> None:
    algo, metric, key = CASES[name]
    study = write_study(tmp_path / "demo", arms=("grpo", "grpo_ds"))
    configure(study, {"report.treatment": "grpo_ds", "algo.dynamic_sampling": False})
    changes = {"dynamic_sampling": True} | algo
    configure(study, {f"algo.{name}": value for name, value in changes.items()}, "grpo_ds-*")
    found = compared(gspo_here, study, "--metric", metric, code=3)
    whats = [reason["what"] for reason in found["reasons"] if reason["check"] == "meaning"]
    assert len(whats) == 1 and metric.split(":")[0] in whats[0] and key in whats[0]
    reward = gspo_here("report", "compare", str(study), "--metric", "reward/mean:area@tokens")
    assert "meaning" not in reward.out


def test_lag_may_not_differ_even_where_it_was_tuned(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_frozen(tmp_path / "demo")
    configure(study, {"report.tuned": ["rollout.max_lag"]})
    assert compared(gspo_here, study)["reasons"] == []
    configure(study, {"rollout.max_lag": 2}, "grpo_ds-*")
    (reason,) = compared(gspo_here, study, code=3)["reasons"]
    assert (reason["check"], reason["baseline"], reason["treatment"]) == ("meaning", "0", "2")


def test_a_mean_over_too_few_scored_responses_is_refused(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_frozen(tmp_path / "demo")
    rewrite_log(study / "grpo-s3" / "metrics.jsonl", '"counts":{"reward/mean":512}', '"counts":{"reward/mean":500}')
    (reason,) = compared(gspo_here, study, code=3)["reasons"]
    assert (reason["check"], reason["baseline"]) == ("meaning", "2.3% of the responses of grpo-s3")


def test_the_page_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    table = page.partition("## What a metric means under which setting")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_.]+)`", table, re.M)) == {meaning.key for meaning in MEANINGS}
    assert all(any(meaning.affects(name) for name in METRICS) for meaning in MEANINGS)
    assert not any(meaning.affects("reward/mean") for meaning in MEANINGS if meaning.key != "rollout.max_lag")


WIDE = (0.05, -0.06, 0.04, -0.02, 0.03, -0.05)


@pytest.mark.parametrize("shift", [0.0, -0.52])
def test_the_unit_does_not_depend_on_the_values(shift: float, tmp_path: Path, gspo_here: Gspo) -> None:
    def rewards(arm: str, seed: int) -> list[float | None]:
        return [(value or 0.0) + shift for value in flat(WIDE)(arm, seed)]

    study = write_study(tmp_path / "demo", rewards)
    found = compared(gspo_here, study)
    assert (found["verdict"], found["points"], found["margin"]) == ("inconclusive", True, 0.02)
    configure(study, {"report.unit": "reward"})
    found = compared(gspo_here, study)
    assert (found["verdict"], found["points"], found["margin"]) == ("equal", False, 2.0)
    assert " reward [" in found["sentence"]


def test_a_reward_of_ones_own_needs_a_unit(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", flat(WIDE))
    configure(study, {"task.reward": "mine:reward"})
    found = compared(gspo_here, study)
    assert (found["verdict"], found["unit_known"], found["margin"]) == ("inconclusive", False, None)
    assert "report.unit" in gspo_here("report", "compare", str(study)).out
    configure(study, {"report.unit": "points"})
    found = compared(gspo_here, study)
    assert (found["points"], found["margin"]) == (True, 0.02)


def test_a_pair_is_evaluated_with_one_seed_and_each_pair_with_its_own(tmp_path: Path, gspo_here: Gspo) -> None:
    study = evaluated(write_study(tmp_path / "demo", seeds=4))
    metric = ("--metric", "arithmetic/avg@4", "--json")
    assert compare(gspo_here, study, *metric).code == 0
    change(next(study.glob("gspo-s3/eval/*/*/summary.json")), {"seed": 0})
    (reason,) = json.loads(compare(gspo_here, study, *metric).out)["reasons"]
    assert (reason["check"], reason["treatment"]) == ("eval seed", "0 in gspo-s3")
