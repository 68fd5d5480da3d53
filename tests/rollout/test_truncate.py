"""Top-k, top-p and min-p keep what vLLM keeps: against its rules written out token by token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gspo_cli.rollout.builtin.sampler import truncate
from gspo_cli.types import Sampling

LOGITS = st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True)


def kept_by_the_rules(probs: list[float], sampling: Sampling) -> set[int]:
    """vLLM 0.32: min-p on the whole distribution, then top-k, then top-p on what is left, renormalised."""
    kept = {i for i, p in enumerate(probs) if p >= sampling.min_p * max(probs)}
    if 0 < sampling.top_k < len(probs):
        kth = sorted((probs[i] for i in kept), reverse=True)[: sampling.top_k][-1]
        kept = {i for i in kept if probs[i] >= kth}
    if sampling.top_p < 1:
        total, below = sum(probs[i] for i in kept), 0.0
        for i in sorted(kept, key=probs.__getitem__)[:-1]:
            below += probs[i] / total
            if below <= 1 - sampling.top_p:
                kept = kept - {i}
    return kept


@given(LOGITS, st.floats(0.05, 1), st.integers(0, 13), st.floats(0, 1), st.sampled_from([0.3, 0.6, 1.0, 1.7]))
def test_kept_tokens_and_their_probabilities(
    units: list[int], top_p: float, top_k: int, min_p: float, temperature: float
) -> None:
    sampling = Sampling(temperature, 1, top_p, top_k, min_p)
    scaled = [u / 10 / temperature for u in units]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    probs = [w / sum(weights) for w in weights]
    edges = [abs(p - min_p * max(probs)) for p in probs]
    rising = sorted(probs)
    edges += [abs(sum(rising[:n]) - (1 - top_p)) for n in range(len(rising))]
    if min(edges) < 1e-5 and top_p < 1:
        return  # a token on the very edge may fall either way in float32
    log_probs = torch.log_softmax(torch.tensor([units]) / 10 / temperature, -1)
    found = truncate(log_probs, sampling)[0]
    kept = {i for i, lp in enumerate(found.tolist()) if lp > -math.inf}
    expected = kept_by_the_rules(probs, sampling)
    near = min_p > 0 and min(abs(p - min_p * max(probs)) for p in probs) < 1e-6
    if kept != expected and not near:
        # top-p's own edge after the other two renormalised
        total = sum(probs[i] for i in expected | kept)
        sums = [sum(sorted(probs[i] / total for i in expected | kept)[:n]) for n in range(len(probs) + 1)]
        assert min(abs(s - (1 - top_p)) for s in sums) < 1e-5
        return
    if not near:
        mass = sum(probs[i] for i in kept)
        for i in kept:
            assert found[i].item() == pytest.approx(math.log(probs[i] / mass), abs=1e-4)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        # probabilities 0.5, 0.25, 0.125, 0.125
        (Sampling(1.0, 1), [0, 1, 2, 3]),
        (Sampling(1.0, 1, top_k=3), [0, 1, 2, 3]),  # the fourth ties with the third
        (Sampling(1.0, 1, top_p=0.76), [0, 1, 3]),  # 0.125 <= 0.24 goes, 0.25 > 0.24 stays
        (Sampling(1.0, 1, top_p=0.74), [0, 1]),
        (Sampling(1.0, 1, min_p=1.0), [0]),
        (Sampling(1.0, 1, min_p=0.49, top_p=0.6), [0]),  # 1/3 of what min-p left is <= 0.4
    ],
)
def test_by_hand(sampling: Sampling, kept: list[int]) -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    found = truncate(log_probs, sampling)[0]
    assert [i for i, lp in enumerate(found.tolist()) if lp > -math.inf] == kept
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-6)
