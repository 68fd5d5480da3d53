"""Settings that would change nothing, or nothing good, are refused before a model is loaded."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from program import Gspo, check_refused, ok, refusal, write_rows

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec
from gspo_cli.config import Recipe, TaskConfig
from gspo_cli.recipe import load
from gspo_cli.rollout.collect import credit
from gspo_cli.tasks import read_problems
from gspo_cli.tasks.data import read_source
from gspo_cli.tasks.own_data import OwnData
from gspo_cli.training.guards import SignalWatch
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.training.study.checks import check_combination
from gspo_cli.training.study.inputs import read_inputs
from gspo_cli.types import Problem, Sample, Score


def checked(*sets: str) -> None:
    """The checks of a recipe's first arm."""
    recipe = load("quickstart", {}, sets)
    (run,) = plan_runs(recipe, [recipe.algo.name], [0])
    check_combination(run.recipe, run.algorithm, run.params)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("algo.correction={kind='icepop', low=6.0}", "from 6 to 5"),
        ("algo.correction={kind='seq_mask', low=1.2, high=1.1}", "from 1.2 to 1.1"),
        ("algo.correction={kind='tis', low=1.5}", "tis has no lower bound"),
        ("algo.correction={kind='opsm', low=5.0}", "opsm has no lower bound"),
        ("algo.correction={high=1e-9}", "a bound and no kind"),
        ("checkpoint.best=foo/bar", "no metric 'foo/bar'"),
        ("checkpoint.best=arithmetic/avg@4", "no value per rollout batch"),
        ("algo.clip.high=1e308", "at most 1e+09"),
    ],
)
def test_what_would_change_nothing_is_refused(settings: str, said: str) -> None:
    assert said in refusal(checked, settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("task.name=data", "task.guesses=0.9"), "task.guesses is no key of the task 'data'"),
        (("task.name=gsm8k", "task.path=HERE", "task.revision=main"), "task.revision = 'main' with the local"),
        (("model.path=HERE", "model.revision=main"), "model.revision = 'main' with the local"),
    ],
)
def test_what_the_data_or_the_model_does_not_read_is_refused(
    settings: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    recipe = load("quickstart", {}, [setting.replace("HERE", str(tmp_path)) for setting in settings])
    assert said in refusal(read_inputs, recipe)


def test_what_has_an_effect_is_taken() -> None:
    for settings in ("algo.correction={kind='icepop', low=0.1, high=9.0}", "algo.correction={kind='opsm', high=0.1}",
                     "checkpoint.best=grad/norm", "algo.correction.kind=tis"):  # fmt: skip
        checked(settings)


def test_algorithms_of_one_ratio_a_response_take_no_credits() -> None:
    """A clip of whole responses would give one token another's credit."""
    specs = {name: AlgorithmSpec.of(module) for name, module in ALGORITHMS.items()}
    assert {name for name, spec in specs.items() if spec.ONE_ADVANTAGE} == {"gspo", "gmpo", "gepo", "luspo"}


class Credits:
    """A task that gives the factors it was made with."""

    def __init__(self, factors: list[Any]) -> None:
        self.factors = factors

    def problems(self, _split: str) -> list[Problem]:
        """One."""
        return [Problem("p", "x", "y")]

    def reward(self, _problem: Problem, _text: str) -> Score:
        """None of interest."""
        return Score(0.0, "")

    def token_credits(self, _problem: Problem, _tokens: list[str]) -> list[Any]:
        """What is tested."""
        return self.factors


@pytest.mark.parametrize("factor", [math.nan, math.inf, "1", None])
def test_credits_that_are_no_numbers_are_named(factor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.rollout.collect.pieces", lambda *_: ["a", "b"])
    sample = Sample("p", 0, 0, (1, 2), (-0.1, -0.1), "stop", 0)
    problem, tokenizer = Problem("p", "x", "y"), object()
    assert credit(Credits([1, 0.5]), tokenizer, problem, (sample,)) == ((1.0, 0.5),)  # type: ignore[arg-type]
    assert "token_credits gave 2" in refusal(credit, Credits([1, factor]), tokenizer, problem, (sample,))


@pytest.mark.parametrize("answer", [3, None])
def test_an_answer_that_is_no_text_is_refused(answer: Any) -> None:
    class Numbers(Credits):
        def problems(self, _split: str) -> list[Problem]:
            return [Problem("p", "x", answer)]

    assert "all three texts" in refusal(read_problems, Numbers([]), TaskConfig())


def test_files_named_after_splits_are_told_apart(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "test"):
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": name}])
    rows = {
        split: [row["prompt"] for _, row in read_source(str(tmp_path), None, split)[1]] for split in ("train", "test")
    }
    assert rows == {"train": ["train-0", "train-1"], "test": ["test"]}
    assert "task.split = nosuch" in refusal(read_source, str(tmp_path), None, "nosuch")
    one = str(tmp_path / "test.jsonl")
    assert len(read_source(one, None, "train")[1]) == 1 and "without splits" in refusal(read_source, one, None, "test")
    saved = tmp_path / "saved"
    DatasetDict({"part": Dataset.from_list([{"prompt": "p"}])}).save_to_disk(str(saved))
    task = OwnData(TaskConfig(name="data", path=str(saved), split="part", held_out=one, template="{prompt}"))
    assert [problem.prompt for problem in task.problems("held_out")] == ["test"]
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("a", "b"):
        write_rows(plain / f"{name}.jsonl", [{"prompt": name}])
    assert len(read_source(str(plain), None, "train")[1]) == 2


def test_a_row_without_the_answer_that_its_reward_reads_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    del rows[5]["answer"]
    data = str(write_rows(tmp_path / "rows.jsonl", rows))
    tasks = {name: OwnData(TaskConfig(name="data", path=data, reward=name)) for name in ("exact", "json", "my:own")}
    assert "line 6 has no 'answer'" in refusal(tasks["exact"].problems, "train")
    assert len(tasks["json"].problems("train")) == len(tasks["my:own"].problems("train")) == 8


@pytest.mark.parametrize(
    ("zero_std", "truncation", "said"),
    [(0.0, "keep", "every response with an advantage is left out"), (0.0, "mask", "leaves them out"),
     (1.0, "keep", "got the same")],
)  # fmt: skip
def test_the_cause_of_no_update_is_the_real_one(zero_std: float, truncation: str, said: str) -> None:
    seen: list[Any] = []
    recipe = Recipe.model_validate({"name": "r", "model": {"tiny": {}}, "algo": {"truncation": truncation}})
    values = {"update/applied": 0.0, "reward/mean": 0.5, "length/truncated_frac": 1.0, "group/zero_std_frac": zero_std}
    SignalWatch(recipe, seen.append).observe(1, values)
    assert said in str(seen[0])


def test_a_cold_start_that_diverges_or_is_too_long_caches_nothing(
    tmp_path: Path, gspo_here: Gspo, smoke: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPO_CACHE", str(tmp_path / "cache"))
    short = write_rows(tmp_path / "short.jsonl", [{"prompt": "1+1=", "response": "2"}])
    long = write_rows(tmp_path / "long.jsonl", [{"prompt": "1+1=", "response": "1" * 5000}])
    command = ("train", smoke, "--out", tmp_path, "--set", "cold_start.steps=10", "--set", "eval.bench=[]")
    for data, lr, said in ((short, "1e30", "lower cold_start.lr"), (long, "1e-3", "4096 positions")):
        done = gspo_here(*command, "--set", f"cold_start.path={data}", "--set", f"cold_start.lr={lr}")
        check_refused(done, said)
        assert not list((tmp_path / "cache" / "cold-start").glob("[0-9a-f]*/config.json"))


def test_a_run_that_sampled_ahead_is_not_made_longer(tmp_path: Path, gspo_here: Gspo, smoke: Path) -> None:
    lag = (
        "--set",
        "rollout.max_lag=1",
        "--set",
        "algo.old_log_probs=sampler",
        "--set",
        "algo.accept_mismatch_floor=true",
    )
    keep = ("--set", "eval.bench=[]", "--set", "checkpoint.keep_optimizer=true")
    ok(gspo_here("train", smoke, *lag, *keep, "--steps", "1", "--out", tmp_path, "--name", "s"))
    longer = ("train", "--resume", tmp_path / "s", "--steps", "2", "--allow-change", "train.steps")
    check_refused(gspo_here(*longer), "sampled no further than rollout batch 1", "train anew")
    run = json.loads(next(tmp_path.glob("s/*/run.json")).read_text())
    assert run["planned_steps"] == 1
