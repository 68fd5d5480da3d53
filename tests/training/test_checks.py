"""Combinations that the mathematics forbids are refused with the reason; the algorithms' presets apply."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec, LossInputs, grpo
from gspo_cli.config import Recipe
from gspo_cli.distributed import Ranks
from gspo_cli.errors import GspoError
from gspo_cli.moe.routers import Routing
from gspo_cli.training.setup import check_credits, check_router_noise
from gspo_cli.training.study.arms import plan_runs, resolve_arm
from gspo_cli.training.study.checks import check_ranks
from gspo_cli.types import Problem


def recipe(algo: dict[str, Any] | None = None, **tables: Any) -> Recipe:
    return Recipe.model_validate({"name": "t", "model": {"tiny": {}}, "algo": algo or {}} | tables)


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
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


@pytest.mark.parametrize("algo", [{"name": "gspo", "replay": "r3"}, {"name": "gspo", "old_log_probs": "sampler"}])
def test_router_noise_is_for_the_trainer_s_old_policy(algo: dict[str, Any]) -> None:
    noise = {"experts": 0.1}
    with pytest.raises(GspoError, match=r"noise\.experts") as caught:
        resolve_arm(recipe(algo, noise=noise), "gspo")
    assert "the engine samples without it" in caught.value.why
    resolve_arm(recipe({"name": "gspo", "replay": "r2"}, noise=noise), "gspo")
    with pytest.raises(GspoError, match="dense model"):
        resolve_arm(recipe({"name": "gspo"}, noise=noise, model={"tiny": {"kind": "qwen3"}}), "gspo")


def test_no_noise_exchanges_more_experts_than_chance() -> None:
    routing = Routing((0,), (torch.nn.Identity(),), (torch.nn.Identity(),), num_experts=8, top_k=2)
    check_router_noise(recipe(noise={"experts": 0.7}), routing)
    with pytest.raises(GspoError, match="2 of 8 experts"):
        check_router_noise(recipe(noise={"experts": 0.75}), routing)


def test_allowed_neighbours_of_the_forbidden() -> None:
    for algo in (
        {"name": "gspo", "reduction": None},  # as earlier versions wrote it
        {"name": "gspo", "correction": {"kind": "tis"}},
        {"name": "minirl", "correction": {"kind": "opsm"}},
        {"name": "vespo", "correction": {"kind": "opsm", "high": 0.1}},
        {"name": "reinforce", "minibatches": 4, "allow_stale": True},
        {"name": "grpo", "dual_clip": 3.0},
        {"name": "gspo", "old_log_probs": "sampler"},
    ):
        resolve_arm(recipe(algo), str(algo["name"]))


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_cut_distributions_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="two different supports"):
        recipe(rollout={key: 0.9})


def test_presets_apply_unless_the_recipe_says_otherwise() -> None:
    filled, _, _ = resolve_arm(recipe(), "dapo")
    algo = filled.algo
    assert (algo.dynamic_sampling, algo.truncation, algo.overlong_cache_frac) == (True, "mask", 0.2)
    filled, _, _ = resolve_arm(recipe({"name": "dapo", "dynamic_sampling": False}), "dapo")
    assert filled.algo.dynamic_sampling is False
    assert resolve_arm(recipe(), "reinforce")[0].algo.minibatches == 1
    assert resolve_arm(recipe(), "grpo")[0].algo.minibatches is None


def test_dr_grpo_takes_the_generation_limit() -> None:
    assert resolve_arm(recipe(rollout={"max_new_tokens": 77}), "dr_grpo")[2].max_length == 77
    own = recipe({"name": "dr_grpo", "max_length": 3000}, rollout={"max_new_tokens": 77})
    assert resolve_arm(own, "dr_grpo")[2].max_length == 3000


def test_an_algorithm_states_its_own_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(filled: Recipe, params: grpo.Params) -> None:
        if filled.algo.lr == 1.0:
            raise GspoError("too fast", f"lr = 1 with clip.high = {params.clip.high}", "lower it")

    own = AlgorithmSpec.of(grpo)
    own = replace(own, check=check, run_defaults=lambda recipe: {"dual_clip": recipe.rollout.samples})
    monkeypatch.setitem(ALGORITHMS, "own", own)
    assert resolve_arm(recipe(rollout={"samples": 7}), "own")[2].dual_clip == 7
    assert resolve_arm(recipe({"name": "own", "dual_clip": 3.0}), "own")[2].dual_clip == 3
    with pytest.raises(GspoError, match="too fast"):
        resolve_arm(recipe({"name": "own", "lr": 1.0}), "own")
    monkeypatch.setitem(ALGORITHMS, "own", replace(own, HAS_RATIO=False))
    resolve_arm(recipe({"name": "own"}, rollout={"max_lag": 1}), "own")


@pytest.mark.parametrize(
    ("tables", "machines", "reason"),
    [
        ({}, [2, 2, 1], None),
        ({"train": {"divide": "machine"}}, [2, 2, 2, 2], None),
        ({"train": {"divide": "machine"}}, [2, 2, 1], "unequal numbers of processes"),
        ({"model": {"tiny": {}, "lora": {}}}, [2, 2], None),
        (
            {"model": {"tiny": {}, "lora": {}}, "rollout": {"engine": "vllm-server", "vllm": {"url": "http://server"}}},
            [2, 2],
            "lora.* with engine vllm-server",
        ),
    ],
)
def test_what_several_ranks_cannot_do_together(
    tables: dict[str, Any], machines: list[int], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ranks, "all_gather", lambda *_: machines)
    for algo in ("gspo", "ppo"):
        runs = plan_runs(recipe({"name": algo}, **tables), [algo], [0])
        if reason is None:
            check_ranks([run.recipe for run in runs], Ranks(0, len(machines), machines[0]))
        else:
            with pytest.raises(GspoError, match=reason):
                check_ranks([run.recipe for run in runs], Ranks(0, len(machines), machines[0]))


class Crediting:
    def token_credits(self, _problem: Problem, tokens: list[str]) -> list[float]:
        return [1.0] * len(tokens)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_factors_of_1_on_every_token_change_nothing_or_are_refused(name: str) -> None:
    arm = recipe({"name": name})
    if ALGORITHMS[name].ONE_ADVANTAGE or ALGORITHMS[name].token_advantages is not None:
        with pytest.raises(GspoError, match="token_credits"):
            check_credits(arm, Crediting())  # type: ignore[arg-type]
        return
    check_credits(arm, Crediting())  # type: ignore[arg-type]
    algorithm, generator = ALGORITHMS[name], torch.Generator().manual_seed(0)
    mask_BT = torch.arange(9)[None] < torch.tensor([9, 4, 7, 3])[:, None]
    old_BT, advantages_B = -torch.rand(4, 9, generator=generator), torch.randn(4, generator=generator)
    found = []
    for advantages in (advantages_B, advantages_B[:, None].expand(4, 9)):
        log_probs_BT = (old_BT + 1e-4).requires_grad_()
        inputs = LossInputs(log_probs_BT, old_BT, advantages, mask_BT, torch.arange(4) // 2, old_BT)
        out = algorithm.loss(inputs, algorithm.Params())
        (gradient,) = torch.autograd.grad(out.loss_numerator, log_probs_BT)
        found.append((out.loss_numerator.detach(), gradient))
    torch.testing.assert_close(found[0], found[1])
