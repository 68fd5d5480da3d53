"""What a training pass holds at a time: never the logits of all tokens, forwards or backwards."""

from __future__ import annotations

import copy
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
