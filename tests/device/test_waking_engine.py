"""An engine that sleeps while the trainer updates finds room when it wakes up: a whole run on the pretended device,
whose memory is handed out as torch's caching allocator would.

This is a simulation: sizes and their order are the program's, rules of the allocator as documented, and the engine
takes and gives back its weights and cache as vLLM 0.32's sleep mode does, around that allocator.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import toy
from caching_allocator import MIB, CachingAllocator, Driver, Metered, OutOfMemory
from pretend_device import PretendDevice

from gspo_cli.config import TinyModel
from gspo_cli.models.tiny import build_tiny
from gspo_cli.plan.architecture import of_tiny
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.vllm.weights import named_weights
from gspo_cli.training import run as training
from gspo_cli.training.state.checkpoints import Checkpoints

SCALE = 1 << 14
GIB = 1024 * MIB
TINY = TinyModel(kind="qwen3", hidden=32, layers=3)
WEIGHTS = SCALE * 4 * of_tiny(TINY).parameters
"""Of the trainer, in float32."""
CAPACITY, ROOM = 96 * GIB, 3 * GIB
"""The GPU, which activations fill while the engine sleeps; what is free beside trainer and engine when it is awake."""


class Sleeper(TransformersEngine):
    """Samples as the built-in engine; its weights and cache are memory of the driver while it is awake."""

    memory: ClassVar[Metered]
    kept: ClassVar[list[int]]
    """What the trainer could not give back, at each waking."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asleep = True
        self._wake()

    def generate(self, *args: Any) -> Any:
        self.memory.others = True
        try:
            return super().generate(*args)
        finally:
            self.memory.others = False

    def rest(self) -> None:
        self.memory.allocator.driver.give(WEIGHTS // 2 + cache())
        self.memory.allocator.empty_cache()
        self.asleep = True

    def sync(self, weights: Any, version: int) -> Any:
        if self.asleep:
            self._wake(weights)
        return super().sync(weights, version)

    def _wake(self, weights: Any = None) -> None:
        """Weights, what they are overwritten with, cache; the trainer's memory is freed before each, as by vLLM."""
        allocator = self.memory.allocator
        for size in (WEIGHTS // 2, cache()):
            gc.collect()
            allocator.empty_cache()
            allocator.driver.take(size)
            for _ in () if weights is None else named_weights(weights, torch.bfloat16):
                pass
            weights = None
        self.kept.append(allocator.reserved - allocator.allocated)
        self.asleep = False


def cache() -> int:
    """What weights and moments, the engine's weights and the room leave."""
    return CAPACITY - 3 * WEIGHTS - WEIGHTS // 2 - ROOM


def open_sleeper(config: Any, model: Any, stops: Any, _ranks: Any) -> Sleeper:
    return Sleeper(model, stops, config.kv_budget_gb, config.deadline_s)


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begin")
    for part in build_tiny(TINY, seed=1):
        part.save_pretrained(folder)
    return folder


def train(begin: Path, folder: Path, expandable: bool = False) -> list[int]:
    """Two rollout batches; what could not be given back at each waking, the start included."""
    Sleeper.kept = []
    rollout = {"engine": "test_waking_engine:open_sleeper", "prompts": 4, "samples": 8, "max_new_tokens": 16}
    recipe = toy.recipe(
        begin, task={"name": "toy:quiet_letters"}, rollout=rollout, train={"minibatches": 1},
        model={"device": "cuda"},
    )  # fmt: skip
    with PretendDevice() as device:
        device.patch.setattr(Checkpoints, "save", lambda *_: None)  # copies on the host, after the last waking
        Sleeper.memory = device.marked = Metered(CachingAllocator(Driver(CAPACITY), expandable), SCALE)
        toy.train(recipe, folder)
    return Sleeper.kept


@pytest.mark.slow
def test_an_engine_wakes_up_beside_moments_that_were_made_before_it_slept(begin: Path, ram: Path) -> None:
    kept = train(begin, ram / "run")
    assert len(kept) == 3 and max(kept) < 2 * GIB
    kept = train(begin, ram / "expandable", expandable=True)
    assert len(kept) == 3 and max(kept) < 0.2 * GIB


@pytest.mark.slow
def test_it_does_not_beside_moments_of_the_first_step(begin: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "make_moments", lambda _: None)
    with pytest.raises(OutOfMemory):
        train(begin, ram / "run")
    allocator = Sleeper.memory.allocator
    assert allocator.allocated < 3 * WEIGHTS + ROOM, "there was room enough for what is in use"


def test_moments_are_there_before_the_first_batch(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = list[Any]()
    monkeypatch.setattr(training, "train", lambda session, _: sessions.append(session))
    toy.train(toy.recipe(start, algo={"name": "ppo"}), ram / "run")
    learner = sessions[0].learner
    for optimizer, model in ((learner.optimizer, learner.model), (learner.critic.optimizer, learner.critic.model)):
        for parameter in model.parameters():
            state = optimizer.state[parameter]
            assert [float(value.sum()) for value in state.values()] == [0, 0, 0]
            assert [value.shape for value in state.values()] == [torch.Size(), parameter.shape, parameter.shape]
