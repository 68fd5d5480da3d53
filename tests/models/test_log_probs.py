"""Log-probabilities of given tokens: the right token, any chunking, no influence of padding; and never the logits of
all tokens at a time, forwards or backwards."""

import copy
import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from gspo_cli.models import log_probs
from gspo_cli.models.log_probs import token_scores

Rows = tuple[torch.Tensor, torch.Tensor]
"""Token ids, and a mask of loss tokens."""


@pytest.fixture
def rows() -> Rows:
    ids = torch.randint(3, 99, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[0, 2:9] = mask[1, 3:6] = mask[2, 5:8] = True
    return ids, mask


def test_equals_log_softmax_of_the_logits_before(tiny_moe: PreTrainedModel, rows: Rows) -> None:
    ids, mask = rows
    logits = tiny_moe(input_ids=ids, use_cache=False).logits
    plain = torch.log_softmax(logits / 0.7, -1)
    scores = token_scores(tiny_moe, ids, mask, 0.7)
    for b, t in mask.nonzero().tolist():
        torch.testing.assert_close(scores.log_probs_BT[b, t], plain[b, t - 1, ids[b, t]])
        expected = -(plain[b, t - 1].exp() * plain[b, t - 1]).sum()
        torch.testing.assert_close(scores.entropy_BT[b, t], expected)
    assert (scores.log_probs_BT[~mask] == 0).all()


def test_chunks_change_nothing(tiny_moe: PreTrainedModel, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, mask = rows
    model = copy.deepcopy(tiny_moe).double()

    def gradients(size: int, kept: int = 0) -> list[torch.Tensor]:
        monkeypatch.setattr(log_probs, "CHUNK_LOGITS", size * 99)
        monkeypatch.setattr(log_probs, "KEPT_LOGITS", kept)
        model.zero_grad()
        token_scores(model, ids, mask, 1.0).log_probs_BT.sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    whole = gradients(1000)
    for size, kept in itertools.product((1, 7, 13), (0, 1 << 20)):
        for a, b in zip(whole, gradients(size, kept), strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_padding_and_neighbours_change_nothing(tiny_moe: PreTrainedModel, rows: Rows) -> None:
    ids, mask = rows
    whole = token_scores(tiny_moe, ids, mask, 1.0).log_probs_BT
    for b in range(3):
        end = int(mask[b].nonzero().max()) + 1
        alone = token_scores(tiny_moe, ids[b : b + 1, :end], mask[b : b + 1, :end], 1.0).log_probs_BT
        torch.testing.assert_close(alone[0], whole[b, :end], atol=1e-5, rtol=0)


VOCABULARY, ROWS, LENGTH = 4000, 32, 16
ALL_LOGITS = VOCABULARY * ROWS * (LENGTH - 1)


class Held(TorchDispatchMode):
    """Counts the numbers in the tensors that operations have made and that are still alive, by storage."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = self.largest = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self.alive:
                self.alive[storage._cdata] = storage.nbytes() // 4
                weakref.finalize(storage, self.alive.pop, storage._cdata)
                self.largest = max(self.largest, storage.nbytes() // 4)
        self.most = max(self.most, sum(self.alive.values()))
        return out


@pytest.fixture(scope="module")
def wide(tiny_dense: PreTrainedModel) -> PreTrainedModel:
    """A model whose logits are much larger than all else."""
    model = copy.deepcopy(tiny_dense)
    model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    return model


def held(model: PreTrainedModel) -> Held:
    """What one pass forwards and backwards holds."""
    ids_BT = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    mask_BT = (torch.arange(LENGTH) > 0).expand(ROWS, LENGTH)
    model.zero_grad(set_to_none=True)
    with Held() as found:
        token_scores(model, ids_BT, mask_BT, 1.0).log_probs_BT.sum().backward()
    return found


def test_no_more_than_a_chunk_of_logits_is_held(wide: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = held(wide)
    assert whole.largest == ALL_LOGITS and whole.most > 2 * ALL_LOGITS  # the count sees them where one chunk holds all
    monkeypatch.setattr(log_probs, "CHUNK_LOGITS", 8 * VOCABULARY)
    monkeypatch.setattr(log_probs, "LOGITS_PER_HIDDEN", 0)
    monkeypatch.setattr(log_probs, "KEPT_LOGITS", ALL_LOGITS)
    kept = held(wide)
    assert kept.largest < ALL_LOGITS <= kept.most  # the log-probabilities of all chunks, for the backward pass
    monkeypatch.setattr(log_probs, "KEPT_LOGITS", ALL_LOGITS - 1)
    chunked = held(wide)
    assert chunked.largest <= max(8 * VOCABULARY, VOCABULARY * wide.config.hidden_size)  # or the head's gradient
    assert chunked.most < ALL_LOGITS / 2  # a softmax kept for the backward pass would be all of it
