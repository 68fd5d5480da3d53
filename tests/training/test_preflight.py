"""The checks before the first update: each fault is named, and a sound batch is not."""

import copy
import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from test_batches import CPU, cut, learner, rollout_batch
from transformers import PreTrainedModel

from gspo_cli.config import AlgoConfig, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.events import Event, PreflightDone
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.precision import compute_in
from gspo_cli.training import loop
from gspo_cli.training.loop import CLIP_RANGE_BATCHES, watch_clip_range
from gspo_cli.training.session import Session
from gspo_cli.training.step.batches import Batching, make_mini_batches
from gspo_cli.training.step.preflight import PreflightReport, preflight
from gspo_cli.training.step.update import scored
from gspo_cli.training.study.arms import resolve_arm
from gspo_cli.types import RolloutBatch

STOP = (1,)


def sound(num_parts: int = 2) -> tuple[RolloutBatch, list[Any]]:
    """A batch whose responses end as they say, in mini-batches."""
    batch = rollout_batch()
    groups = [
        replace(g, samples=tuple(replace(s, token_ids=(*s.token_ids[:-1], 1)) for s in g.samples)) for g in batch.groups
    ]
    batch = replace(batch, groups=tuple(groups))
    return batch, cut(batch, Batching(num_parts, 10_000))


def check(
    model: PreTrainedModel,
    sampled_at: float = 1.0,
    shift: float = 0.0,
    algo: AlgoConfig | None = None,
    name: str = "gspo",
) -> PreflightReport:
    """The preflight of a batch whose engine log-probabilities are the model's own at a temperature, shifted."""
    who = replace(learner(model, name), algo=algo or AlgoConfig(name=name))
    batch, parts = sound()
    for micro in parts[0].micro_batches:
        with torch.no_grad():
            scores = token_scores(who.model, micro.input_ids_BT, micro.mask_BT, sampled_at)
        micro.sampler_log_probs_BT = torch.where(micro.mask_BT, scores.log_probs_BT + shift, 0.0)
    return preflight(who, batch, parts, STOP)


def session_of(name: str, said: list[Event], logged: list[str]) -> Session:
    """A session of which this run, its events and the names of those in the log are all there is."""
    recipe, algorithm, params = resolve_arm(Recipe.model_validate({"name": "t", "model": {"tiny": {}}}), name)
    session = Session(*[cast(Any, None)] * 8)
    session.run = loop.Run(name, recipe, algorithm, params)
    session.emit = said.append
    session.log = cast(Any, type("L", (), {"event": staticmethod(lambda event, **_: logged.append(event))}))
    return session


def test_a_sound_batch_raises_no_warning(tiny_moe: PreTrainedModel) -> None:
    found = check(tiny_moe)
    assert found.warnings == []
    assert found.values["self_floor"] == found.values["floor"] == 0.0
    assert found.values["band"] == pytest.approx(3e-4, rel=1e-3)


@pytest.mark.parametrize("wrong", [{"sampled_at": 0.6}, {"shift": 0.3}])
def test_another_temperature_or_policy_is_noticed(tiny_moe: PreTrainedModel, wrong: dict[str, float]) -> None:
    (warning,) = [w for w in check(tiny_moe, **wrong).warnings if "per token" in w]
    assert "nats per token (RMS)" in warning and "at temperature 1?" in warning


def test_mini_batches_without_a_row_are_skipped(tiny_moe: PreTrainedModel) -> None:
    """The first mini-batches may have no signal; nothing is measured only if no response was scored."""
    who = learner(tiny_moe, "gspo")
    batch, parts = sound()
    empty = replace(parts[0], micro_batches=[])
    assert preflight(who, batch, [empty, *parts], STOP).values == preflight(who, batch, parts, STOP).values
    nothing = preflight(who, batch, [empty], STOP)
    assert nothing.values == {} and any("no response" in w for w in nothing.warnings)


def test_a_batch_without_signal_is_checked_with_all_its_rows(tiny_moe: PreTrainedModel) -> None:
    batch, _ = sound()
    advantages = torch.zeros(sum(len(g.samples) for g in batch.groups), dtype=torch.float64)
    said: list[Event] = []
    session = session_of("gspo", said, [])
    session.learner = learner(tiny_moe, "gspo")
    session.engine = cast(Any, type("E", (), {"info": type("I", (), {"stop_ids": STOP})}))
    parts = make_mini_batches(batch, advantages, Batching(2, 10_000), CPU)
    assert not any(part.micro_batches for part in parts)
    loop.check_first_batch(session, batch, advantages, parts)
    assert isinstance(said[0], PreflightDone) and said[0].values["self_floor"] == 0.0


def test_a_floor_near_the_band_is_named(tiny_moe: PreTrainedModel) -> None:
    assert any("times the clip range" in w for w in check(tiny_moe, shift=1e-4).warnings)
    assert check(tiny_moe, shift=1e-6).warnings == []


def test_the_divergence_of_the_sides_is_measured(tiny_moe: PreTrainedModel) -> None:
    """With m = o + d everywhere: k1 = mean(m - o) = d, and k3 = exp(-d) - 1 + d."""
    found = check(tiny_moe, shift=0.01).values
    assert found["kl_k1"] == pytest.approx(0.01, rel=1e-4)
    assert found["kl_k3"] == pytest.approx(math.exp(-0.01) - 1 + 0.01, rel=1e-3)
    assert found["floor"] == pytest.approx(0.01, rel=1e-4) == found["token_floor"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_rounding_alone_does_is_measured(tiny_moe: PreTrainedModel, dtype: torch.dtype) -> None:
    """Against two models that need no setting: the whole one, and a copy whose weights were rounded. The engine is the
    rounded model, 0.003 nat off everywhere."""
    half, rounded = copy.deepcopy(tiny_moe), copy.deepcopy(tiny_moe)
    compute_in(half, dtype)
    for p in rounded.parameters():
        p.data = p.data.to(dtype)
    batch, parts = sound()
    squares, means = list[torch.Tensor](), list[torch.Tensor]()
    for micro in parts[0].micro_batches:
        with torch.no_grad():
            a, b = (scored(model, micro, 1.0).log_probs_BT.double() for model in (rounded, tiny_moe))
        micro.sampler_log_probs_BT = torch.where(micro.mask_BT, a.float() + 0.003, 0.0)
        squares.append((a - b)[micro.mask_BT].square())
        means.append(torch.where(micro.mask_BT, a - b, 0.0).sum(-1) / micro.mask_BT.sum(-1))
    token, response = (math.sqrt(float(torch.cat(x).mean())) for x in (squares, [m.square() for m in means]))
    found = preflight(learner(half, "gspo"), batch, parts, STOP)
    assert found.values["token_rounding"] == pytest.approx(token, rel=1e-4) and token > 1e-4
    assert found.values["rounding"] == pytest.approx(response, rel=1e-4)
    assert found.values["floor"] == pytest.approx(0.003, rel=1e-3)
    (warning,) = [w for w in found.warnings if "nearer edge" in w]
    name, band = str(dtype).removeprefix("torch."), found.values["band"]
    assert f"rounding to {name} alone moves the trainer's by {response / band:.2g} times that" in warning
    assert not {"rounding", "token_rounding"} & check(tiny_moe).values.keys()


def test_sampler_log_probs_are_refused_beyond_the_band(tiny_moe: PreTrainedModel) -> None:
    sampler = AlgoConfig(name="gspo", old_log_probs="sampler")
    with pytest.raises(GspoError, match="cannot stand for") as caught:
        check(tiny_moe, shift=1e-3, algo=sampler)
    assert "0.001" in caught.value.why and "0.0003" in caught.value.why
    check(tiny_moe, shift=1e-3, algo=sampler.model_copy(update={"accept_mismatch_floor": True}))
    check(tiny_moe, shift=1e-3, algo=sampler.model_copy(update={"name": "grpo"}), name="grpo")


def test_a_missing_eos_is_named(tiny_moe: PreTrainedModel) -> None:
    who = learner(tiny_moe, "gspo")
    batch, parts = sound()
    first = batch.groups[0]
    cut_off = replace(first.samples[0], token_ids=(*first.samples[0].token_ids[:-1], 7))
    broken = replace(batch, groups=(replace(first, samples=(cut_off, *first.samples[1:])), *batch.groups[1:]))
    assert any("1 of 20 responses" in w for w in preflight(who, broken, parts, STOP).warnings)
    early = replace(first.samples[0], token_ids=(7,), finish="length")
    broken = replace(batch, groups=(replace(first, samples=(early, *first.samples[1:])), *batch.groups[1:]))
    assert any("1 of 20 responses" in w for w in preflight(who, broken, parts, STOP).warnings)


def test_one_mini_batch_can_clip_nothing(tiny_moe: PreTrainedModel) -> None:
    batch, parts = sound(num_parts=1)
    assert any("every ratio is 1" in w for w in preflight(learner(tiny_moe, "gspo"), batch, parts, STOP).warnings)


@pytest.mark.parametrize(("outside", "warned"), [(0.0, True), (0.1, False)])
def test_a_band_that_is_never_reached_is_named_once(outside: float, warned: bool) -> None:
    said: list[Event] = []
    events: list[str] = []
    session = session_of("gspo", said, events)
    for step in range(1, CLIP_RANGE_BATCHES + 5):
        watch_clip_range(session, step, {"ratio/outside_frac": outside, "ratio/seq_min": 0.99, "ratio/seq_max": 1.02})
    assert (len(said), events) == ((1, ["clip_band_never_reached"]) if warned else (0, []))
    assert not warned or "0.02" in said[0].text
