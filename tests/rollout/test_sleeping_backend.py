"""Engine `vllm` on a GPU falls asleep and wakes up; vLLM and the GPU's memory are stand-ins."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

OPTIONS: dict[str, Any] = {
    "model": "m", "revision": None, "dtype": "bfloat16", "stop_ids": [1], "kv_bytes": 1, "routes": False,
    "external": False, "code_revision": None,
}  # fmt: skip


class Gpu:
    """Its memory in bytes; `asleep` = what vLLM has given back."""

    def __init__(self) -> None:
        self.free, self.asleep, self.settings, self.calls = 10, 0, "", list[str]()

    def sleep(self, level: int) -> None:
        assert level == 2
        self.free, self.asleep = self.free + 60, 60

    def wake_up(self, tags: list[str]) -> None:
        self.calls += tags
        size = 20 if tags == ["weights"] else 40
        self.free -= size

    def module(self, name: str, **found: Any) -> ModuleType:
        made = ModuleType(name)
        vars(made).update(found)
        return made

    def llm(self, *_: Any, **options: Any) -> Any:
        assert options["enable_sleep_mode"] and not options["enforce_eager"]
        config = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=64, dtype=torch.bfloat16), use_v2_model_runner=True
        )
        return SimpleNamespace(
            llm_engine=SimpleNamespace(vllm_config=config), update_weight_version=lambda _: None, sleep=self.sleep,
            wake_up=self.wake_up, reset_prefix_cache=lambda: True,
            collective_rpc=lambda name, **_: self.calls.append(name),
        )  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    found = Gpu()
    modules = [
        found.module("vllm", LLM=found.llm, SamplingParams=None, __version__="0.32.0"),
        found.module("vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: False)),
        found.module("vllm.device_allocator"),
        found.module(
            "vllm.device_allocator.alloc_conf", current_alloc_conf=lambda: found.settings,
            set_alloc_conf=lambda value: setattr(found, "settings", value),
        ),
    ]  # fmt: skip
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (found.free, 100))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 45)
    name = "gspo_cli.rollout.vllm.worker.vllm_backend"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield found
    sys.modules.pop(name, None)


def opened(tensor_parallel: int = 1) -> Any:
    return import_module("gspo_cli.rollout.vllm.worker.vllm_backend").Backend(
        **OPTIONS, tensor_parallel=tensor_parallel
    )


def test_it_wakes_up_and_says_how_much_room_was_left(gpu: Gpu) -> None:
    backend = opened()
    assert backend.facts["versions"]["model_runner"] == "V2"
    backend.rest()
    gpu.free -= 7  # the trainer's moments
    backend.load(version=1, repack=False)
    assert gpu.calls == ["weights", "gspo_reload", "kv_cache"]
    assert backend.facts["wake_room_gb"] == pytest.approx(3e-9)


def test_too_little_memory_is_told_before_anything_is_taken(gpu: Gpu) -> None:
    backend = opened()
    backend.rest()
    gpu.free -= 11
    with pytest.raises(ValueError, match=r"waking up takes 0.0 GB.*lower rollout.kv_budget_gb"):
        backend.load(version=1, repack=False)
    assert gpu.calls == []


@pytest.mark.parametrize(
    ("before", "gpus", "after"),
    [("", 1, "expandable_segments:True"), ("max_split_size_mb:64", 1, "max_split_size_mb:64"), ("", 2, "")],
)
def test_segments_expand_where_that_is_safe(gpu: Gpu, before: str, gpus: int, after: str) -> None:
    gpu.settings = before
    opened(gpus)
    assert gpu.settings == after
