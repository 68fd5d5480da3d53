"""Equal tuning: the same trials for every arm, on seeds of their own, recorded with their cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo

from gspo_cli import recipe
from gspo_cli.errors import GspoError
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.training.study.tuning import expand, parse_grid, with_tuning


def test_every_arm_gets_every_point_of_the_grid() -> None:
    grid = parse_grid(["algo.lr=5e-5,1e-4", "algo.clip.high=0.3,0.4"])
    assert grid == {"lr": [5e-5, 1e-4], "clip.high": [0.3, 0.4]}
    filled, labels, trials = expand(recipe.load("quickstart"), ["grpo", "gspo"], grid)
    assert labels == [f"{arm}.{n}" for arm in ("grpo", "gspo") for n in (1, 2, 3, 4)]
    runs = {run.arm: run.recipe.algo for run in plan_runs(filled, labels, [100])}
    assert (runs["gspo.3"].name, runs["gspo.3"].lr, runs["gspo.3"].params["clip"]["high"]) == ("gspo", 1e-4, 0.3)
    assert runs["gspo.3"].params["clip"]["low"] == 3e-4  # what the grid does not name stays published
    assert trials["grpo.2"] == {"arm": "grpo", "chosen": {"lr": 5e-5, "clip.high": 0.4}}


@pytest.mark.parametrize("text", ["algo.lr=1e-4", "train.lr=1e-4,2e-4", "algo.lr", "algo.lr=,"])
def test_what_is_no_grid(text: str) -> None:
    with pytest.raises(GspoError, match="is not a grid"):
        parse_grid([text])


def test_what_chose_a_setting_cannot_test_it(tmp_path: Path) -> None:
    own = {"trials": 2, "seeds": [100], "chosen": {"lr": 5e-5}, "gen_tokens": 9.0, "seconds": 1.0, "study": "t"}
    (tmp_path / "tuning.json").write_text(json.dumps({"arms": {"gspo": own | {"scores": []}}}))
    loaded = recipe.load("quickstart")
    with pytest.raises(GspoError, match="seed 100 was used to tune gspo"):
        with_tuning(loaded, ["gspo"], [99, 100], tmp_path)
    with pytest.raises(GspoError, match="no arm 'grpo'"):
        with_tuning(loaded, ["gspo", "grpo"], [0], tmp_path)
    (run,) = plan_runs(with_tuning(loaded, ["gspo"], [0], tmp_path), ["gspo"], [0])
    assert run.recipe.algo.lr == 5e-5 and run.recipe.report.tuning["gspo"].trials == 2


@pytest.mark.slow
def test_from_the_grid_to_the_comparison(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    both = ("train", smoke, "--algo", "grpo,gspo", "--out", tmp_path, "--set", "eval.bench=[]")
    done = gspo_here(*both, "--grid", "algo.lr=1e-5,1e-3", "--seeds", "100", "--name", "tuning", "--jobs", "2")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "tuning" / "tuning.json").read_text())["arms"]
    for arm in ("grpo", "gspo"):
        assert (found[arm]["trials"], found[arm]["seeds"], len(found[arm]["scores"])) == (2, [100], 2)
        scores = [s["score"] for s in found[arm]["scores"]]
        assert scores == sorted(scores, reverse=True)
        assert found[arm]["chosen"]["lr"] == found[arm]["scores"][0]["lr"]
        assert found[arm]["gen_tokens"] > 0 and found[arm]["seconds"] > 0
    done = gspo_here(*both, "--tuned", tmp_path / "tuning", "--seeds", "0,1,2", "--name", "study", "--jobs", "2")
    assert done.code == 0, done.err
    config = json.loads((tmp_path / "study" / "gspo-s1" / "config.json").read_text())
    assert config["algo"]["lr"] == found["gspo"]["chosen"]["lr"]
    assert config["report"]["tuning"]["grpo"]["seeds"] == [100]
    text = gspo_here("report", "compare", tmp_path / "study").out
    assert "grpo: 2 trials on seeds [100], chose lr =" in text and " tokens and " in text
    compared = json.loads(gspo_here("report", "compare", tmp_path / "study", "--json").out)
    assert compared["tuning"]["gspo"]["chosen"] == found["gspo"]["chosen"]


@pytest.mark.slow
def test_a_process_of_its_own_trains_the_same_bytes(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    args = ("train", smoke, "--algo", "grpo,gspo", "--out", tmp_path, "--set", "model.threads=1")
    alone, beside = gspo_here(*args, "--name", "alone"), gspo_here(*args, "--name", "beside", "--jobs", "2", "--json")
    assert (alone.code, beside.code) == (0, 0), beside.err
    for run in ("grpo-s0", "gspo-s0"):
        logs = [(tmp_path / name / run / "metrics.jsonl").read_bytes() for name in ("alone", "beside")]
        assert logs[0] == logs[1]
    assert [json.loads(line)["arm"] for line in beside.out.splitlines()] == ["grpo", "gspo"]
    assert "run=gspo-s0 step=2/2" in beside.err and "left=" in beside.err


def test_a_run_that_collapses_stays_and_the_others_are_trained(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    """Any fall counts here: the first arm's reward is never above its best."""
    rule = [*(f"report.collapse.{key}=0" for key in ("below", "least", "noise")), "train.stop_on_collapse=true"]
    rule += ["train.steps=6"]
    sets = [part for key in (*rule, "eval.bench=[]") for part in ("--set", key)]
    done = gspo_here("train", smoke, "--algo", "grpo,gspo", "--out", tmp_path, "--name", "demo", *sets)
    assert done.code in (0, 4), done.err
    ends = {}
    for run in ("grpo-s0", "gspo-s0"):
        events = [json.loads(line) for line in (tmp_path / "demo" / run / "events.jsonl").read_text().splitlines()]
        ends[run] = events[-1]["status"]
        assert (ends[run] == "failed") == any(e["event"] == "collapsed" for e in events)
    assert (done.code == 4) == ("failed" in ends.values())
    assert "failed" in ends.values()


@pytest.mark.slow
def test_a_start_model_per_seed_is_trained_and_shared_by_the_arms(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    sets = [part for key in ("cold_start.per_seed=true", "train.steps=1", "eval.bench=[]") for part in ("--set", key)]
    done = gspo_here(
        "train", smoke, "--algo", "grpo,gspo", "--seeds", "0,1", "--out", tmp_path, "--name", "demo", *sets
    )
    assert done.code == 0, done.err
    start = {
        run.name: json.loads((run / "run.json").read_text())["model_sha256"] for run in (tmp_path / "demo").glob("*-s*")
    }
    assert start["grpo-s0"] == start["gspo-s0"] != start["grpo-s1"] == start["gspo-s1"]
