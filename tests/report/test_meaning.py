"""Two arms are compared only by a quantity that means the same in both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_studies import STEPS, compared, config, configure, end, flat, provenance, put, write_plan, write_study
from program import Gspo
from report_runs import line, rewrite_log, write_log

from gspo_cli.report.compare.preconditions import MEANINGS
from gspo_cli.runlog.schema import METRICS

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


def write_frozen(study: Path, algo: dict[str, Any] | None = None) -> Path:
    """Frozen weights, an arm with dynamic sampling and one without."""
    for arm, dynamic in (("grpo", False), ("grpo_ds", True)):
        for seed in range(6):
            rng, folder, prompts = np.random.default_rng([seed, dynamic]), study / f"{arm}-s{seed}", 0
            folder.mkdir(parents=True)
            table = config(arm, seed)
            table["algo"] |= {"dynamic_sampling": dynamic} | ((algo or {}) if dynamic else {})
            table["report"] |= {"metric": "reward/mean:area@tokens", "treatment": "grpo_ds"}
            put(folder / "config.json", table)
            put(folder / "run.json", provenance(study.name, arm, seed))
            lines = []
            for step in range(1, STEPS + 1):
                everything, kept, more = frozen_batch(rng, dynamic)
                prompts += more
                mean = float(np.mean(everything))
                metrics = {"reward/mean": mean, "compute/gen_tokens": 8 * prompts * SAMPLES, "length/mean": 8.0 + seed,
                           "compute/queries": prompts}  # fmt: skip
                if dynamic:
                    metrics["reward/mean_kept"] = float(np.mean(kept))
                lines.append(line(step, "rollout", None, metrics, {"reward/mean": len(everything)}))
            write_log(folder / "metrics.jsonl", lines)
            end(folder, "completed")
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
    study = write_frozen(tmp_path / "demo", algo=algo)
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
