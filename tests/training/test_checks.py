"""Combinations that the mathematics forbids are refused with the reason; the algorithms' presets apply."""

from typing import Any

import pytest

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.ranks import Ranks
from gspo_cli.training.checks import check_ranks
from gspo_cli.training.study import plan, resolve_arm


def recipe(algo: dict[str, Any] | None = None, **tables: Any) -> Recipe:
    return Recipe.model_validate({"name": "t", "model": {"tiny": {}}, "algo": algo or {}} | tables)


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
        ({"name": "gspo", "reduction": "token-mean"}, "LUSPO"),
        ({"name": "luspo", "reduction": "token-mean"}, "already holds the mean"),
        ({"name": "grpo", "reduction": "token-mean"}, "dapo"),
        ({"name": "minirl", "correction": {"kind": "tis"}}, "already weighs"),
        ({"name": "gspo", "old_log_probs": "sampler", "correction": {"kind": "tis"}}, "already holds the mismatch"),
        ({"name": "reinforce", "minibatches": 4}, "stale"),
        ({"name": "grpo", "dual_clip": 0.9}, "from above"),
        ({"name": "ppo", "dynamic_sampling": True}, "critic"),
    ],
)
def test_forbidden(algo: dict[str, Any], reason: str) -> None:
    with pytest.raises(GspoError) as caught:
        resolve_arm(recipe(algo), algo["name"])
    assert reason in caught.value.why + caught.value.hint


def test_allowed_neighbours_of_the_forbidden() -> None:
    for algo in (
        {"name": "gspo", "reduction": "seq-mean"},
        {"name": "gspo", "correction": {"kind": "tis"}},
        {"name": "reinforce", "minibatches": 4, "allow_stale": True},
        {"name": "grpo", "dual_clip": 3.0},
        {"name": "gspo", "old_log_probs": "sampler"},
    ):
        resolve_arm(recipe(algo), str(algo["name"]))


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_cut_distributions_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="two different supports"):
        recipe(rollout={key: 0.9})


@pytest.mark.parametrize(("name", "low", "high"), [("gspo", 4e-4, -1.0), ("gspo", 0.0, 4e-4), ("grpo", 1.0, 0.2)])
def test_clip_ranges_must_be_ranges(name: str, low: float, high: float) -> None:
    with pytest.raises(GspoError, match="clip"):
        resolve_arm(recipe({"name": name, "clip": {"low": low, "high": high}}), name)


def test_presets_apply_unless_the_recipe_says_otherwise() -> None:
    filled, _, _ = resolve_arm(recipe(), "dapo")
    assert (filled.algo.dynamic_sampling, filled.algo.truncation, filled.algo.overlong_cache_frac) == (
        True,
        "mask",
        0.2,
    )
    filled, _, _ = resolve_arm(recipe({"name": "dapo", "dynamic_sampling": False}), "dapo")
    assert filled.algo.dynamic_sampling is False
    assert resolve_arm(recipe(), "reinforce")[0].algo.minibatches == 1
    assert resolve_arm(recipe(), "grpo")[0].algo.minibatches is None


def test_dr_grpo_takes_the_generation_limit() -> None:
    assert resolve_arm(recipe(rollout={"max_new_tokens": 77}), "dr_grpo")[2].max_length == 77
    own = recipe({"name": "dr_grpo", "max_length": 3000}, rollout={"max_new_tokens": 77})
    assert resolve_arm(own, "dr_grpo")[2].max_length == 3000


def test_a_plan_goes_seed_by_seed() -> None:
    assert [r.name for r in plan(recipe(), ["grpo", "gspo"], [3, 4])] == ["grpo-s3", "gspo-s3", "grpo-s4", "gspo-s4"]


def test_arms_of_a_recipe() -> None:
    arms = {"tight": {"name": "gspo", "clip": {"high": 3e-4}}, "slow": {"lr": 1e-5}}
    filled, _, params = resolve_arm(recipe({"name": "grpo"}, arms=arms), "tight")
    assert (params.clip.low, params.clip.high, filled.algo.name) == (3e-4, 3e-4, "gspo")
    filled, _, params = resolve_arm(recipe({"name": "grpo", "clip": {"low": 0.1}}, arms=arms), "slow")
    assert (filled.algo.name, filled.algo.lr, params.clip.low, params.clip.high) == ("grpo", 1e-5, 0.1, 0.27)


@pytest.mark.parametrize(
    ("tables", "machines", "reason"),
    [
        ({}, [2, 2, 1], None),
        ({"train": {"divide": "machine"}}, [2, 2, 2, 2], None),
        ({"train": {"divide": "machine"}}, [2, 2, 1], "unequal numbers of processes"),
        ({"model": {"tiny": {}, "lora": {}}}, [2, 2], None),
        ({"model": {"tiny": {}, "lora": {}}, "rollout": {"engine": "scripted"}}, [2, 2], "lora.* with engine scripted"),
    ],
)
def test_what_several_ranks_cannot_do_together(
    tables: dict[str, Any], machines: list[int], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "everywhere", lambda *_: machines)
    for algo in ("gspo", "ppo"):
        runs = plan(recipe({"name": algo}, **tables), [algo], [0])
        if reason is None:
            check_ranks(runs, Ranks(0, len(machines), machines[0]))
        else:
            with pytest.raises(GspoError, match=reason):
                check_ranks(runs, Ranks(0, len(machines), machines[0]))
