"""`gspo report fidelity` against a brute-force enumeration of all groups, and identities."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from enumerated import (
    EOS,
    LENGTH,
    PROMPTS,
    RESPONSES,
    Enumeration,
    World,
    arms,
    enumerate_groups,
    every,
    rollout,
    weights_of,
    world,
)  # fmt: skip
from torch import Tensor

from gspo_cli.instruments.fidelity.estimates import Fidelity, fidelity, signal
from gspo_cli.instruments.fidelity.gradients import Compressor, estimates, prepare
from gspo_cli.instruments.fidelity.measure import Cell, Plan, measure_seed
from gspo_cli.instruments.fidelity.pool import pooled, table
from gspo_cli.types import RolloutBatch

CLIP = {"grpo": (0.2, 0.27), "gspo": (0.05, 0.05), "reinforce": (0.2, 0.2)}
TABLES = {
    "gspo": {"name": "gspo", "clip": {"low": 0.05, "high": 0.05}},
    "reinforce": {"name": "reinforce", "allow_stale": True},
}
GROUPS = 8
"""Of each prompt in a batch."""


class Exact(NamedTuple):
    """The enumerated truth."""

    world: World
    off: dict[str, Enumeration]
    """Old responses, by algorithm."""
    on: Enumeration
    """Fresh responses: the on-policy gradient."""


@pytest.fixture(scope="module")
def exact() -> Exact:
    small = world()
    off = {name: enumerate_groups(small, small.old, weights_of(name, clip)) for name, clip in CLIP.items()}
    on = enumerate_groups(small, small.now, weights_of("reinforce", (0.2, 0.2)))
    return Exact(small, off, on)


def draws(found: Enumeration, batches: int, seed: int) -> Tensor:
    """Gradients of random batches, taken from the enumeration: [B, D]."""
    rng, parts = np.random.default_rng(seed), []
    for p, probability_RR in enumerate(found.probability_PRR):
        counts = rng.multinomial(GROUPS, (probability_RR / probability_RR.sum()).flatten().numpy(), size=batches)
        parts.append(torch.from_numpy(counts).double() @ found.gradient_PRRD[p].flatten(0, 1) / GROUPS)
    return torch.stack(parts).mean(0).float()


def test_probabilities_are_whole_and_clips_act(exact: Exact) -> None:
    assert exact.on.probability_PRR.sum((1, 2)).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert len(RESPONSES) == 15 and RESPONSES[0] == (EOS,) and max(map(len, RESPONSES)) == LENGTH
    plain = exact.off["reinforce"].gradient_PRRD
    for name in ("grpo", "gspo"):
        assert (exact.off[name].gradient_PRRD - plain).abs().max() > 0.01


def test_gradient_of_a_batch_is_that_of_the_papers_equations(exact: Exact) -> None:
    small = exact.world
    small.use(small.old)
    with torch.no_grad():
        log_probs = {(p, r): small.token_log_probs(PROMPTS[p], RESPONSES[r]) for p, r in every()}
    pairs = [(p, a, b) for p in range(2) for a, b in ((0, 1), (3, 14), (7, 8), (2, 2), (5, 9), (11, 4))]
    measured = arms(small.model, list(CLIP), **TABLES)
    prepared = prepare(rollout(pairs, log_probs), measured, None)
    small.use(small.now)
    found = estimates(prepared, (0.0,), Compressor(small.model))
    for name in CLIP:
        wanted = torch.stack([exact.off[name].gradient_PRRD[p, a, b] for p, a, b in pairs]).mean(0)
        assert torch.allclose(found[name, 0.0].gradient_D.double(), wanted, atol=2e-6 * float(wanted.abs().max())), name


@pytest.mark.parametrize("name", CLIP)
def test_bias_and_variance_are_those_of_the_enumeration(exact: Exact, name: str) -> None:
    reference = signal(draws(exact.on, 2000, 1))
    mu_D, truth = exact.on.mean_D, exact.off[name]
    squared = float(mu_D.square().sum())
    assert reference.squared_norm == pytest.approx(squared, rel=0.05)
    assert reference.variance == pytest.approx(exact.on.variance(GROUPS), rel=0.05)
    found = fidelity(draws(truth, 2000, 2), reference)
    along = float(truth.mean_D @ mu_D) / squared
    error = (truth.variance(GROUPS, mu_D / squared) / 2000) ** 0.5 + 0.02 * abs(along)
    assert found.projection == pytest.approx(along, abs=4 * error)
    assert found.variance == pytest.approx(truth.variance(GROUPS) / squared, rel=0.1)
    wanted = float(torch.cosine_similarity(truth.mean_D, mu_D, dim=0))
    assert found.direction == pytest.approx(wanted, abs=0.03)
    assert found.snr == pytest.approx(abs(along) * along * squared / truth.variance(GROUPS), rel=0.15, abs=0.01)


def test_on_policy_draws_reach_the_ceiling(exact: Exact) -> None:
    reference = signal(draws(exact.on, 2000, 3))
    found = fidelity(draws(exact.on, 2000, 4), reference)
    assert reference.ceiling is not None and 0.2 < reference.ceiling < 0.95
    assert found.cosine == pytest.approx(reference.ceiling, abs=0.02)
    assert found.projection == pytest.approx(1.0, abs=0.08)
    assert found.direction == pytest.approx(1.0, abs=0.04)


def test_noise_alone_is_not_resolved() -> None:
    """Two estimates that point against each other have no common part: nothing is claimed."""
    reference = signal(torch.tensor([[1.0, 0.0], [-1.0, 0.1]]))
    assert not reference.resolved and reference.ceiling is None
    assert fidelity(torch.tensor([[1.0, 0.0]]), reference) == Fidelity(None, (), None, None, None, None)


def test_estimates_by_hand() -> None:
    """Reference (2, 1) and (2, -1): mean (2, 0), inner product of the pair 4 - 1 = 3 = |mu|^2. Batches (1, 1), (3, 1):
    along the mean 2 and 6, so the projection is 4 / 3; pair product 4; variance (2 + 10) / 2 - 4 = 2."""
    reference = signal(torch.tensor([[2.0, 1.0], [2.0, -1.0]]))
    assert reference.squared_norm == 3 and reference.variance == 2
    assert reference.ceiling == pytest.approx(3 / (5**0.5 * 3**0.5))
    found = fidelity(torch.tensor([[1.0, 1.0], [3.0, 1.0]]), reference)
    assert found.cosines == pytest.approx((2 / 6**0.5, 6 / 30**0.5))
    assert (found.projection, found.variance) == pytest.approx((4 / 3, 2 / 3))
    assert found.direction == pytest.approx(4 / (2 * 3**0.5))
    assert found.snr == pytest.approx(16 / (3 * 2))


def draw(small: World, groups: int, number: int, version: int) -> RolloutBatch:
    """Random groups with the model's present weights."""
    with torch.no_grad():
        known = {(p, r): small.token_log_probs(PROMPTS[p], RESPONSES[r]) for p, r in every()}
    rng, pairs = np.random.default_rng((number, version)), []
    for g in range(groups):
        p = g % len(PROMPTS)
        chances = np.exp([float(known[p, r].sum()) for r in range(len(RESPONSES))])
        a, b = rng.choice(len(RESPONSES), size=2, p=chances / chances.sum())
        pairs.append((p, int(a), int(b)))
    return rollout(pairs, known, number)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Without updates and after two, with and without noise; `gspo-wide` never clips."""
    small, names = world(), ["grpo", "gspo", "gmpo", "sapo", "dapo", "reinforce", "grpo-wide", "gspo-wide"]
    wide = {"clip": {"low": 0.999999, "high": 1e9}}
    tables = {
        "reinforce": TABLES["reinforce"],
        "grpo-wide": {"name": "grpo"} | wide,
        "gspo-wide": {"name": "gspo"} | wide,
    }
    measured = arms(small.model, names, **tables)
    before = {name: value.clone() for name, value in small.model.state_dict().items()}
    plan = Plan((0, 2), (0.0, 0.5), batches=3, reference=6)
    found = measure_seed(measured, measured[0].run, measured[0].learner, partial(draw, small, 16), plan, lambda _: None)
    assert all(torch.equal(value, before[name]) for name, value in small.model.state_dict().items())
    return found


def cell(cells: list[Cell], arm: str, updates: int, noise: float) -> Cell:
    (found,) = (c for c in cells if (c.arm, c.updates, c.noise) == (arm, updates, noise))
    return found


def test_on_policy_and_without_noise_all_algorithms_are_one(cells: list[Cell]) -> None:
    ours = cell(cells, "reinforce", 0, 0.0)
    assert ours.fidelity.cosine is not None and ours.effective == 1
    for arm in ("grpo", "gspo", "gmpo", "sapo", "grpo-wide", "gspo-wide"):
        other = cell(cells, arm, 0, 0.0)
        assert other.fidelity == ours.fidelity and other.ceiling == ours.ceiling, arm
        assert not other.clipped
    assert cell(cells, "dapo", 0, 0.0).ceiling != ours.ceiling  # weighs responses by their length, so mu is another


def test_updates_and_noise_tell_them_apart(cells: list[Cell]) -> None:
    for updates, noise in ((2, 0.0), (0, 0.5), (2, 0.5)):
        found = {cell(cells, arm, updates, noise).fidelity.cosine for arm in ("grpo", "gspo", "reinforce")}
        assert len(found) == 3, (updates, noise)
    noisy, quiet = cell(cells, "grpo-wide", 0, 0.5), cell(cells, "gspo-wide", 0, 0.5)
    assert noisy.effective is not None and quiet.effective is not None
    assert noisy.effective < quiet.effective < 1
    # REINFORCE has no ratio, so noise on the old log-probabilities does not reach it
    assert cell(cells, "reinforce", 2, 0.5).fidelity == cell(cells, "reinforce", 2, 0.0).fidelity


def test_table_pools_seeds_with_paired_gaps() -> None:
    """Cosines 0.5, 0.7 against 0.4, 0.5: gaps 0.1 and 0.2, mean 0.15, half-width t(.975, 1) 0.0707 / sqrt(2)."""

    def one(arm: str, seed: int, cosine: float) -> Cell:
        known = Fidelity(cosine, (cosine, cosine), 1.0, 1.0, 1.0, 1.0)
        return Cell(arm, 1, 0.0, seed, known, 0.9, 1.0, 1.0, None)

    cells = [one("grpo", 0, 0.4), one("gspo", 0, 0.5), one("grpo", 1, 0.5), one("gspo", 1, 0.7)]
    found = table(cells, {"grpo": "grpo", "gspo": "gspo"}, "grpo")
    assert len(found) == 6
    rows = pooled(found).set_index("arm")
    assert rows.loc["gspo", "gap"] == pytest.approx(0.15)
    assert rows.loc["gspo", "gap_high"] - rows.loc["gspo", "gap"] == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert rows["gap"].isna()["grpo"] and rows["n"].tolist() == [2, 2]
    assert rows["clipped"].isna().all()
