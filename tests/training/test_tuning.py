"""Equal tuning: the same trials for every arm, on seeds of their own, recorded with their cost."""

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, ok

from gspo_cli import recipe
from gspo_cli.errors import GspoError
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.training.study.tuning import Axis, expand, join_stages, parse_grid, parse_halving, survivors, with_tuning


def test_every_arm_gets_every_point_of_the_grid() -> None:
    grid = parse_grid(["algo.lr=5e-5,1e-4", "algo.clip.high=0.3,0.4"])
    assert grid == [Axis(None, "lr", [5e-5, 1e-4]), Axis(None, "clip.high", [0.3, 0.4])]
    filled, labels, trials = expand(recipe.load("quickstart"), ["grpo", "gspo"], grid)
    assert labels == [f"{arm}.{n}" for arm in ("grpo", "gspo") for n in (1, 2, 3, 4)]
    runs = {run.arm: run.recipe.algo for run in plan_runs(filled, labels, [100])}
    assert (runs["gspo.3"].name, runs["gspo.3"].lr, runs["gspo.3"].params["clip"]["high"]) == ("gspo", 1e-4, 0.3)
    assert runs["gspo.3"].params["clip"]["low"] == 3e-4  # what the grid does not name stays published
    assert trials["grpo.2"] == {"arm": "grpo", "chosen": {"lr": 5e-5, "clip.high": 0.4}}


def test_an_axis_of_one_arm_and_tables_that_leave_a_key_out() -> None:
    texts = [
        "algo.lr=1e-4,2e-4",
        "arms.grpo={},{dual_clip=3}",
        "arms.gspo.clip={low=3e-4,high=4e-4},{low=0.2,high=0.27}",
    ]
    filled, labels, trials = expand(recipe.load("quickstart"), ["grpo", "gspo", "reinforce"], parse_grid(texts))
    assert labels == [*(f"{arm}.{n}" for arm in ("grpo", "gspo") for n in (1, 2, 3, 4)), "reinforce.1", "reinforce.2"]
    runs = {run.arm: run for run in plan_runs(filled, labels, [100])}
    assert [runs[f"grpo.{n}"].params.dual_clip for n in (1, 2, 3, 4)] == [None, 3, None, 3]
    assert [runs[f"gspo.{n}"].params.clip.low for n in (1, 2, 3, 4)] == [3e-4, 0.2, 3e-4, 0.2]
    assert [runs[f"gspo.{n}"].recipe.algo.lr for n in (1, 2, 3, 4)] == [1e-4, 1e-4, 2e-4, 2e-4]
    assert trials["grpo.1"]["chosen"] == {"lr": 1e-4} and trials["gspo.4"]["chosen"]["clip.high"] == 0.27
    with pytest.raises(GspoError, match="names the arm 'sapo'"):
        expand(recipe.load("quickstart"), ["grpo"], parse_grid(["arms.sapo.lr=1e-4,2e-4"]))


@pytest.mark.parametrize(
    "text",
    ["algo.lr=1e-4", "train.lr=1e-4,2e-4", "algo.lr", "algo.lr=,", "arms=1,2", "arms.grpo=1,2", "algo=3,{lr=1e-4}",
     "arms.=1,2", "algo.lr=1e-4,2e-4,0.0001"],
)  # fmt: skip
def test_what_is_no_grid(text: str) -> None:
    with pytest.raises(GspoError, match=r"is not a grid|has a value twice"):
        parse_grid([text])


FORTY = ",".join(map(str, range(1, 41)))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["algo.lr=1e-4,2e-4", "algo.lr=3e-4,4e-4"], "sets lr of grpo twice"),
        (["algo.lr=1e-4,2e-4", "arms.grpo.lr=3e-4,4e-4"], "sets lr of grpo twice"),
        (["algo.clip.low=0.1,0.2", "arms.grpo={},{clip={low=0.3,high=0.4}}"], "sets clip.low of grpo twice"),
        (["algo.name=grpo,gspo"], "tries algorithms"),
        ([f"algo.lr={FORTY}", f"algo.clip.high={FORTY}"], "more than 1000 trials"),
    ],
)
def test_grids_that_do_not_go_together_are_refused(texts: list[str], why: str) -> None:
    with pytest.raises(GspoError, match=why):
        expand(recipe.load("quickstart"), ["grpo", "gspo"], parse_grid(texts))


def test_arms_share_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shared_folder.py").write_text("from gspo_cli.algorithms import grpo as algorithm\n")
    loaded = recipe.load("quickstart", {}, ['arms={shared_folder-algorithm={name="grpo"}}'])
    with pytest.raises(GspoError, match="would share the run folder"):
        plan_runs(loaded, ["shared_folder-algorithm", "shared_folder:algorithm"], [0])


def stage(arm: str, order: list[int], seeds: list[int]) -> dict[str, Any]:
    scores = [{"trial": f"{arm}.{n}", "score": 1 / (place + 1)} for place, n in enumerate(order)]
    chosen = {"lr": order[0]}
    return {arm: {"scores": scores, "seeds": seeds, "chosen": chosen, "gen_tokens": 10.0, "seconds": 1.0, "trials": 0}}


def test_a_stage_keeps_a_third_and_at_least_two() -> None:
    """16 trials, then 5, then 2; 4 trials, then 2, and no third stage."""
    assert survivors(stage("a", [3, *range(4, 17), 1, 2], [0])) == ["a.3", "a.4", "a.5", "a.6", "a.7"]
    assert survivors(stage("a", [5, 4, 3, 2, 1], [0])) == ["a.5", "a.4"]
    assert survivors(stage("a", [2, 1, 4, 3], [0]) | stage("b", [2, 1], [0])) == ["a.2", "a.1"]
    assert survivors(stage("a", [2, 1], [0])) == []


def test_the_last_stage_decides_and_every_stage_costs() -> None:
    first, second = stage("a", [2, 1, 4, 3], [7]) | stage("b", [1, 2], [7]), stage("a", [1, 2], [7, 8])
    joined = join_stages([first, second])
    assert joined["a"]["chosen"] == {"lr": 1} and [row["trial"] for row in joined["a"]["scores"]] == [
        "a.1", "a.2", "a.4", "a.3"
    ]  # fmt: skip
    assert (joined["a"]["trials"], joined["a"]["seeds"], joined["a"]["gen_tokens"]) == (4, [7, 8], 20.0)
    assert (joined["b"]["trials"], joined["b"]["seeds"], joined["b"]["chosen"]) == (2, [7], {"lr": 1})


@pytest.mark.parametrize("text", ["30", "60,30", "30,30", "0,30", "30,x", "", "30,-60", "30,60.5"])
def test_what_are_no_stages(text: str) -> None:
    with pytest.raises(GspoError, match="is not a list of stages"):
        parse_halving(text, [1, 2, 3])


def test_each_stage_needs_a_seed() -> None:
    assert parse_halving("30,60", [100, 101, 102]) == [30, 60]
    with pytest.raises(GspoError, match="adds one"):
        parse_halving("30,60,120", [100, 101])


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
    ok(gspo_here(*both, "--grid", "algo.lr=1e-5,1e-3", "--seeds", "100", "--name", "tuning", "--jobs", "2"))
    found = json.loads((tmp_path / "tuning" / "tuning.json").read_text())["arms"]
    for arm in ("grpo", "gspo"):
        assert (found[arm]["trials"], found[arm]["seeds"], len(found[arm]["scores"])) == (2, [100], 2)
        scores = [s["score"] for s in found[arm]["scores"]]
        assert scores == sorted(scores, reverse=True)
        assert found[arm]["chosen"]["lr"] == found[arm]["scores"][0]["lr"]
        assert found[arm]["gen_tokens"] > 0 and found[arm]["seconds"] > 0
    ok(gspo_here(*both, "--tuned", tmp_path / "tuning", "--seeds", "0,1", "--name", "study"))
    config = json.loads((tmp_path / "study" / "gspo-s1" / "config.json").read_text())
    assert config["algo"]["lr"] == found["gspo"]["chosen"]["lr"]
    assert config["report"]["tuning"]["grpo"]["seeds"] == [100]
    assert found["gspo"]["conditions"]["algo.clip.low"] == 3e-4 and "train.steps" not in found["gspo"]["conditions"]
    compared = json.loads(gspo_here("report", "compare", tmp_path / "study", "--json").out)
    assert compared["tuning"]["gspo"]["chosen"] == found["gspo"]["chosen"]
    assert compared["settings"]["tuned_elsewhere"] == ""
    tuned = (*both, "--tuned", tmp_path / "tuning", "--seeds", "0", "--name", "noisy")
    assert gspo_here(*tuned, "--set", "noise.token=1").code == 0
    compared = json.loads(gspo_here("report", "compare", tmp_path / "noisy", "--json").out)
    assert compared["settings"]["tuned_elsewhere"] == "learning rates tuned at noise.token=0 instead of 1"


@pytest.mark.slow
def test_halving_goes_on_where_it_stopped_and_takes_more_trials(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("eval.bench=[]", "report.metric=reward/mean:last@1", "arms.gspo.clip.low=1e-3")
    sets = [part for key in keys for part in ("--set", key)]
    where = ("train", smoke, "--out", tmp_path, "--algo", "grpo,gspo")
    command = (*where, "--halving", "1,2", "--seeds", "100,101", *sets)
    clip = ("--grid", "arms.gspo.clip.high=4e-4,0.2")
    ok(gspo_here(*command, "--name", "whole", "--grid", "algo.lr=1e-5,1e-3,1e-2", *clip))
    wanted = json.loads((tmp_path / "whole" / "tuning.json").read_text())
    assert [len(wanted["arms"][arm]["scores"]) for arm in ("grpo", "gspo")] == [3, 6]
    for config in (tmp_path / "whole").glob("stage-?/gspo.*/config.json"):
        assert json.loads(config.read_text())["algo"]["clip"]["low"] == 1e-3
    batches = [row["batches"] for row in wanted["arms"]["gspo"]["scores"]]
    assert batches == [2, 2, 1, 1, 1, 1] and wanted["arms"]["gspo"]["seeds"] == [100, 101]

    with monkeypatch.context() as stopped:  # after the first trial
        stopped.setattr("gspo_cli.cli.train.execute.report_run", interrupt)
        assert gspo_here(*command, "--name", "parts", "--grid", "algo.lr=1e-5,1e-3", *clip).code == 130
    assert gspo_here("train", "--resume", tmp_path / "parts").code == 0
    ok(gspo_here(*command, "--name", "parts", "--grid", "algo.lr=1e-5,1e-3,1e-2", *clip))
    found = json.loads((tmp_path / "parts" / "tuning.json").read_text())
    for table in (wanted, found):
        for arm in table["arms"].values():
            arm.pop("seconds"), arm.pop("study")
    assert found == wanted
    grid = ("--grid", "algo.lr=1e-5,1e-3,1e-2", *clip)
    for other in (
        ("--grid", "algo.lr=1e-4,1e-3", *clip), (*grid, "--set", "train.grad_clip=0.1"), (*grid, "--halving", "1,3"),
        (*grid, "--seeds", "100,102"),
    ):  # fmt: skip
        changed = gspo_here(*command, "--name", "parts", *other)
        assert changed.code == 2 and "holds another tuning" in changed.err


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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
    rule += ["train.steps=6", "rollout.samples=8"]
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


@pytest.mark.parametrize("text", ["[]", "null", '{"arms": 3}', '{"arms": {"grpo": 3}}', "[" * 100_000])
def test_a_damaged_tuning_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tuning.json").write_text(text)
    with pytest.raises(GspoError, match="holds no finished tuning"):
        with_tuning(recipe.load("quickstart"), ["grpo"], [0], tmp_path)
