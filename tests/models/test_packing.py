"""Packed rows: what is fed, and that nothing but rounding tells them from padded ones."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from gspo_cli.models import attention
from gspo_cli.models.admission import admit, paths_of
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.packing import Packing, pack
from gspo_cli.models.trunk import enable_recompute

sys.path.insert(0, str(Path(__file__).parents[1] / "moe"))
from families import FAMILIES, build

PROMPTS = [(5, 6, 7), (8, 9), (5, 6, 7), (8, 9), (5, 6, 7), (8,)]
RESPONSES = [
    (11, 12, 13, 14, 15, 16, 17, 18, 19), (21, 22, 23, 24, 25, 26, 27, 28), (11, 12, 3, 4), (24, 2), (15,), (9,)
]  # fmt: skip
ROWS = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def rows() -> tuple[Tensor, Tensor, Packing]:
    """The rows padded, with their loss mask, and packed."""
    width = max(map(len, ROWS))
    ids_BT = torch.tensor([row + (0,) * (width - len(row)) for row in ROWS])
    pairs = zip(PROMPTS, ROWS, strict=True)
    mask_BT = torch.tensor([[len(prompt) <= t < len(row) for t in range(width)] for prompt, row in pairs])
    return ids_BT, mask_BT, pack(ROWS)


def assert_whole(fed: Packing, rows: list[tuple[int, ...]]) -> None:
    """Each beginning is fed once, every token keeps its position, and the blocks hold them all."""
    assert fed.input_ids.numel() == len({row[: t + 1] for row in rows for t in range(len(row))})
    for b, row in enumerate(rows):
        where = fed.index_BT[b, : len(row)]
        assert tuple(fed.input_ids[0, where].tolist()) == row
        assert fed.position_ids[0, where].tolist() == list(range(len(row)))
    everything = torch.cat([block.flatten() for block in fed.blocks])
    assert everything[fed.unpack_N].tolist() == list(range(fed.input_ids.numel()))


def test_what_rows_begin_with_is_fed_once_and_every_token_keeps_its_position() -> None:
    ids_BT, mask_BT, fed = rows()
    assert_whole(fed, ROWS)
    assert fed.input_ids.numel() == 27 < sum(map(len, ROWS))
    assert torch.equal(fed.input_ids[0][fed.index_BT][mask_BT], ids_BT[mask_BT])
    # rows of 12 10 7 4 4 2: those under 0.7 of a block's first begin another; the last is the beginning of another row
    assert [tuple(block.shape) for block in fed.blocks] == [(2, 12), (1, 7), (2, 4)]


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=12))
def test_any_rows_are_packed_and_found_again(some: list[tuple[int, ...]]) -> None:
    assert_whole(pack(some), some)


def scores_and_gradient(model: PreTrainedModel, fed: Packing | None) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    ids_BT, mask_BT, _ = rows()
    scores = token_scores(model, ids_BT, mask_BT, 0.7, fed)
    weights = torch.randn(scores.log_probs_BT.shape, generator=torch.Generator().manual_seed(1)).double()
    (scores.log_probs_BT * weights).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat([scores.log_probs_BT.detach().flatten(), scores.entropy_BT.flatten()]), gradient


def with_windows() -> PreTrainedModel:
    config = Qwen2Config(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=0, initializer_range=0.2,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


@pytest.mark.parametrize("family", [*sorted(FAMILIES), "dense", "windows"])
def test_values_and_gradients_are_those_of_padded_rows(family: str, tiny_dense: PreTrainedModel) -> None:
    made = {"dense": lambda: copy.deepcopy(tiny_dense), "windows": with_windows}.get(family, lambda: build(family))
    model = made().double()
    model.set_experts_implementation("eager")
    admit(model, "the model")
    if not paths_of(model).packed:
        pytest.skip(f"{family} keeps padded rows: its attention is not causal rows alone")
    values, gradient = scores_and_gradient(model, None)
    packed_values, packed_gradient = scores_and_gradient(model, rows()[2])
    # the models' normalisation and routers work in float32
    torch.testing.assert_close(packed_values, values, rtol=0, atol=1e-5)
    torch.testing.assert_close(packed_gradient, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))
    assert float(gradient.norm()) > 1e-3


def test_recomputed_layers_run_twice_and_change_nothing(tiny_moe: PreTrainedModel) -> None:
    model, calls = copy.deepcopy(tiny_moe).double(), list[int]()
    plain = scores_and_gradient(model, rows()[2])
    enable_recompute(model)
    model.base_model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for a, b in zip(plain, scores_and_gradient(model, rows()[2]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert len(calls) == 2


def test_an_architecture_that_hands_nothing_on_keeps_rows_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inner = build("qwen3_moe"), attention.attention
    attention.install_attention()
    monkeypatch.setitem(
        attention.ALL_ATTENTION_FUNCTIONS._global_mapping, attention.ATTENTION,
        lambda *args, **kwargs: inner(*args, **{k: v for k, v in kwargs.items() if k != "packing"}),
    )  # fmt: skip
    admit(model, "the model")
    assert not paths_of(model).packed
