"""A server samples later rollout batches while this process trains: the numbers of the lag that is only simulated."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import Server, serving
from test_loop import session
from transformers import PreTrainedModel

from gspo_cli.config import Recipe
from gspo_cli.distributed import ACTIVITY, Interruption
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout.engines import open_engine
from gspo_cli.training import loop
from gspo_cli.training.loop import train_batch
from gspo_cli.training.rollout_queue import steps_to_sample
from gspo_cli.training.session import Session

STEPS = 4
SMALL = {"prompts": 4, "samples": 2}


@pytest.fixture
def server(tiny_moe: PreTrainedModel) -> Iterator[Server]:
    with serving(tiny_moe) as running:
        yield running


def lagging(model: PreTrainedModel, server: Server, folder: Path, max_lag: int, **algo: Any) -> Session:
    """A run of four batches whose engine is the server."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    rollout = {"max_lag": max_lag, "engine": "vllm-server", "vllm": {"url": server.url}, "store": 2} | SMALL
    algo = {"old_log_probs": "sampler"} | algo
    one = session(model, folder, rollout=rollout, train={"steps": STEPS, "minibatches": 2}, algo=algo)
    one.engine = open_engine(one.run.recipe.rollout, one.learner.model, character_tokenizer(), trains=True)
    return one


def trained(one: Session) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The values of every batch, without times, and the weights at the end."""
    lines = []
    for step in range(1, STEPS + 1):
        values = train_batch(one, step)
        lines.append({k: v for k, v in values.items() if "/" in k})
        assert [batch.step for batch in one.rollout_queue] == list(
            range(step + 1, min(STEPS, step + one.run.recipe.rollout.max_lag) + 1)
        )
    one.engine.close()
    return lines, one.learner.model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("max_lag", "algo"), [(1, {}), (2, {"dynamic_sampling": True})])
def test_the_numbers_are_those_of_the_simulated_lag(
    tiny_moe: PreTrainedModel, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_lag: int,
    algo: dict[str, Any],
) -> None:  # fmt: skip
    overlapped = trained(lagging(tiny_moe, server, tmp_path / "overlapped", max_lag, **algo))

    def all_before(step: int, num_queued: int, recipe: Recipe) -> tuple[range, range]:
        now, ahead = steps_to_sample(step, num_queued, recipe)
        return range(now.start, ahead.stop), range(0)

    monkeypatch.setattr(loop, "steps_to_sample", all_before)
    simulated = trained(lagging(tiny_moe, server, tmp_path / "simulated", max_lag, **algo))
    assert overlapped[0] == simulated[0] and [line.get("lag/max") for line in overlapped[0]][1:] != [0.0] * 3
    assert all(torch.equal(tensor, simulated[1][name]) for name, tensor in overlapped[1].items())
    stored = [
        (tmp_path / kind / "rollouts" / "step_000002.parquet").read_bytes() for kind in ("overlapped", "simulated")
    ]
    assert stored[0] == stored[1]  # with the hash of the weights that sampled it


def test_the_next_batch_is_sampled_during_the_updates_and_each_once(
    tiny_moe: PreTrainedModel, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lagging(tiny_moe, server, tmp_path, 1)
    server.bodies.clear()
    asked, real_update, real_answer, updating = list[int](), loop.update, server.answer, threading.Event()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        """Those of the first batch at once, the others when an update runs."""
        assert len(server.bodies) <= 8 or updating.wait(30)
        return real_answer(body)

    def update(*args: Any, **kwargs: Any) -> Any:
        asked.append(len(server.bodies))
        updating.set()
        return real_update(*args, **kwargs)

    monkeypatch.setattr(server, "answer", answer)
    monkeypatch.setattr(loop, "update", update)
    train_batch(one, 1)
    assert asked[0] > 8  # 4 prompts of 2 responses, and the next batch has been asked for
    seeds = [body["sampling_params"]["seed"] for body in server.bodies if len(body["token_ids"]) < 10]
    assert len(seeds) == len(set(seeds)) == 16


def test_a_signal_before_the_first_update_leaves_the_state_as_it_was(
    tiny_moe: PreTrainedModel, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lagging(tiny_moe, server, tmp_path, 1)
    train_batch(one, 1)
    before = (one.prompt_batches, list(one.rollout_queue))

    def late(*_: Any) -> None:
        raise Interruption

    monkeypatch.setattr(loop, "abandon_if_late", late)
    with pytest.raises(Interruption):
        train_batch(one, 2)
    assert (one.prompt_batches, list(one.rollout_queue)) == before


def test_the_first_wait_after_a_resume_has_no_limit_from_a_phase_without_sampling(
    tiny_moe: PreTrainedModel, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, known = lagging(tiny_moe, server, tmp_path, 1), list[bool]()
    assert "gen_tokens_per_s" not in train_batch(one, 1)  # the time is that of other batches as well
    monkeypatch.setattr(ACTIVITY, "longest", {})
    real = loop.sample_batches

    def sample_batches(session: Session, numbers: range, version: int) -> Any:
        known.append("rollout" in ACTIVITY.longest)
        return real(session, numbers, version)

    monkeypatch.setattr(loop, "sample_batches", sample_batches)
    train_batch(one, 2)
    assert known == [False, False]
