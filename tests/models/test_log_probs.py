"""Log-probabilities of given tokens: the right token, any chunking, no influence of padding."""

import copy
import itertools

import pytest
import torch
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


def test_head_runs_on_completion_positions_only(
    tiny_moe: PreTrainedModel, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    inner = log_probs._score_chunk
    monkeypatch.setattr(log_probs, "_score_chunk", lambda m, h, *rest: (seen.append(len(h)), inner(m, h, *rest))[1])
    token_scores(tiny_moe, *rows, 1.0)
    assert seen == [int(rows[1].sum())]
