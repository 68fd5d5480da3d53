"""`gspo report claims`: every row reaches every verdict, few seeds support nothing, what is missing is named."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_studies import STEPS, change, configure, end, put, write_answers, write_run
from program import Gspo

Shape = Callable[[str, int], dict[str, Any]]
"""What a run of an arm and a seed is like: `reward`, `clip`, `churn`, `falls`."""
ARMS = {
    "grpo": {}, "gspo": {}, "sapo": {}, "grpo_r2": {"algo.replay": "r2"}, "gspo_r2": {"algo.replay": "r2"},
    "gspo_sampler": {"algo.old_log_probs": "sampler"},
}  # fmt: skip
BANDS = {"grpo": (0.2, 0.27), "gspo": (3e-4, 4e-4)}


def study_of(folder: Path, shape: Shape, arms: Sequence[str] = tuple(ARMS), seeds: int = 8, moe: bool = True) -> Path:
    """A study whose runs have these levels, with a little noise that differs from run to run."""
    rng = np.random.default_rng(0)
    for arm in arms:
        for seed in range(seeds):
            what = {"reward": 0.5, "clip": 0.01, "churn": 0.1, "falls": False} | shape(arm, seed)
            noise = 1 + 0.002 * rng.normal()
            rewards = [what["reward"] * noise * (0.1 if what["falls"] and s > STEPS // 2 else 1) for s in range(STEPS)]
            churn = None if what["churn"] is None else what["churn"] * noise
            at_step = {"clip/token_frac": what["clip"] * noise, "moe/slot_churn_step": churn}
            run = write_run(folder, arm, seed, rewards, seconds=2 + 0.01 * rng.random(), at_step=at_step)
            name = arm.split("_")[0]
            low, high = BANDS.get(name, (None, None))
            wide = 2.0 if arm.endswith("_double") else 1.0
            tiny = {"kind": "qwen3_moe" if moe else "qwen3", "layers": 3, "top_k": 2}
            clip = {"low": low * wide, "high": high * wide} if low and high else None
            change(run / "config.json", {"model.tiny": tiny, "algo.clip": clip, **ARMS.get(arm, {})})
    return folder


def rows(gspo_here: Gspo, study: Path) -> dict[str, Any]:
    done = gspo_here("report", "claims", str(study), "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found == json.loads((study / "claims.json").read_text())
    return {row["id"]: row for row in found["rows"]}


def for_it(arm: str, _: int) -> dict[str, Any]:
    """Everything as the papers say."""
    reward = {"grpo": 0.5, "grpo_r2": 0.6, "gspo": 0.7, "gspo_r2": 0.7, "gspo_sampler": 0.7, "sapo": 0.8}
    falls = arm.startswith("grpo")
    return {"reward": reward[arm], "clip": 0.15 if arm.startswith("gspo") else 0.0013, "churn": 0.1, "falls": falls}


def against_it(arm: str, _: int) -> dict[str, Any]:
    """Everything the other way round."""
    reward = {"grpo": 0.8, "grpo_r2": 0.8, "gspo": 0.7, "gspo_r2": 0.78, "gspo_sampler": 0.6, "sapo": 0.5}
    return {"reward": reward[arm], "clip": 0.001 if arm.startswith("gspo") else 0.1,
            "falls": arm in ("gspo", "gspo_sampler", "sapo")}  # fmt: skip


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms of a dense model, as the papers say; leave it unchanged."""
    return study_of(tmp_path_factory.mktemp("dense") / "demo", for_it, ["grpo", "gspo"], moe=False)


SEEN = {"reward_queries", "reward_compute", "stable", "clip_more", "clip_100x", "grpo_needs_replay", "gspo_no_replay",
        "sampler_likelihoods", "sapo_gspo", "sapo_grpo"}  # fmt: skip


def test_runs_as_the_papers_say(tmp_path: Path, dense: Path, gspo_here: Gspo) -> None:
    def shape(arm: str, seed: int) -> dict[str, Any]:
        return for_it(arm, seed) | ({"falls": arm == "grpo"} if arm.startswith("grpo") else {})

    found = rows(gspo_here, study_of(tmp_path / "a", shape))
    verdicts = {name: found[name]["verdict"] for name in SEEN}
    assert verdicts.pop("stable") == "inconclusive"  # with replay no run fell
    assert set(verdicts.values()) == {"supported"}, verdicts
    assert found["reward_queries"]["primary"] and not found["clip_more"]["primary"]
    # the other rows are one family: the same clipping has a smaller p where fewer rows stand beside it
    assert found["clip_more"]["p_adjusted"]["t"] > rows(gspo_here, dense)["clip_more"]["p_adjusted"]["t"]
    found = rows(gspo_here, study_of(tmp_path / "b", for_it, ["grpo", "grpo_r2", "gspo"], seeds=12))
    assert found["stable"]["verdict"] == "supported"
    assert found["stable"]["baseline"] == "grpo_r2"  # the paper's baseline has Routing Replay


def test_runs_that_say_the_opposite(tmp_path: Path, gspo_here: Gspo) -> None:
    # runs that all collapse leave no pair by which to judge rewards, and runs that do not, nothing about stability
    whole = rows(gspo_here, study_of(tmp_path / "a", lambda *at: against_it(*at) | {"falls": False}))
    fallen = rows(gspo_here, study_of(tmp_path / "b", against_it, seeds=12))
    verdicts = {name: {whole[name]["verdict"], fallen[name]["verdict"]} for name in SEEN - {"sapo_gspo"}}
    assert all("contradicted" in found and "supported" not in found for found in verdicts.values()), verdicts
    assert whole["reward_queries"]["verdict"] == fallen["stable"]["verdict"] == "contradicted"


def test_arms_without_equal_tuning_decide_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    study = study_of(tmp_path / "demo", lambda *at: against_it(*at) | {"falls": False}, ["grpo", "gspo"])
    for run in study.iterdir():
        change(run / "config.json", {"report.tuning": None, "algo.lr": 1e-9 if run.name.startswith("grpo") else 4e-4})
    row = rows(gspo_here, study)["reward_queries"]
    assert row["verdict"] == "inconclusive" and "neither arm was tuned" in row["decide"]
    assert "lr 1e-09 and 0.0004" in row["conditions"]


@pytest.mark.slow
def test_noise_decides_nothing_and_five_seeds_support_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    rng = np.random.default_rng(1)
    found = rows(gspo_here, study_of(tmp_path / "noise", lambda *_: {"reward": 0.5 + 0.1 * rng.normal(), "clip": 0.01}))
    for name in SEEN - {"clip_100x"}:
        assert found[name]["verdict"] == "inconclusive", name
        assert found[name]["decide"]
    assert "seeds would detect the margin" in found["reward_queries"]["decide"]
    found = rows(gspo_here, study_of(tmp_path / "five", for_it, seeds=5))
    assert {found[name]["verdict"] for name in SEEN} == {"inconclusive"}
    assert "at least 6 seeds" in found["reward_queries"]["decide"]


def test_what_a_study_lacks_is_named_with_the_command(dense: Path, gspo_here: Gspo) -> None:
    found = rows(gspo_here, dense)
    arms = ("sapo_gspo", "sampler_likelihoods", "clip_range", "grpo_needs_replay")
    for name in (*arms, "benchmark_aime24", "benchmark_livecodebench"):
        assert found[name]["verdict"] == "not_tested", name
        assert found[name]["decide"].startswith(("gspo train claims/", "gspo eval", "complete it")), found[name]
    assert found["churn_10"]["verdict"] == "not_tested" and "no experts" in found["churn_10"]["why"]
    for name in ("token_form", "noise_length"):
        assert found[name]["verdict"] == "not_tested" and "gspo report batch RUN/rollouts" in found[name]["decide"]
    assert found["benchmark_codeforces"]["verdict"] == "not_tested"
    assert "stable: supported here" in gspo_here("report", "claims", str(dense)).out
    side = json.loads((dense / "claims.sources.json").read_text())
    assert len(side["runs"]) == 16 and all(run["log"]["sha256"] for run in side["runs"])


def test_churn_is_judged_on_the_papers_model_alone(tmp_path: Path, gspo_here: Gspo) -> None:
    def verdict(churn: float | None, paper: bool, name: str) -> dict[str, Any]:
        study = study_of(tmp_path / name, lambda *_: {"churn": churn}, ["grpo", "gspo"], seeds=6)
        if paper:
            configure(study, {"model.path": "Qwen/Qwen3-30B-A3B-Base", "model.tiny": None})
        return dict(rows(gspo_here, study)["churn_10"])

    other = verdict(0.1, False, "tiny")
    assert other["verdict"] == "not_tested" and "% here" in other["why"]
    assert verdict(0.1, True, "in")["verdict"] == "supported"
    assert verdict(0.01, True, "out")["verdict"] == "contradicted"
    silent = verdict(None, True, "silent")
    assert silent["verdict"] == "not_tested" and "no run made an update" in silent["why"]


@pytest.mark.parametrize(("wide", "verdict"), [(1.0, "supported"), (100.0, "contradicted")])
def test_clip_ranges(tmp_path: Path, gspo_here: Gspo, wide: float, verdict: str) -> None:
    def shape(arm: str, _: int) -> dict[str, Any]:
        clip = 0.3 if arm.startswith("gspo") else 0.003
        return {"clip": clip / (wide if arm == "gspo_double" else 1)}

    study = study_of(tmp_path / "demo", shape, ["grpo", "grpo_double", "gspo", "gspo_double"], seeds=6)
    assert rows(gspo_here, study)["clip_range"]["verdict"] == verdict


def test_too_few_clipped_tokens_and_zero_ones(tmp_path: Path, gspo_here: Gspo) -> None:
    def few(arm: str, _: int) -> dict[str, Any]:
        return {"clip": 0.0 if arm == "grpo" else 0.3}

    found = rows(gspo_here, study_of(tmp_path / "demo", few, ["grpo", "gspo"], seeds=6))
    assert found["clip_more"]["verdict"] == "inconclusive" and "100 tokens" in found["clip_more"]["decide"]
    many = study_of(tmp_path / "other", lambda a, s: {"clip": 0.3 - few(a, s)["clip"]}, ["grpo", "gspo"], seeds=6)
    found = rows(gspo_here, many)
    assert found["clip_more"]["verdict"] == "contradicted" and np.isfinite(found["clip_more"]["value"])


def test_runs_that_are_not_comparable_are_not_tested(tmp_path: Path, dense: Path, gspo_here: Gspo) -> None:
    study = Path(shutil.copytree(dense, tmp_path / "demo"))
    end(study / "gspo-s0", "interrupted")
    put(study / "grpo-s1" / "invalidated.json", {"reason": "x"})
    found = rows(gspo_here, study)
    assert found["reward_queries"]["verdict"] == "not_tested" and "status" in found["reward_queries"]["why"]


def measured_batches(study: Path, slope: Callable[[str, int], float], form: dict[str, Any] | None = None) -> None:
    """What `gspo report batch` leaves beside each run's stored batch; `slope`: of an algorithm's noise, by seed."""
    for run in study.glob("*-s*"):
        seed, batch = int(run.name.rpartition("-s")[2]), run / "rollouts" / "step_000001.parquet"
        batch.parent.mkdir()
        batch.write_text(run.name)
        slopes = {name: slope(name, seed) for name in ("grpo", "gspo", "reinforce")}
        about = {"rollout": str(batch), "rollout_sha256": hashlib.sha256(batch.read_bytes()).hexdigest()}
        exact = {"loss": 0.0, "gradient": 3e-16, "masks_equal": True} | (form or {})
        found = about | {"model_sha256": "m", "length_noise": {"slopes": slopes}, "token_form": exact}
        put(batch.parent / "batch-report" / "batch.json", found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "seeds", "verdict"),
    [
        ({"grpo": -0.5, "gspo": -0.9, "reinforce": -0.8}, 8, "supported"),
        ({"grpo": -0.9, "gspo": -0.5, "reinforce": -0.8}, 8, "contradicted"),
        ({"grpo": -0.5, "gspo": -0.9, "reinforce": -0.5}, 8, "inconclusive"),  # not above what has no ratio
        ({"grpo": -0.5, "gspo": -0.9, "reinforce": -0.8}, 5, "inconclusive"),
    ],
)
def test_noise_by_length(tmp_path: Path, gspo_here: Gspo, levels: dict[str, float], seeds: int, verdict: str) -> None:
    study, rng = study_of(tmp_path / "demo", for_it, ["grpo", "gspo"], seeds=seeds, moe=False), np.random.default_rng(3)
    measured_batches(study, lambda name, _: levels[name] + 0.02 * rng.normal())
    row = rows(gspo_here, study)["noise_length"]
    assert (row["verdict"], row["n"]) == (verdict, seeds)
    assert set(row["p_adjusted"]) == {"t", "t_second"}
    assert row["value"] == pytest.approx(levels["grpo"] - levels["gspo"], abs=0.03)
    assert row["second"]["value"] == pytest.approx(levels["grpo"] - levels["reinforce"], abs=0.03)


@pytest.mark.parametrize(
    ("form", "verdict"),
    [(None, "supported"), ({"gradient": 1e-6}, "contradicted"), ({"masks_equal": False}, "contradicted")],
)
def test_the_token_form_is_exact(tmp_path: Path, gspo_here: Gspo, form: dict[str, Any] | None, verdict: str) -> None:
    study = study_of(tmp_path / "demo", for_it, ["grpo", "gspo"], seeds=1, moe=False)
    measured_batches(study, lambda *_: -1.0, form)
    row = rows(gspo_here, study)["token_form"]
    assert row["verdict"] == verdict and "on 2 stored batches" in row["why"]
    (study / "gspo-s0" / "rollouts" / "step_000001.parquet").write_text("another")
    assert gspo_here("report", "claims", str(study)).code == 6  # numbers of a batch that is no longer there


def test_codeforces_elo(tmp_path: Path, gspo_here: Gspo) -> None:
    study = study_of(tmp_path / "demo", lambda *at: for_it(*at) | {"falls": False}, ["grpo", "gspo"], moe=False)
    for ahead, verdict in ((60, "supported"), (-60, "contradicted"), (0, "inconclusive")):
        rng = np.random.default_rng(6)
        for run in sorted(study.glob("*-s*")):
            rating = 1200 + ahead * run.name.startswith("gspo") + int(rng.integers(-12, 13))
            write_answers(run, [1, 2], k=2, bench="codeforces", more={"contest_elo": {"elo": rating}})
        assert rows(gspo_here, study)["benchmark_codeforces"]["verdict"] == verdict


def test_no_claim_concerns_one_arm_or_another_task(tmp_path: Path, gspo_here: Gspo) -> None:
    one = study_of(tmp_path / "one", lambda *_: {}, arms=("grpo",), seeds=1, moe=False)
    other = study_of(tmp_path / "other", lambda *_: {}, arms=("grpo", "gspo"), seeds=1)
    configure(other, {"task.name": "my_task:Mine"})
    for study in (one, other):
        assert gspo_here("report", "claims", study).out.startswith("No claim concerns this study")
        assert json.loads((study / "claims.json").read_text())["rows"] == []
