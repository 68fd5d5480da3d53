"""Passes in half precision with float32 weights: the gradient is that of a half model, the steps are float32's."""

import copy
from pathlib import Path

import pytest
import torch
from family_walk import saved
from pydantic import ValidationError
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.config import ModelConfig
from gspo_cli.models import log_probs
from gspo_cli.models.device import determinism, prepare_torch
from gspo_cli.models.load import load_policy
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.packing import pack
from gspo_cli.models.precision import compute_dtype, compute_in, computing
from gspo_cli.models.trunk import enable_recompute, head_of

ROWS = [(5, 6, 7, 8, 9, 10, 11), (5, 6, 7, 12, 13), (20, 21, 22, 23)]


def mixed(model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16, float32_head: bool = False) -> PreTrainedModel:
    """A copy that computes in half precision."""
    copied = copy.deepcopy(model)
    compute_in(copied, dtype, head_of(copied) if float32_head else ())
    return copied


def half(model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """A copy with half weights, as it would be loaded; its rotary frequencies stay float32."""
    copied = copy.deepcopy(model)
    for p in copied.parameters():
        p.data = p.data.to(dtype)
    return copied


def in_chunks(model: PreTrainedModel, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the head runs on so many tokens at a time, and again in backward."""
    monkeypatch.setattr(log_probs, "CHUNK_LOGITS", tokens * log_probs.vocabulary(model))
    monkeypatch.setattr(log_probs, "LOGITS_PER_HIDDEN", 0)
    monkeypatch.setattr(log_probs, "KEPT_LOGITS", 0)


def scores(model: PreTrainedModel) -> Tensor:
    """Log-probabilities of all tokens but each row's first."""
    width = max(map(len, ROWS))
    ids_BT = torch.tensor([[*row] + [0] * (width - len(row)) for row in ROWS])
    mask_BT = torch.tensor([[0 < t < len(row) for t in range(width)] for row in ROWS])
    return token_scores(model, ids_BT, mask_BT, 0.8, pack(ROWS)).log_probs_BT


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    model.zero_grad()
    scores(model).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_and_gradients_are_those_of_a_half_model(tiny_dense: PreTrainedModel, dtype: torch.dtype) -> None:
    ours, theirs = mixed(tiny_dense, dtype), half(tiny_dense, dtype)
    with torch.no_grad():
        assert torch.equal(scores(ours), scores(theirs)) and scores(ours).dtype == torch.float32
    found, wanted = gradients(ours), gradients(theirs)
    assert found.keys() == wanted.keys()
    for name, grad in found.items():
        assert grad.dtype == torch.float32 and torch.equal(grad, wanted[name].float()), name


def test_gradients_of_chunks_add_up_in_float32(tiny_dense: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's gradient is the sum of its chunks'; for a bfloat16 weight it is rounded once, at the end."""
    model, length = mixed(tiny_dense), 50
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # not tied
    ids_BT = torch.randint(3, 99, (1, length), generator=torch.Generator().manual_seed(0))

    def head_gradient(model: PreTrainedModel, first: int, end: int) -> Tensor:
        model.zero_grad()
        mask_BT = ((torch.arange(length) >= first) & (torch.arange(length) < end))[None]
        token_scores(model, ids_BT, mask_BT, 1.0).log_probs_BT.sum().backward()
        grad = model.lm_head.weight.grad
        assert grad is not None
        return grad

    wanted = sum(head_gradient(model, t, t + 1).double() for t in range(1, length))
    assert isinstance(wanted, Tensor)
    in_chunks(model, 1, monkeypatch)
    for one, limit in ((model, 1e-6), (half(model), 2e-3)):
        assert (head_gradient(one, 1, length).double() - wanted).norm() < limit * wanted.norm()


@pytest.mark.parametrize("layers", [False, True])
def test_what_backward_recomputes_is_bfloat16(
    tiny_moe: PreTrainedModel, layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = gradients(mixed(tiny_moe))
    in_chunks(tiny_moe, 5, monkeypatch)
    again = mixed(tiny_moe)
    if layers:
        enable_recompute(again)
    for name, grad in gradients(again).items():
        torch.testing.assert_close(grad, wanted[name], rtol=0.02, atol=0.02 * float(wanted[name].abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_head_multiplies_rounded_states_by_exact_weights(
    tiny_dense: PreTrainedModel, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the trunk is that of a half model, and the head, though tied to the embedding, the plain float32 product
    ours, theirs, states = mixed(tiny_dense, dtype, float32_head=True), half(tiny_dense, dtype), list[Tensor]()
    real = log_probs.head_logits
    monkeypatch.setattr(log_probs, "head_logits", lambda model, hidden: states.append(hidden) or real(model, hidden))
    found = gradients(ours)
    scores(theirs)
    assert states[0].dtype == dtype and torch.equal(states[0], states[1])
    ids = torch.tensor([token for row in ROWS for token in row[1:]])
    logits_NV = states[0].float() @ tiny_dense.get_output_embeddings().weight.T / 0.8
    wanted_N = logits_NV.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    values = scores(ours)
    assert torch.equal(values[values != 0], wanted_N)
    exact, rounded = gradients(copy.deepcopy(tiny_dense)), gradients(mixed(tiny_dense, dtype))
    tied = next(name for name in found if "embed_tokens" in name)
    assert (found[tied] - exact[tied]).norm() < (rounded[tied] - exact[tied]).norm()
    with computing(ours):
        assert {ours.get_output_embeddings().weight.dtype, ours.dtype} == {torch.float32, dtype}


def test_the_context_leaves_the_weights_as_they_were(tiny_dense: PreTrainedModel) -> None:
    ours = mixed(tiny_dense)
    before = dict(ours.named_parameters())
    with pytest.raises(KeyError), computing(ours), computing(ours):
        head, embedding = ours.get_output_embeddings().weight, ours.get_input_embeddings().weight
        assert ours.dtype == torch.bfloat16 and head is embedding
        raise KeyError
    assert all(before[name] is p for name, p in ours.named_parameters())
    assert ours.dtype == torch.float32 and compute_dtype(ours) == torch.bfloat16
    assert compute_dtype(tiny_dense) == torch.float32


def test_a_loaded_model_computes_as_its_configuration_says(tiny_dense: PreTrainedModel, tmp_path: Path) -> None:
    """Training, `gspo rollout` and `gspo eval` all load it so."""
    saved(tiny_dense, tmp_path)
    for compute in (None, "float32", "bfloat16", "float16"):
        config = {"path": str(tmp_path), "device": "cpu", "compute": compute, "float32_head": compute == "float16"}
        model, _ = load_policy(ModelConfig.model_validate(config), tmp_path)
        assert compute_dtype(model) == getattr(torch, compute or "float32") and model.dtype == torch.float32
        assert bool(getattr(model, "float32_head", [])) == (compute == "float16")


@pytest.mark.parametrize("wrong", [{"dtype": "float16"}, {"dtype": "bfloat16", "compute": "float16"}])
def test_float16_needs_float32_weights(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="float16 is for passes"):
        ModelConfig.model_validate({"path": "x"} | wrong)


def test_the_precision_of_float32_products_is_set_and_recorded() -> None:
    prepare_torch(1, "high")
    assert determinism()["float32_matmul"] == "high" and torch.backends.cudnn.allow_tf32
    prepare_torch(1)
    assert determinism()["float32_matmul"] == "highest" and not torch.backends.cudnn.allow_tf32
