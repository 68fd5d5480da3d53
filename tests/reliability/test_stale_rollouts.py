"""Batches sampled ahead, in whole runs: the weights that drew each, the same bytes from the same seed, and resumes from
every step."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import toy
from crashes import difference, faults, points
from program import strict_lines
from test_exact_resume import cut_after, resumed_at_every_step

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.training.state import checkpoint_folder

STEPS = 5
SAMPLER = {"name": "gspo", "old_log_probs": "sampler"}
DYNAMIC = {"name": "dapo", "old_log_probs": "sampler", "truncation": "keep"}


def recipe(start: Path, max_lag: int, algo: dict[str, Any] = SAMPLER, **tables: dict[str, Any]) -> Recipe:
    """A checkpoint after every batch."""
    tables = {"train": {"steps": STEPS}, "checkpoint": {"every": 1, "keep": STEPS + 1}} | tables
    return toy.recipe(start, rollout={"max_lag": max_lag}, algo=algo, **tables)


def rollouts(run: Path) -> list[dict[str, list[Any]]]:
    """The stored batches, by column."""
    return [pq.read_table(path).to_pydict() for path in sorted((run / "rollouts").iterdir())]


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    """The metrics of the log's lines of one kind."""
    return [line["metrics"] for line in strict_lines(run / "metrics.jsonl") if line["kind"] == kind]


def test_each_batch_is_drawn_by_the_weights_that_the_lag_names(start: Path, ram: Path) -> None:
    run = toy.train(recipe(start, 2), ram / "lag")
    batches, lines = rollouts(run), of_kind(run, "rollout")
    versions = [max(0, step - 1 - 2) for step in range(1, STEPS + 1)]
    assert [set(batch["weight_version"]) for batch in batches] == [{v} for v in versions]
    assert [line["lag/max"] for line in lines] == [line["lag/mean"] for line in lines] == [0, 1, 2, 2, 2]
    # the policy of batch 1 draws batches 1 to 3, whatever the updates in between: a run that never moves draws the same
    still = toy.train(recipe(start, 0, train={"steps": STEPS, "lr": 1e-30}), ram / "still")
    same = [a["token_ids"] == b["token_ids"] and a["log_probs"] == b["log_probs"]
            for a, b in zip(batches, rollouts(still), strict=True)]  # fmt: skip
    assert same == [True, True, True, False, False]
    # what the policy moved is a gap, not a mismatch, and the ratios of the first mini-batch see it
    assert 0 < lines[0]["mismatch/floor"] < 1e-5 and not any("mismatch/floor" in line for line in lines[1:])
    assert not any("kl/sampler_trainer_k3" in line or "moe/sampler_slot_churn" in line for line in lines[1:])
    first = [line["metrics"] for line in strict_lines(run / "metrics.jsonl") if line["mini_batch"] == 0]
    assert abs(first[0]["ratio/seq_log_mean"]) < 1e-5
    for line, update in zip(lines[1:], first[1:], strict=True):
        assert line["lag/seq_gap"] > 1e-3 and line["lag/kl_k3"] > 0
        assert update["ratio/seq_log_mean"] == pytest.approx(line["lag/seq_gap_mean"], rel=1e-5)
        assert update["ratio/outside_frac"] > 0


def test_same_seed_same_bytes(start: Path, ram: Path) -> None:
    one, other = (toy.train(recipe(start, 2), ram / name) for name in ("one", "other"))
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()


def test_no_lag_is_what_it_was(start: Path, ram: Path) -> None:
    plain = toy.train(toy.recipe(start), ram / "plain")
    zero = toy.train(toy.recipe(start, rollout={"max_lag": 0}), ram / "zero")
    assert difference(plain, zero, [0, 1, 2]) is None
    assert not any(name.startswith("lag/") for line in of_kind(zero, "rollout") for name in line)
    assert not (zero / "checkpoints" / "step-000001" / "ahead").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_lag", "algo"),
    [
        (2, SAMPLER),
        pytest.param(1, SAMPLER, marks=pytest.mark.slow),
        pytest.param(9, SAMPLER, marks=pytest.mark.slow),
        pytest.param(2, DYNAMIC, marks=pytest.mark.slow),
        pytest.param(2, {"name": "grpo", "replay": "r3", "correction": {"kind": "tis"}}, marks=pytest.mark.slow),
        pytest.param(1, {"name": "ppo", "old_log_probs": "sampler"}, marks=pytest.mark.slow),
    ],
)
def test_resume_at_every_step(start: Path, ram: Path, max_lag: int, algo: dict[str, Any]) -> None:
    own = recipe(start, max_lag, algo)
    whole = toy.train(own, ram / "whole")
    queues = [
        len(list((p / "ahead").glob("step_??????.parquet")))
        for p in checkpoint_folder.list_checkpoints(whole / "checkpoints")
    ]
    assert queues == [0] + [min(max_lag, STEPS - step) for step in range(1, STEPS + 1)]
    resumed_at_every_step(own, whole, ram)


@pytest.mark.slow
def test_killed_at_changes_of_files(start: Path, ram: Path) -> None:
    own = toy.recipe(start, rollout={"max_lag": 1}, algo=SAMPLER, train={"steps": 3})
    some = points(own, ram)
    changes = json.loads((ram / "changes.json").read_text())
    ahead = [point for point in some if "/ahead" in changes[point.index][1]]
    assert len(ahead) > 10
    assert faults(own, ram, sorted({*ahead, *some[::12]})) == {}


def test_a_resume_from_the_start_samples_as_the_run_did(start: Path, ram: Path) -> None:
    run = toy.train(recipe(start, 1, train={"steps": 2}), ram / "study")
    whole = (run / "metrics.jsonl").read_bytes()
    cut_after(run, 0)
    assert (toy.train(recipe(start, 1, train={"steps": 2}), run.parent) / "metrics.jsonl").read_bytes() == whole


def test_more_steps_while_the_queue_is_full_are_those_of_a_longer_run(start: Path, ram: Path) -> None:
    run = toy.train(recipe(start, 1), ram / "study")
    cut_after(run, 3)
    toy.train(recipe(start, 1), run.parent, {"train": {"steps": 6}}, ("train.steps",))
    longer = toy.train(recipe(start, 1, train={"steps": 6}), ram / "longer")
    for kind in ("rollout", "update", "step"):
        assert of_kind(run, kind) == of_kind(longer, kind)


@pytest.mark.parametrize(("was", "wanted"), [(0, 1), (1, 0), (1, 2)])
def test_another_lag_is_another_experiment(start: Path, ram: Path, was: int, wanted: int) -> None:
    run = toy.train(recipe(start, was, train={"steps": 2}), ram / "study")
    cut_after(run, 1)
    with pytest.raises(GspoError, match=f"rollout.max_lag = {was} -> {wanted}") as caught:
        toy.train(recipe(start, was), run.parent, {"rollout": {"max_lag": wanted}}, ("rollout.max_lag",))
    assert "part of the experiment" in caught.value.why
