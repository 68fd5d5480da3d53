"""Rollout batches sampled ahead: which are due when, and the file that keeps them."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_loop import session
from transformers import PreTrainedModel

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.rollout.store import read_rollout
from gspo_cli.training import rollout_queue
from gspo_cli.training.rollout_queue import load_queue, sample_batches, save_queue, steps_to_sample
from gspo_cli.training.step.rollout_metrics import as_lag, lag_metrics
from gspo_cli.training.study.arms import resolve_arm
from gspo_cli.types import Extreme, Group, Mean, Problem, Prompt, RolloutBatch, Sample, Score


def recipe(max_lag: int, steps: int = 5, engine: str = "transformers", **algo: object) -> Recipe:
    rollout = {"max_lag": max_lag, "engine": engine}
    table = {"name": "t", "model": {"tiny": {}}, "train": {"steps": steps}, "rollout": rollout}
    return Recipe.model_validate(table | {"algo": algo})


@pytest.mark.parametrize("engine", ["transformers", "vllm-server"])
def test_batch_t_is_due_with_the_training_on_batch_t_minus_lag(engine: str) -> None:
    for max_lag in range(4):
        drawn_by, queued = {}, 0
        for step in range(1, 6):
            now, during = steps_to_sample(step, queued, recipe(max_lag, engine=engine))
            assert list(now) == ([1] if step == 1 else [] if max_lag else [step]) or engine == "transformers"
            assert engine == "vllm-server" or not during
            for number in (*now, *during):
                drawn_by[number] = step - 1
                queued += 1
            queued -= 1
        assert drawn_by == {t: max(0, t - 1 - max_lag) for t in range(1, 6)} and queued == 0


def group(name: str, version: int, routed: bool, credits: bool) -> Group:
    """Two responses of three tokens, one that the task could not score."""
    rng = np.random.default_rng(len(name))
    samples = tuple(
        Sample(
            name, i, 2**62 + i, (3, 4, 1), (-0.1, -2.5, -1e-7), "stop" if i else "length", version,
            rng.integers(0, 255, (4, 2, 2), dtype=np.uint8) if routed else None,
        )
        for i in range(2)
    )  # fmt: skip
    factors = ((0.5, 1.0, 2.0), (1.0, 1.0, 1 / 3)) if credits else None
    scores = (Score(None, "the task failed: \u00e9"), Score(1 / 3, "right"))
    return Group(Problem(name, f"{name}=", "7"), Prompt(name, (5, 6)), samples, ("ab", ""), scores, factors)


def as_stored(batch: RolloutBatch) -> RolloutBatch:
    """Log-probabilities are stored as the float32 that engines compute."""
    for one in (*batch.groups, *batch.dropped):
        for sample in one.samples:
            object.__setattr__(sample, "log_probs", tuple(torch.tensor(sample.log_probs).tolist()))
    return batch


@pytest.mark.parametrize(("routed", "credits"), [(False, False), (True, False), (False, True)])
def test_a_queue_comes_back_from_a_checkpoint_as_it_was(tmp_path: Path, routed: bool, credits: bool) -> None:
    queue = [
        as_stored(RolloutBatch(step, (group("a", 2, routed, credits), group("bb", 2, routed, credits)), 9, dropped))
        for step, dropped in ((4, ()), (5, (group("ccc", 2, routed, credits),)))
    ]
    save_queue(queue, tmp_path)
    found = load_queue(tmp_path, 3, 2)
    assert found == queue
    for one, other in zip(queue, found, strict=True):
        for mine, theirs in zip((*one.groups, *one.dropped), (*other.groups, *other.dropped), strict=True):
            for a, b in zip(mine.samples, theirs.samples, strict=True):
                assert (a.routes_TLK is None) == (b.routes_TLK is None) == (not routed)
                if a.routes_TLK is not None and b.routes_TLK is not None:
                    assert a.routes_TLK.dtype == b.routes_TLK.dtype and (a.routes_TLK == b.routes_TLK).all()
    again = tmp_path / "again"
    again.mkdir()
    save_queue(found, again)
    for path in sorted((tmp_path / "ahead").iterdir()):
        assert path.read_bytes() == (again / "ahead" / path.name).read_bytes()


def test_a_missing_file_is_no_shorter_queue(tmp_path: Path) -> None:
    save_queue([as_stored(RolloutBatch(4, (group("a", 2, False, False),), 9))], tmp_path)
    with pytest.raises(OSError):
        load_queue(tmp_path, 3, 2)
    (tmp_path / "ahead" / "step_000005.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError):
        load_queue(tmp_path, 3, 2)
    assert read_rollout(tmp_path / "ahead" / "step_000004.parquet").step == 4


def test_what_is_sampled_stays_out_of_the_state_until_all_of_it_is_there(
    tiny_moe: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, train = {"max_lag": 2, "prompts": 2}, {"steps": 4, "minibatches": 2}
    one = session(tiny_moe, tmp_path, rollout=rollout, train=train, algo={"old_log_probs": "sampler"})
    inner, calls = rollout_queue.collect, list[int]()

    def abandoned(*args: object, **kwargs: object) -> RolloutBatch:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(rollout_queue, "collect", abandoned)
    with pytest.raises(KeyboardInterrupt):
        sample_batches(one, range(1, 4), 0)
    assert (one.prompt_batches, list(one.rollout_queue)) == (0, [])
    sampled, portions = sample_batches(one, range(1, 4), 0)
    assert portions == 3 and [(batch.step, batch.lags[0]) for batch in sampled] == [(1, 0), (2, 1), (3, 2)]
    assert len({batch.groups[0].problem.id for batch in sampled}) == 3


def test_lag_is_counted_by_response_and_its_gap_is_no_mismatch() -> None:
    batch = RolloutBatch(5, (group("a", 4, False, False), group("b", 1, False, False)), 9)
    assert batch.lags == [0, 0, 3, 3]
    assert lag_metrics(batch, 3) == {"lag/mean": Mean(torch.tensor(6.0), 4), "lag/max": Extreme(torch.tensor(3.0), 1)}
    assert lag_metrics(batch, 0) == {}
    found = as_lag({"mismatch/floor": Mean(torch.tensor(1.0), 2), "mismatch/prob_absdiff_max": Mean(torch.ones(()), 1)})
    assert found == {"lag/seq_gap": Mean(torch.tensor(1.0), 2)}


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
        ({"name": "gspo"}, "miss how far the policy moved"),
        ({"name": "grpo"}, "old_log_probs = 'sampler'"),
        ({"name": "reinforce"}, "no ratio"),
        ({"name": "reinforce", "old_log_probs": "sampler"}, "no ratio"),
    ],
)
def test_an_objective_that_does_not_see_the_lag_is_refused(algo: dict[str, object], reason: str) -> None:
    resolve_arm(recipe(0, **algo), str(algo["name"]))
    with pytest.raises(GspoError) as caught:
        resolve_arm(recipe(1, **algo), str(algo["name"]))
    assert "rollout.max_lag = 1" in caught.value.message and reason in caught.value.why + caught.value.hint


def test_objectives_that_see_it_are_accepted() -> None:
    for algo in (
        {"name": "gspo", "old_log_probs": "sampler"},
        {"name": "grpo", "correction": {"kind": "tis"}},
        {"name": "minirl"},
        {"name": "reinforce", "correction": {"kind": "tis"}},
        {"name": "reinforce", "allow_stale": True},
        {"name": "dapo", "old_log_probs": "sampler"},
        {"name": "ppo", "old_log_probs": "sampler"},
    ):
        resolve_arm(recipe(4, **algo), str(algo["name"]))


def test_a_problem_that_comes_again_gets_other_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic sampling takes further prompts within a step; at the end of an epoch they may be the same ones."""
    used: list[object] = []

    def collect(*_: object, seed_keys: object, **__: object) -> RolloutBatch:
        used.append(seed_keys)
        return RolloutBatch(1, (), 4)

    monkeypatch.setattr(rollout_queue, "collect", collect)
    recipe = Recipe.model_validate({"name": "it", "model": {"tiny": {}}, "algo": {"dynamic_sampling": True}})
    session = SimpleNamespace(
        run=SimpleNamespace(recipe=recipe), engine=None, tokenizer=None, task=None,
        stream=SimpleNamespace(batch=lambda _: []), clock=lambda _: nullcontext(),
    )  # fmt: skip
    rollout_queue.sample_batch(session, 3, 2, 0)  # type: ignore[arg-type]
    assert used[0] == (recipe.seed, "sample", 3) and len(set(used)) == len(used) == rollout_queue.MAX_ROUNDS
