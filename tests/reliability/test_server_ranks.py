"""Several ranks with one server: each samples its share of the batch, all gather, one hands over."""

import copy
from pathlib import Path

import pytest
import toy
from fake_vllm import Server, serving
from test_ranks import FEW, QUIET, assert_equal, in_ranks, trained

from gspo_cli.config import ModelConfig, Recipe
from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode
from gspo_cli.models.load import load_policy


def recipe_with(server: Server, start: Path, steps: int = 2, max_lag: int = 0) -> Recipe:
    rollout = {"engine": "vllm-server", "deadline_s": 30, "vllm": {"url": server.url}, "max_lag": max_lag}
    algo = {"algo": {"name": "gspo", "old_log_probs": "sampler"}} if max_lag else {}
    return toy.recipe(start, **QUIET, rollout=rollout, train=FEW["train"] | {"steps": steps}, **algo)


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1])
def test_two_ranks_train_as_one_and_hand_over_once_a_batch(start: Path, ram: Path, max_lag: int) -> None:
    model, _ = load_policy(ModelConfig(path=str(start)), start)
    with serving(model) as server:
        recipe = recipe_with(server, start, max_lag=max_lag)
        one = trained(recipe, ram / "one", 1)
        calls, bodies = list(server.calls), copy.deepcopy(server.bodies)
        server.calls.clear()
        server.bodies.clear()
        assert_equal(one, trained(recipe, ram / "many", 2))
    assert [call for call in server.calls if "generate" not in call] == [c for c in calls if "generate" not in c]
    drawn = [
        sorted(b["sampling_params"]["seed"] for b in found if b["sampling_params"]["max_tokens"] == 4)
        for found in (bodies, server.bodies)
    ]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 2 * 8  # shared out: no sample is drawn twice


@pytest.mark.parametrize("fault", ["/update_weights", pytest.param("weights", marks=pytest.mark.slow)])
def test_a_fault_of_the_hand_over_is_everyones_error(start: Path, ram: Path, fault: str) -> None:
    model, _ = load_policy(ModelConfig(path=str(start)), start)
    with serving(model) as server:

        def work(ranks: Ranks) -> None:
            from gspo_cli.training import loop

            real = loop.update

            def update(*args: object, **named: object) -> object:
                (ram / "now").touch()
                return real(*args, **named)

            loop.update = update
            toy.train(recipe_with(server, start), ram, ranks=ranks)

        real_order = server.order

        def order(route: str, body: dict[str, object]) -> dict[str, object]:
            if route == "/start_weight_update" and (ram / "now").exists():
                server.faults[fault] = "500" if fault == "/update_weights" else "lie"
            return real_order(route, body)

        server.order = order  # type: ignore[method-assign]
        assert in_ranks(2, work, ram) == [ExitCode.ENGINE] * 2
        assert server.paused and server.version in ("0", "1")
        assert server.calls[-2:] == ["/pause?mode=abort", "/shutdown_weight_transfer_engine"]
