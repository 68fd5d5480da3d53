"""Decoding in steps of fixed shape gives the plain sampler's tokens, compiled or not; what cannot be is refused."""

import copy
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from family_walk import build
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models import compiled, fixed
from gspo_cli.models.admission import admit, fixed_steps, paths_of, use_paths
from gspo_cli.models.compiled import compiled_step
from gspo_cli.models.device import prepare_torch
from gspo_cli.models.fixed import FixedCache, FixedStep, decode
from gspo_cli.models.precision import compute_in, computing
from gspo_cli.rollout.builtin import engine as builtin
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.types import Prompt, Sampling

PROMPTS: list[tuple[int, ...]] = [(5, 6, 7), (8, 9, 10, 11, 12), (13,)]
STOPS = frozenset((3, 4, 14, 15))


def other(kind: str) -> PreTrainedModel:
    """A model of another family, admitted; windows shorter than the rows."""
    model = build(kind)
    admit(model, kind)
    return model


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sizes that a short test passes through."""
    monkeypatch.setattr(fixed, "FEWEST_ROWS", 2)
    monkeypatch.setattr(fixed, "SHORTEST", 8)
    monkeypatch.setattr(fixed, "DOUBLED_UP_TO", 16)
    yield


def drawn(model: PreTrainedModel, step: FixedStep | None, tokens: int = 24) -> list[tuple[list[int], list[float]]]:
    seeds = [[10 * p + i for i in range(4)] for p in range(len(PROMPTS))]
    groups = sample(model, PROMPTS, seeds, Sampling(1.0, tokens), STOPS, math.inf, step=step)
    return [(d.token_ids, d.log_probs) for group in groups for d in group]


def assert_equal(model: PreTrainedModel, step: FixedStep) -> None:
    """Rows part, end at different times, and cross sizes."""
    expected, found = drawn(model, None), drawn(model, step)
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert len({len(ids) for ids, _ in expected}) > 2 and max(len(ids) for ids, _ in expected) > 12
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama", "gemma3_text")]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "mistral", *SLOW])
def test_the_same_tokens_and_log_probs(kind: str, tiny_dense: PreTrainedModel, tiny_moe: PreTrainedModel) -> None:
    model = {"qwen3": tiny_dense, "qwen3_moe": tiny_moe}.get(kind) or other(kind)
    step, before = FixedStep(model), vars(model.config).copy()
    assert_equal(model, step)
    assert len({rows for rows, _ in step.caches}) > 1 and {length for _, length in step.caches} >= {8, 16}
    assert fixed_steps(model).accepted and vars(model.config) == before  # attention and experts are as they were


def test_a_window_that_is_not_heeded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a family that does not hand its attention the place in the cache."""
    model = other("mistral")

    def deaf(trunk: nn.Module, cache: FixedCache, inputs: Tensor) -> Tensor:
        forward = trunk.forward
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trunk, "forward", lambda **kwargs: forward(**{**kwargs, "slot": None}))
            return decode(trunk, cache, inputs)

    monkeypatch.setattr(FixedStep, "__call__", lambda self, *args: deaf(compiled.trunk_of(self.model), *args))
    assert not fixed_steps(model).accepted
    with pytest.raises(GspoError, match=r"rollout\.compile with MistralForCausalLM") as caught:
        compiled_step(model)
    assert "fixed shape" in caught.value.why and "leave out rollout.compile" in caught.value.hint


def test_a_compiled_step_that_fails_or_is_wrong(tiny_dense: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Tensor:
        raise RuntimeError("no compiler")

    def wrong(trunk: nn.Module, cache: FixedCache, inputs: Tensor) -> Tensor:
        return decode(trunk, cache, inputs) * torch.linspace(0.9, 1.1, tiny_dense.config.hidden_size)

    for function, why in ((failing, "RuntimeError: no compiler"), (wrong, "off by")):
        monkeypatch.setattr(compiled, "compiled", lambda _, function=function: function)
        with pytest.raises(GspoError, match="cannot be compiled here") as caught:
            compiled_step(tiny_dense)
        assert why in caught.value.why
    monkeypatch.setattr(compiled, "compiled", lambda _: lambda *args: decode(*args))
    assert compiled_step(tiny_dense).seconds > 0


def test_a_model_with_a_cache_of_its_own_is_refused(tiny_dense: PreTrainedModel) -> None:
    model = copy.deepcopy(tiny_dense)
    use_paths(model, replace(paths_of(model), cache="own"))
    with pytest.raises(GspoError, match=r"rollout\.compile with Qwen3ForCausalLM") as caught:
        compiled_step(model)
    assert "its own cache" in caught.value.why


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_keeps_addresses(
    dtype: torch.dtype, tiny_dense: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtin, "compiled_step", FixedStep)
    model = copy.deepcopy(tiny_dense)
    compute_in(model, dtype)
    asked = [Prompt("a", PROMPTS[0])], Sampling(1.0, 12), {("a", i): i for i in range(4)}
    plain, ours = (TransformersEngine(model, STOPS, 1.0, 60.0, compiles=c) for c in (False, True))
    places = []
    for _ in range(2):
        expected, found = plain.generate(*asked), ours.generate(*asked)
        assert [s.token_ids for s in found] == [s.token_ids for s in expected]
        assert ours.step is not None and ours.addresses is not None
        places.append([t.data_ptr() for t in (*ours.step.stored, *ours.addresses.values())])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1.5)
    assert places[0] == places[1] and bool(ours.addresses) == (dtype == torch.bfloat16)


def test_padding_counts_in_the_budget(tiny_dense: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "compiled_step", FixedStep)
    seeds = {("a", i): i for i in range(20)}
    asked = [Prompt("a", PROMPTS[0])], Sampling(1.0, 6), seeds
    one = fixed.padded_length(9) * builtin.cache_size(tiny_dense, "shared").token
    engine = TransformersEngine(tiny_dense, STOPS, 17 * one / 2**30, 60.0, compiles=True)
    free = TransformersEngine(tiny_dense, STOPS, 1.0, 60.0)
    assert [s.token_ids for s in engine.generate(*asked)] == [s.token_ids for s in free.generate(*asked)]
    assert engine.step is not None
    assert sum(t.nbytes for t in engine.step.stored) == 16 * one


IMPORTED = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""torch warns of its own modules when it loads its compiler."""


@pytest.mark.slow
@IMPORTED
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "mistral"])
def test_one_compilation_for_all_sizes(kind: str, tiny_dense: PreTrainedModel, tiny_moe: PreTrainedModel) -> None:
    """torch's own tracing, without a compiler of C++: rows, lengths, a second batch and new weights need no other."""
    model = copy.deepcopy({"qwen3": tiny_dense, "qwen3_moe": tiny_moe}.get(kind) or other(kind))
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    torch._dynamo.utils.counters.clear()
    step = compiled_step(model, "eager")
    assert_equal(model, step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.0)
    assert_equal(model, step)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


@pytest.mark.slow
@IMPORTED
@pytest.mark.parametrize("half", [False, True])
def test_a_graph_has_one_input_that_moves(half: bool, tiny_moe: PreTrainedModel) -> None:
    """A CUDA graph copies what has no fixed address for each token, and cannot read from the CPU, where torch puts a
    number of the model's code that is an input."""
    model, moving = copy.deepcopy(tiny_moe), list[str]()

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        tensors = [node for node in inputs if isinstance(node.meta["example_value"], Tensor)]
        fixed_at = "_dynamo_static_input_type"
        moving.extend(node.name for node in tensors if fixed_at not in node.meta.get("tensor_dict", {}))
        assert len(tensors) > 20  # weights and caches
        return graph.forward

    if half:
        compute_in(model, torch.bfloat16)
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    with torch.no_grad(), computing(model, {}):
        compiled_step(model, backend)
    assert set(moving) == {"l_inputs_3r_"}


@pytest.mark.slow
@IMPORTED
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_compiled_by_inductor(tiny_moe: PreTrainedModel) -> None:
    """The very code that a GPU gets, with a CPU's kernels; the engine compiles at its first request."""
    model = copy.deepcopy(tiny_moe)
    prompts = [Prompt(str(i), ids) for i, ids in enumerate(PROMPTS)]
    prepare_torch(1)
    asked = prompts, Sampling(1.0, 70), {(str(p), i): 10 * p + i for p in range(3) for i in range(4)}
    plain, ours = (TransformersEngine(model, STOPS, 1.0, 60.0, compiles=c) for c in (False, True))
    for _ in range(2):
        expected, found = plain.generate(*asked), ours.generate(*asked)
        assert [s.token_ids for s in found] == [s.token_ids for s in expected]
        assert torch.are_deterministic_algorithms_enabled()
        for a, b in zip(found, expected, strict=True):
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-1.0)
