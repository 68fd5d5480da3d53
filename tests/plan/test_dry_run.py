"""`gspo train --dry-run`: what it prints, what it writes (nothing), and how it ends."""

import json
from pathlib import Path

import pytest
from program import Gspo, check_refused, ok

from gspo_cli import recipe as recipes
from gspo_cli.models.tiny import byte_tokenizer
from gspo_cli.plan.architecture import PUBLISHED, architecture_of
from gspo_cli.plan.plan import Plan, make_plan, remedies
from gspo_cli.training.study.arms import plan_runs

REAL = [name for name in recipes.names() if not name.startswith("claims/") and recipes.load(name).cluster]
BIG = "real/qwen3-30b-a3b-8xh200"


def planned(name: str, *sets: str, arm: str = "gspo") -> Plan:
    """The plan of one arm of a shipped recipe."""
    loaded = recipes.load(name, {}, sets)
    [run] = plan_runs(loaded, [arm], [0], here=False)
    return make_plan(run.recipe, architecture_of(loaded.model)[0])


@pytest.mark.parametrize("name", REAL)
def test_every_recipe_for_a_real_model_fits_its_machine(name: str) -> None:
    loaded = recipes.load(name)
    assert str(loaded.model.path).removesuffix("-Base") in PUBLISHED and loaded.cluster
    assert (loaded.model.dtype, loaded.model.compute) == ("float32", "bfloat16")
    assert loaded.rollout.engine != "vllm" or loaded.rollout.vllm.dtype == "bfloat16"
    for arm in loaded.arms or [loaded.algo.name]:
        found = planned(name, arm=arm)
        assert found.fits and not found.warnings(), [*found.faults(), *found.warnings()]
        assert 0.5 < found.peak / (found.available or 0) < 1, "a machine that is twice too large"


def test_it_says_what_is_needed_and_writes_nothing(
    gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPO_CACHE", str(tmp_path / "cache"))
    done = ok(gspo_here("train", BIG, "--dry-run", "--seeds", "0-1", "--out", tmp_path, "--name", "later"))
    assert not any(tmp_path.iterdir())
    for said in ("6 runs of 400 rollout batches", "grpo_r2-s1", "30.53 B parameters", "8 x H200", "KV cache"):
        assert said in done.out, said


def test_json_is_one_object_with_the_same_numbers(gspo_here: Gspo) -> None:
    done = gspo_here("train", BIG, "--dry-run", "--json", "--name", "x")
    [line] = done.out.splitlines()
    said = json.loads(line)
    assert said["fits"] and said["model"]["parameters"] == 30_532_122_624 and said["steps"] == 400
    assert set(said["arms"]) == {"grpo", "grpo_r2", "gspo"}
    found = planned(BIG)
    assert said["arms"]["gspo"]["peak"] == pytest.approx(found.peak)
    for phase in said["arms"]["gspo"]["phases"]:
        assert 0 < phase["limit_s"] <= phase["low_s"] < phase["high_s"]


def test_a_remedy_helps() -> None:
    name, loaded = "real/qwen3-1.7b", recipes.load("real/qwen3-1.7b")
    model = architecture_of(loaded.model)[0]
    for sets in (["train.recompute=false"], ["cluster.gpu=rtx4090"], ["rollout.kv_budget_gb=80"]):
        small = recipes.load(name, {}, sets)
        assert not make_plan(small, model).fits
        found = remedies(small, model)
        assert found
        for remedy in found:
            assert make_plan(recipes.load(name, {}, [*sets, remedy.removeprefix("--set ")]), model).fits, remedy


def test_steps_that_bfloat16_would_lose_are_warned_of() -> None:
    lost = planned("math-qwen3-4b", "model.dtype=bfloat16").warnings()
    assert any("bfloat16 parameters" in line for line in lost)
    assert not any("bfloat16 parameters" in line for line in planned("math-qwen3-4b").warnings())
    [idle] = planned("real/qwen3-1.7b", "model.compute=float32").warnings()
    assert "tensor cores idle" in idle and "model.compute=bfloat16" in idle
    assert any("16384" in line for line in planned("real/qwen3-4b-8gpu", "train.micro_batch_tokens=8448").warnings())


def test_a_model_that_cannot_be_counted_is_refused(gspo_here: Gspo, tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    plan = ("train", "gsm8k", "--dry-run", "--model")
    check_refused(gspo_here(*plan, tmp_path), "cannot count a model of type 'gpt2'")
    check_refused(gspo_here(*plan, "some/thing"), "cannot read the configuration of some/thing")


def test_a_kl_penalty_and_a_critic_take_memory_of_their_own() -> None:
    plain = planned("real/qwen3-0.6b").memory["training"]
    with_kl = planned("real/qwen3-0.6b", "algo.kl.coef=0.01").memory["training"]
    assert with_kl["reference model"] == plain["weights"] == 4 * 596_049_920
    assert planned("real/qwen3-0.6b", arm="ppo").memory["training"]["critic"] == 4 * plain["weights"]


def test_weights_divided_within_machines_take_the_memory_of_one_machine() -> None:
    two = "real/qwen3-30b-a3b-16xh100"
    everywhere, within = planned(two), planned(two, "train.divide=machine")
    for part in ("weights", "gradients", "optimizer"):
        assert within.memory["training"][part] == 2 * everywhere.memory["training"][part]
    assert not within.fits and "--set train.divide=all" in remedies(within.workload.recipe, within.workload.model)
