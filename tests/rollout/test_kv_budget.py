"""`rollout.kv_budget_gb` is a true bound, and how rows are given to a pass changes no response."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from gspo_cli.models.decoding import CachedRows, KVCache, cache_size, held_bytes
from gspo_cli.rollout.builtin import sampler
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.builtin.sampler import branch, draw, uniforms
from gspo_cli.types import Prompt, Sampling


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KVCache]]:
    """Every cache that a sampler makes."""
    made: list[KVCache] = []
    real = CachedRows.__init__

    def init(self: CachedRows, *args: object) -> None:
        real(self, *args)  # type: ignore[arg-type]
        made.append(self.cache)

    monkeypatch.setattr(CachedRows, "__init__", init)
    yield made


@pytest.mark.parametrize("share", [0.08, 0.3, 0.61, 1.0])
def test_no_cache_is_larger_than_the_budget(tiny_dense: PreTrainedModel, caches: list[KVCache], share: float) -> None:
    prompts = [Prompt(str(i), tuple(range(3, 3 + length))) for i, length in enumerate((4, 17, 5, 9, 3))]
    seeds = {(p.problem_id, k): 10 * i + k for i, p in enumerate(prompts) for k in range(6)}
    whole = 30 * (17 + 8) * cache_size(tiny_dense, "shared").token
    caches.clear()
    budget = share * whole
    engine = TransformersEngine(tiny_dense, frozenset({1}), budget / 2**30, 1e9)
    samples = engine.generate(prompts, Sampling(1.0, 8), seeds)
    assert caches and max(map(held_bytes, caches)) <= budget
    assert sum(map(held_bytes, caches)) >= 0.4 * whole  # and it is used
    free = TransformersEngine(tiny_dense, frozenset({1}), 1.0, 1e9).generate(prompts, Sampling(1.0, 8), seeds)
    assert {(s.problem_id, s.index): s.token_ids for s in samples} == {
        (s.problem_id, s.index): s.token_ids for s in free
    }


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=20), st.integers(6, 9))
def test_every_response_goes_on_from_its_row(pairs: list[tuple[int, int]], num_rows: int) -> None:
    row_of, tokens = (np.array(column) for column in zip(*pairs, strict=True))
    sources, row_tokens, places = branch(row_of, tokens, num_rows)
    assert (sources[places] == row_of).all() and (row_tokens[places] == tokens).all()
    assert len(set(places.tolist())) == len(set(pairs))  # equal ones share a row, others do not
    written = [i for i, source in enumerate(sources) if source != i]
    assert not set(written) & set(sources[written].tolist())  # no row is overwritten before it is copied
    assert len(sources) <= max(num_rows, len(set(pairs)))


def drawn_in_float64(logits_RV: torch.Tensor, uniform_B: torch.Tensor, temperature: float) -> torch.Tensor:
    """The textbook: the whole cumulative distribution in float64."""
    cumulative_RV = (logits_RV.double() / temperature).softmax(-1).cumsum(-1)
    return torch.searchsorted(cumulative_RV, uniform_B[:, None] * cumulative_RV[:, -1:], right=True)[:, 0]


@settings(max_examples=30)
@given(st.integers(2, 900), st.floats(0.1, 2.0), st.integers(0, 2**31))
def test_draws_are_those_of_float64(vocabulary: int, temperature: float, seed: int) -> None:
    logits_RV = torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4
    uniform_B = torch.from_numpy(uniforms(np.arange(64, dtype=np.uint64) + np.uint64(seed), 0, 1)[:, 0])
    kept = copy.deepcopy(logits_RV)
    token_B, log_prob_B = draw(logits_RV, torch.arange(64), uniform_B, Sampling(temperature, 1))
    assert torch.equal(logits_RV, kept)
    assert (token_B == drawn_in_float64(logits_RV, uniform_B, temperature)).float().mean() >= 63 / 64
    expected = (logits_RV / temperature).log_softmax(-1)[torch.arange(64), token_B]
    torch.testing.assert_close(log_prob_B, expected, rtol=0, atol=2e-6 * max(1.0, float(expected.abs().max())))


def test_the_edges_of_a_span_are_drawn_too() -> None:
    vocabulary = 2 * sampler.SPAN + 3
    logits_RV = torch.full((1, vocabulary), -torch.inf)
    for token in (0, sampler.SPAN - 1, sampler.SPAN, 2 * sampler.SPAN, vocabulary - 1):
        alone = logits_RV.clone()
        alone[0, token] = 1.0
        for uniform in (0.0, 0.5, 1 - 2**-53):
            drawn, log_prob = draw(
                alone, torch.zeros(1, dtype=torch.long), torch.tensor([uniform]).double(), Sampling(1.0, 1)
            )
            assert drawn.tolist() == [token] and log_prob.tolist() == [0.0]
