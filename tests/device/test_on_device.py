"""A whole run on the pretended device: nothing mixes devices, and the host seldom waits.

Once per token in sampling, twice per update, whatever the size of the batch; and three planted faults are seen.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from batch_files import measured, store
from pretend_device import DEVICE, MixedDevices, PretendDevice, Transfer
from program import strict_lines
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig, ModelConfig, Recipe
from gspo_cli.instruments.batch.report import summary
from gspo_cli.models import log_probs
from gspo_cli.models.decoding import CachedRows
from gspo_cli.models.fixed import FixedStep
from gspo_cli.models.load import load_policy
from gspo_cli.models.precision import compute_in
from gspo_cli.models.trunk import enable_recompute
from gspo_cli.moe.routers import find_routing
from gspo_cli.rollout.builtin import sampler
from gspo_cli.training.session import Stopwatch
from gspo_cli.training.step import metrics
from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Sampling, Score

FULL: dict[str, Any] = {"name": "gspo", "replay": "r2", "kl": {"coef": 0.05}, "correction": {"kind": "tis"}}
PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "routes of the engine": {"algo": {"name": "gspo", "replay": "r3"}},
    "critic": {"algo": {"name": "ppo"}},
    "adapters": {"model": {"lora": {"rank": 2}}, "algo": {"name": "gspo", "kl": {"coef": 0.05}}},
    "dynamic sampling": {"algo": {"name": "dapo", "dynamic_sampling": True}},
    "recomputation": {"train": {"recompute": True}},
    "bfloat16": {"model": {"compute": "bfloat16"}, "algo": {"name": "gspo", "kl": {"coef": 0.05}}},
    "evaluation": {"eval": {"bench": ["arithmetic"], "every": 1, "samples": 1, "limit": 2, "max_new_tokens": 3}},
}


def recipe(start: Path, device: str, parts: dict[str, dict[str, Any]], steps: int = 1) -> Recipe:
    tables: dict[str, dict[str, Any]] = {
        "task": {"name": "toy:quiet_letters"}, "model": {"device": device}, "train": {"steps": steps},
    }  # fmt: skip
    for name, values in parts.items():
        tables[name] = tables.get(name, {}) | values
    return toy.recipe(start, **tables)


def rewards(run: Path) -> list[float]:
    """The mean reward of each rollout batch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"]["reward/mean"] for line in lines if line["kind"] == "rollout"]


def test_a_run_with_replay_reference_and_correction_stopped_and_resumed(start: Path, ram: Path) -> None:
    here = toy.train(recipe(start, "cpu", {"algo": FULL}, steps=2), ram / "cpu")
    with PretendDevice() as device:
        run = toy.train(recipe(start, "cuda", {"algo": FULL}), ram / "cuda")
        more = {"train": {"steps": 2}}
        run = toy.train(recipe(start, "cuda", {"algo": FULL}), ram / "cuda", more, allowed=("train.steps",))
    assert rewards(run) == pytest.approx(rewards(here)) and len(rewards(run)) == 2
    assert toy.checkpoints(run)[-1] == 2 and toy.events(run, "start")[-1]["resumed_from"] == 1
    assert not [t for t in device.transfers if t.waits and "record_old_policy" in t.within]
    perf = [line for line in strict_lines(run / "perf.jsonl") if line["kind"] == "rollout"]
    assert [(line["gpu_peak_gb"], line["gpu_peak_frac"]) for line in perf] == [(2.0, 0.75)] * 2


def test_a_phase_begins_and_ends_with_the_device_at_rest() -> None:
    clock = Stopwatch()
    with PretendDevice() as device, clock("update_s"), clock("inner_s"):
        assert [t.what for t in device.transfers] == ["synchronize"] * 2
    assert [t.what for t in device.transfers] == ["synchronize"] * 4 and clock.seconds["update_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_run(name: str, start: Path, ram: Path) -> None:
    with PretendDevice():
        run = toy.train(recipe(start, "cuda", PARTS[name]), ram / "cuda")
    assert len(rewards(run)) == 1 and toy.checkpoints(run)[-1] == 1


@pytest.mark.slow
def test_report_batch(tmp_path: Path) -> None:
    stored = store(tmp_path)
    here = summary(measured(stored, stored.file, against=True))
    with PretendDevice():
        there = summary(measured(stored, stored.file, against=True))
    for key in ("objective", "gradient_norm"):
        assert there["algorithms"]["gspo"][key] == pytest.approx(here["algorithms"]["gspo"][key], rel=1e-3)


def test_the_known_fault_is_seen(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_read", lambda tensors: torch.stack(tensors).tolist() if tensors else [])
    with PretendDevice(), pytest.raises(MixedDevices, match="stack"):
        toy.train(recipe(start, "cuda", {}), ram / "cuda")


@pytest.fixture(scope="module")
def model(start: Path) -> PreTrainedModel:
    """The toy's start model, on the CPU."""
    return load_policy(ModelConfig(path=str(start), device="cpu"), start)[0]


def crossed_in_sampling(
    model: PreTrainedModel, responses: int, tokens: int, routes: bool = False, fixed: bool = False
) -> list[Transfer]:
    """What crosses while responses of full length are sampled."""
    with PretendDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        routing = find_routing(there) if routes else None
        seeds, sampling = [list(range(responses)), list(range(responses))], Sampling(1.0, tokens)
        with device.counting() as crossed:
            step = FixedStep(there) if fixed else None
            sampler.sample(there, [(5, 6, 7), (8, 9)], seeds, sampling, frozenset({-1}), math.inf, routing, step=step)
    return crossed


def waits(crossed: list[Transfer]) -> list[Transfer]:
    """The times the host waits."""
    return [t for t in crossed if t.waits]


@pytest.mark.parametrize(("routes", "fixed"), [(False, False), (True, False), (False, True)])
def test_sampling_waits_once_and_copies_twice_per_token(model: PreTrainedModel, routes: bool, fixed: bool) -> None:
    """To the device goes what a token is drawn with and what it is continued with, also where rows part."""
    # the log-probabilities; the prompts' expert choices, and the responses' for each 64 tokens
    more = 1 + 2 * routes
    for responses, tokens in ((2, 6), (7, 12)):
        crossed = crossed_in_sampling(model, responses, tokens, routes, fixed)
        assert len(waits(crossed)) == tokens + more
        assert len([t for t in crossed if not t.waits and "_decode" in t.within]) == 2 * tokens - 1


def stored_batch(groups: int) -> RolloutBatch:
    """Responses of four tokens whose rewards differ."""
    made = []
    for g in range(groups):
        samples = tuple(Sample(str(g), i, 0, (5 + i, 6, 7, 8), (-1.0,) * 4, "length", 0) for i in range(4))
        scores = tuple(Score(float(i % 2), "") for i in range(4))
        made.append(Group(Problem(str(g), "", ""), Prompt(str(g), (9, 10 + g)), samples, ("",) * 4, scores))
    return RolloutBatch(1, tuple(made), max_new_tokens=4)


def waits_of_update(model: PreTrainedModel, groups: int, budget: int, algo: dict[str, Any]) -> list[Transfer]:
    """The times the host waits from the batch to the logged metrics of its second update."""
    with PretendDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        algorithm = ALGORITHMS[algo["name"]]
        learner = Learner(
            there, torch.optim.AdamW(there.parameters(), fused=True), algorithm, algorithm.Params(),
            AlgoConfig(**algo), 1.0, 1.0, routing=find_routing(there), reference=copy.deepcopy(there),
        )  # fmt: skip
        batch = stored_batch(groups)
        advantages_B = algorithm.advantage(*rewards_and_groups(batch), learner.params)
        with device.counting() as crossed:
            whole_groups = algorithm.WHOLE_GROUPS
            batching = Batching(2, budget, keep_rows_without_advantage=True, whole_groups=whole_groups, packed=True)
            minis = make_mini_batches(batch, advantages_B, batching, DEVICE)
            record_old_policy(learner, minis)
            for i, mini in enumerate(minis):
                update(learner, mini, 1e-3, first=i == 0).result()
    return waits(crossed)


CORRECTED = ({"name": "grpo", "correction": {"kind": "seq_mask"}}, {"name": "ipo", "correction": {"kind": "opsm"}})
PLAIN = ({"name": name} for name in ("gspo", "dppo_kl", "vespo", "aspo", "gepo"))


@pytest.mark.parametrize("algo", [*CORRECTED, *PLAIN])
def test_an_update_waits_twice_whatever_the_size_of_the_batch(model: PreTrainedModel, algo: dict[str, Any]) -> None:
    for groups, budget in ((2, 1000), (6, 20)):
        places = [t.place.split()[-1] for t in waits_of_update(model, groups, budget, algo)]
        assert places == ["step", "_read"] * 2


def test_a_mask_on_the_cpu_is_seen(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = CachedRows._forward
    monkeypatch.setattr(CachedRows, "_forward", lambda self, ids, mask, at: forward(self, ids, mask.cpu(), at))
    with pytest.raises(MixedDevices):
        crossed_in_sampling(model, 2, 3)


def test_an_item_in_the_decoding_loop_is_seen(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = sampler.draw

    def slow(*args: Any) -> tuple[Tensor, Tensor]:
        found = draw(*args)
        found[0][0].item()
        return found

    monkeypatch.setattr(sampler, "draw", slow)
    assert len(waits(crossed_in_sampling(model, 2, 6))) == 2 * 6 + 1


def test_a_generator_on_the_wrong_device_is_seen(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = sampler.draw

    def own_numbers(logits: Tensor, rows: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
        uniform = torch.rand(uniform.shape, device=uniform.device, generator=torch.Generator()).double()
        return draw(logits, rows, uniform, sampling)

    monkeypatch.setattr(sampler, "draw", own_numbers)
    with pytest.raises(MixedDevices, match="generator"):
        crossed_in_sampling(model, 2, 3)


class Casts(TorchDispatchMode):
    """Counts weights that are rounded, and chunks of logits."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.shapes, self.casts, self.chunks = {p.shape for p in model.parameters()}, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        rounds = func is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16 != args[0].dtype
        self.casts += rounds and out.shape in self.shapes
        self.chunks += func is torch.ops.aten._log_softmax.default
        return out


@pytest.mark.parametrize("recompute", [False, True])
def test_a_bfloat16_pass_rounds_every_weight_once(
    model: PreTrainedModel, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many chunks and layers are computed again in backward; and nothing of it crosses to the device."""
    monkeypatch.setattr(log_probs, "LOGITS_PER_HIDDEN", 0)
    monkeypatch.setattr(log_probs, "KEPT_LOGITS", 0)
    for tokens, chunks in ((1000, 1), (3, 4)):
        monkeypatch.setattr(log_probs, "CHUNK_LOGITS", tokens * log_probs.vocabulary(model))
        with Casts(model) as counted, PretendDevice() as device:
            there = copy.deepcopy(model).to(DEVICE)
            compute_in(there, torch.bfloat16)
            if recompute:
                enable_recompute(there)
            ids_BT, mask_BT = torch.full((2, 7), 5, device=DEVICE), torch.ones(2, 7, dtype=torch.bool, device=DEVICE)
            mask_BT[:, 0] = False
            loss_M = torch.tensor([1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13], device=DEVICE)
            with device.counting() as crossed:
                log_probs.token_scores(there, ids_BT, mask_BT, 1.0, loss_M=loss_M).log_probs_BT.sum().backward()
        assert not crossed
        assert counted.casts == len(list(there.parameters()))
        assert counted.chunks == chunks * (1 if chunks == 1 else 2)  # again in backward
