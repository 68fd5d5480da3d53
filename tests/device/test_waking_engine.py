"""An engine that sleeps while the trainer updates finds room when it wakes up: what the trainer makes in the meantime
is gone by then, in a whole run on the pretended device.

torch's caching allocator gives back only segments that are free as a whole. A tensor that was made among activations
and stays, such as a moment of the first optimizer step, keeps one.
"""

import gc
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import toy
from pretend_device import Marks, PretendDevice
from torch import Tensor

from gspo_cli.config import TinyModel
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.training import run as training
from gspo_cli.training.state.checkpoints import Checkpoints


class Asleep(Marks):
    """What is on the pretended device; `kept` = bytes of what was made there while the engine slept, and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeping, self.kept, self.most = False, 0, 0

    def add(self, tensor: Tensor) -> None:
        if self.sleeping and tensor not in self:
            storage = tensor.untyped_storage()
            self.count(storage.nbytes())
            weakref.finalize(storage, self.count, -storage.nbytes())
        super().add(tensor)

    def count(self, size: int) -> None:
        self.kept += size
        self.most = max(self.most, self.kept)


class Sleeper(TransformersEngine):
    """Samples as the built-in engine, and sleeps from the end of sampling until it gets the new weights."""

    memory: ClassVar[Asleep]
    kept: ClassVar[list[int]]
    """`memory.kept` at each waking."""

    def rest(self) -> None:
        self.memory.sleeping = True

    def sync(self, weights: Any, version: int) -> Any:
        if self.memory.sleeping:
            gc.collect()
            self.kept.append(self.memory.kept)
            self.memory.sleeping = False
        return super().sync(weights, version)


def open_sleeper(config: Any, model: Any, stops: Any, _ranks: Any) -> Sleeper:
    return Sleeper(model, stops, config.kv_budget_gb, config.deadline_s)


@pytest.mark.slow
@pytest.mark.parametrize("moments_first", [True, False])
def test_nothing_that_was_made_while_it_slept_is_left_when_it_wakes(
    ram: Path, monkeypatch: pytest.MonkeyPatch, moments_first: bool
) -> None:
    for part in build_tiny(TinyModel(kind="qwen3", hidden=32, layers=3), seed=1):
        part.save_pretrained(ram / "start")
    Sleeper.kept = []
    if not moments_first:
        monkeypatch.setattr(training, "make_moments", lambda _: None)
    recipe = toy.recipe(
        ram / "start", task={"name": "toy:quiet_letters"}, rollout={"engine": "test_waking_engine:open_sleeper"},
        model={"device": "cuda"},
    )  # fmt: skip
    with PretendDevice() as device:
        device.patch.setattr(Checkpoints, "save", lambda *_: None)  # copies on the host, after the last waking
        Sleeper.memory = device.marked = Asleep()
        toy.train(recipe, ram / "run")
    weights = (ram / "start" / "model.safetensors").stat().st_size
    assert len(Sleeper.kept) == 2 and Sleeper.memory.most > weights  # gradients, for one
    assert (max(Sleeper.kept) < weights / 10) == moments_first


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
