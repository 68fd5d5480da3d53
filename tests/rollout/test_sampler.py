"""The built-in sampler: exact, stateless, and cheap in the ways it claims to be."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import PreTrainedModel

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.builtin.sampler import Drawn, draw, sample, truncate, uniforms
from gspo_cli.types import Sampling

NEVER = math.inf
PROMPTS = [(4, 5, 6), (7, 8), (9, 10, 11, 12, 13), (20,)]


def responses(model: PreTrainedModel, prompts=PROMPTS, seeds=None, temperature=1.0, length=24, stops=frozenset({1})):
    seeds = seeds or [[100 * p[0] + i for i in range(3)] for p in prompts]
    return sample(model, prompts, seeds, Sampling(temperature, length), stops, NEVER)


def tokens(drawn: list[list[Drawn]]) -> list[list[list[int]]]:
    return [[d.token_ids for d in group] for group in drawn]


def test_greedy_equals_generate(tiny_moe: PreTrainedModel) -> None:
    greedy = responses(tiny_moe, seeds=[[0]] * 4, temperature=0.0)
    for prompt, (drawn,) in zip(PROMPTS, greedy, strict=True):
        peer = tiny_moe.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=1, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert drawn.token_ids == peer


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_equal_a_full_forward(tiny_moe: PreTrainedModel, temperature: float) -> None:
    for prompt, group in zip(PROMPTS, responses(tiny_moe, temperature=temperature), strict=True):
        for drawn in group:
            ids = torch.tensor([[*prompt, *drawn.token_ids]])
            mask = torch.arange(ids.shape[1])[None] >= len(prompt)
            full = token_scores(tiny_moe, ids, mask, temperature).log_probs_BT[mask]
            torch.testing.assert_close(torch.tensor(drawn.log_probs), full, atol=1e-4, rtol=0)


def test_a_sample_depends_on_prompt_and_seed_alone(tiny_moe: PreTrainedModel) -> None:
    together = tokens(responses(tiny_moe))
    backwards = tokens(responses(tiny_moe, prompts=PROMPTS[::-1]))
    alone = [tokens(responses(tiny_moe, prompts=[p]))[0] for p in PROMPTS]
    assert together == backwards[::-1] == alone
    other = tokens(responses(tiny_moe, seeds=[[100 * p[0] + i + 1 for i in range(3)] for p in PROMPTS]))
    assert [g[1:] for g in together] == [g[:-1] for g in other]
    assert together != other


def test_dropping_finished_rows_changes_no_token(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = frozenset(range(1, 60))  # most rows end early
    usual = responses(tiny_moe, stops=stops)
    assert len({len(d.token_ids) for g in usual for d in g}) > 1
    for share in (0.0, 2.0):
        monkeypatch.setattr("gspo_cli.rollout.builtin.sampler.DROP_SHARE", share)
        assert tokens(responses(tiny_moe, stops=stops)) == tokens(usual)


@contextmanager
def rows_fed(model: PreTrainedModel) -> Iterator[list[int]]:
    """Within the context, the rows of each pass."""
    rows: list[int] = []
    first = model.base_model.layers[0]
    handle = first.register_forward_pre_hook(lambda _m, args, _: rows.append(len(args[0])), with_kwargs=True)
    yield rows
    handle.remove()


def test_one_prefill_a_prompt_and_no_dropped_rows(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.rollout.builtin.sampler.DROP_SHARE", 0.0)
    with rows_fed(tiny_moe) as rows:
        drawn = responses(tiny_moe, stops=frozenset(range(1, 60)))
    answers = [(p, tuple(d.token_ids)) for p, g in enumerate(drawn) for d in g]
    assert rows[0] == len(PROMPTS)  # not 12 rows
    # token t + 1 is predicted from token t: responses longer than t tokens are forwarded after t, equal ones once
    longest = max(len(ids) for _, ids in answers)
    assert rows[1:] == [len({(p, ids[:t]) for p, ids in answers if len(ids) > t}) for t in range(1, longest)]


def test_stop_tokens_and_length_limit(tiny_moe: PreTrainedModel) -> None:
    drawn = [d for g in responses(tiny_moe, stops=frozenset({3, 50}), length=6) for d in g]
    for d in drawn:
        assert d.stopped == (d.token_ids[-1] in {3, 50})
        assert not {3, 50} & set(d.token_ids[:-1])
        assert d.stopped or len(d.token_ids) == 6
    first = responses(tiny_moe, length=1)[0][0].token_ids[0]
    assert responses(tiny_moe, stops=frozenset({first}))[0][0].token_ids == [first]


@pytest.mark.parametrize("sampling", [Sampling(1.0, 1), Sampling(0.6, 1), Sampling(0.6, 1, top_p=0.9)], ids=str)
def test_frequencies_match_the_distribution(sampling: Sampling) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    uniform = torch.from_numpy(uniforms(np.arange(100_000, dtype="uint64"), 0, 1)[:, 0])
    rows = torch.zeros(100_000, dtype=torch.long)
    token, log_prob = draw(logits[None].clone(), rows, uniform, sampling)
    expected = truncate(torch.log_softmax(logits[None] / sampling.temperature, -1), sampling)[0].double().exp()
    counts, kept = torch.bincount(token, minlength=5), expected > 0
    assert counts[~kept].sum() == 0 and bool(kept.all()) == (sampling.top_p == 1)
    assert chisquare(counts[kept].numpy(), (expected[kept] / expected.sum() * 100_000).numpy()).pvalue > 1e-3
    torch.testing.assert_close(log_prob, expected.log()[token].float())


def test_uniforms_do_not_depend_on_the_block() -> None:
    seeds = np.array([0, 1, 2**62], dtype=np.uint64)
    whole = uniforms(seeds, 0, 10)
    assert (whole[:, 4:7] == uniforms(seeds, 4, 3)).all()
    assert (whole >= 0).all() and (whole < 1).all()
    # splitmix64 of seed 0: the first outputs of the reference implementation (Vigna)
    assert whole[0, 0] == (0xE220A8397B1DCDAF >> 11) * 2.0**-53
    assert whole[0, 1] == (0x6E789E6AA1B965F4 >> 11) * 2.0**-53


def test_deadline(tiny_moe: PreTrainedModel) -> None:
    with pytest.raises(GspoError) as caught:
        sample(tiny_moe, PROMPTS, [[1]] * 4, Sampling(1.0, 5), frozenset({1}), time.monotonic() - 1)
    assert caught.value.code is ExitCode.ENGINE
