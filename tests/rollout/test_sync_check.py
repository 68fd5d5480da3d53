"""The one-prompt check sees every way in which an engine can fall behind the trainer. The engine here is a copy of the
model in this process, so that each fault is known exactly. Then weights on their way to another process."""

import copy
import os
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel
from vllm_models import moved

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import weights_hash
from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.builtin.sampler import Drawn, sample
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.rollout.vllm import sync_check
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.weights import WeightStream, named_weights, write_weights
from gspo_cli.types import Sampling

BLOCK = 32
DRAWN: dict[tuple[tuple[int, ...], int, int, float, str], Drawn] = {}
"""What was drawn before, by prompt, length, seed, temperature and weights."""


class CopyHost:
    """A host that holds a copy of the trainer's weights, with a fault."""

    replaceable = False

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> None:
        self.model = copy.deepcopy(model).to(dtype).eval()
        self.cached = self.model
        self.facts = {"versions": {}, "dtype": str(dtype).removeprefix("torch."), "positions": 4096}
        self.fault = ""
        self.level: list[int] = []
        self.loads = 0

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        if do == "score":
            return {"log_probs": [self._score(self.model, s) for s in request["sequences"]]}
        prompt, length = tuple(request["prompts"][0]), request["sampling"]["max_tokens"]
        model = self.cached if len(prompt) > BLOCK else self.model  # a stale prefix cache serves long prompts
        seed = request["requests"][0][1]
        temperature = request["sampling"]["temperature"]
        request_key = (prompt, length, seed, temperature, weights_hash(model))
        if request_key not in DRAWN:  # most tests begin with the same samples of the same weights
            [[DRAWN[request_key]]] = sample(model, [prompt], [[seed]], Sampling(temperature, length), frozenset(), 1e12)
        drawn = DRAWN[request_key]
        log_probs = list(drawn.log_probs)
        if self.fault == "before temperature":
            log_probs = self._score(model, [*prompt, *drawn.token_ids])[len(prompt) - 1 :]
        return {"samples": [[0, 0, "length", list(drawn.token_ids), log_probs]]}

    def _score(self, model: PreTrainedModel, ids: list[int]) -> list[float]:
        ids_BT = torch.tensor([ids])
        with torch.no_grad():
            scores = token_scores(model, ids_BT, torch.arange(len(ids))[None] > 0, 1.0)
        level = self.fault == "level experts" and ids == self.level
        shift = 1e-3 if (self.fault == "shifted" and self.loads > 1) or level else 0.0
        return [x + shift for x in scores.log_probs_BT[0, 1:].tolist()]

    def load(self, weights: PreTrainedModel, version: int) -> int:
        del version
        self.loads += 1
        if self.fault == "ignored":
            return 1
        fresh = copy.deepcopy(self.model)
        with torch.no_grad():
            for (name, ours), theirs in zip(fresh.named_parameters(), weights.parameters(), strict=True):
                if not (self.fault == "tied head" and name == "model.embed_tokens.weight"):
                    ours.copy_(theirs)
                if self.fault == "unpacked" and name.endswith("gate_up_proj"):
                    ours.copy_(theirs.reshape(ours.shape[0], ours.shape[2], -1).transpose(1, 2))
        if self.fault != "stale cache":
            self.cached = fresh
        self.model = fresh
        return len(list(weights.parameters()))

    def close(self) -> None:
        pass

    give_up = close


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a block all the same."""
    monkeypatch.setattr(sync_check, "LENGTH", BLOCK + 8)


def opened(host: CopyHost, model: PreTrainedModel) -> HostedEngine:
    return HostedEngine("copy", lambda: host, model, frozenset({1}), 30.0)


def test_an_engine_that_follows_passes_and_says_how_near_it_is(tiny_moe: PreTrainedModel) -> None:
    engine = opened(CopyHost(tiny_moe), tiny_moe)
    report = engine.sync(moved(copy.deepcopy(tiny_moe), 0), 5)
    assert isinstance(report, SyncReport)
    assert report.version == 5 and 0 <= report.absdiff_mean <= report.absdiff_max < 1e-4
    assert report.tensors == len(list(tiny_moe.parameters()))


@pytest.mark.parametrize("fault", ["ignored", "tied head", "stale cache", "unpacked", "shifted", "before temperature"])
def test_a_fault_of_the_reload_is_seen(tiny_moe: PreTrainedModel, fault: str) -> None:
    host = CopyHost(tiny_moe)
    engine = opened(host, tiny_moe)
    host.fault = fault
    with pytest.raises(GspoError, match="weights of step 9") as caught:
        engine.sync(moved(copy.deepcopy(tiny_moe), 0), 9)
    assert caught.value.code is ExitCode.ENGINE
    assert "0.0001" in caught.value.why


def test_a_choice_between_level_experts_on_one_text_is_no_fault(tiny_moe: PreTrainedModel) -> None:
    host = CopyHost(tiny_moe)
    engine = opened(host, tiny_moe)
    assert engine.probe is not None and engine.probe.texts[0] != engine.probe.texts[1]
    host.fault, host.level = "level experts", engine.probe.texts[0]
    report = engine.sync(moved(copy.deepcopy(tiny_moe), 0), 1)
    assert report is not None and report.absdiff_max < 1e-4
    host.fault = "shifted"  # on every text
    with pytest.raises(GspoError, match="weights of step 2"):
        engine.sync(moved(copy.deepcopy(tiny_moe), 0), 2)


def test_a_reload_that_changes_something_is_seen_before_training(tiny_moe: PreTrainedModel) -> None:
    host = CopyHost(tiny_moe)
    host.fault = "unpacked"
    with pytest.raises(GspoError, match="after loading the same weights again"):
        opened(host, tiny_moe)


def test_other_weights_from_the_start_are_seen(tiny_moe: PreTrainedModel) -> None:
    with pytest.raises(GspoError, match="weights of step 0"):
        opened(CopyHost(moved(copy.deepcopy(tiny_moe), 0)), tiny_moe)


def test_in_half_precision_the_start_is_the_yardstick(tiny_moe: PreTrainedModel) -> None:
    host = CopyHost(tiny_moe, torch.bfloat16)
    engine = opened(host, tiny_moe)
    assert engine.probe is not None and engine.probe.limit > 1e-4  # far above what float32 is allowed
    engine.sync(moved(copy.deepcopy(tiny_moe), 0), 1)
    host.fault = "unpacked"
    with pytest.raises(GspoError, match="weights of step 2") as caught:
        engine.sync(moved(copy.deepcopy(tiny_moe), 0), 2)
    assert "three times the difference at the start" in caught.value.why


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_and_a_stream_hand_over_what_the_trainer_holds(tiny_moe: PreTrainedModel, dtype: torch.dtype) -> None:
    file = os.memfd_create("test")
    os.write(file, b"longer than what follows" * 100_000)
    count = write_weights(tiny_moe, dtype, file)
    read, named = load_file(f"/proc/self/fd/{file}"), dict(named_weights(tiny_moe, dtype))
    os.close(file)
    stream = WeightStream()
    stream.dtype = dtype
    stream.begin(tiny_moe)
    for _ in range(2):  # each pass anew, as it was announced
        assert [(name, x.dtype, tuple(x.shape)) for name, x in stream] == [tuple(facts) for facts in stream.metadata()]
    expected = {name: p.detach().to(dtype) for name, p in tiny_moe.named_parameters()}
    assert count == len(read) == len(expected) and list(named) == list(expected)
    assert "lm_head.weight" not in read  # tied: once is enough
    for name, tensor in expected.items():
        assert read[name].dtype == dtype and not named[name].requires_grad
        assert torch.equal(read[name], tensor) and torch.equal(named[name], tensor)
