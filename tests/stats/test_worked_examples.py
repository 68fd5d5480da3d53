"""Fixed examples, each to six significant digits."""

import numpy as np
import pytest

from gspo_cli.stats import paired, robust
from gspo_cli.stats.curves import apart_from, area_mean, last_mean, max_t


def close(value: float) -> object:
    return pytest.approx(value, rel=5e-6)


def test_holm_and_mcnemar() -> None:
    assert paired.holm({"a": 0.01, "b": 0.04, "none": None, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert paired.holm({}) == {}
    counts = {(0, 6): 0.03125, (0, 5): 0.0625, (1, 5): 0.21875, (1, 7): 0.0703125, (0, 0): 1.0}
    assert {pair: paired.mcnemar(*pair) for pair in counts} == pytest.approx(counts)


def test_areas() -> None:
    y = np.array([0, 0.2, 0.4, 0.4, 0.6])
    # trapezoids 0.1 + 0.3 + 0.4 + 0.5 over a length of 4
    assert area_mean(np.arange(1.0, 6.0), y, 1, 5) == pytest.approx(0.325)
    tokens = np.array([100.0, 200, 400, 500, 800])
    assert area_mean(tokens, y, 100, 800) == pytest.approx(0.3714286, abs=5e-8)
    assert area_mean(tokens, y, 100, 650) == pytest.approx(0.3227273, abs=5e-8)
    assert area_mean(tokens, y, 100, 100) == 0


def test_the_last_tenth_is_of_the_plan() -> None:
    steps = np.arange(1, 21)
    assert last_mean(steps, steps.astype(float), 20) == 19.5
    # failed at step 12: its last value stands at 19 and 20
    assert last_mean(steps[:12], steps[:12].astype(float), 20) == 12
    # failed at step 19 of 20: the mean of step 19 and the carried one
    assert last_mean(steps[:19], steps[:19].astype(float), 20) == 19
    # 0.9 x 70 is a hair above 63 in floating point
    assert all(last_mean(np.arange(1, n + 1), np.ones(n).cumsum(), n) > 0.9 * n for n in range(1, 500))
    assert last_mean(np.arange(1, 71), np.arange(1.0, 71), 70) == 67
    # evaluated at steps 0, 20, 40 only
    assert last_mean(np.array([0, 20, 40]), np.array([0.1, 0.2, 0.3]), 40) == 0.3


def test_curves_that_part_at_the_third_step() -> None:
    D_ST = np.array([
        [0.01, 0.02, 0.05, 0.06], [-0.02, 0.03, 0.04, 0.07], [0, 0.01, 0.06, 0.05],
        [0.02, -0.01, 0.03, 0.08], [-0.01, 0.04, 0.05, 0.06], [0.01, 0.02, 0.07, 0.09],
    ])  # fmt: skip
    p_T = max_t(D_ST)
    assert p_T == pytest.approx([1, 0.15625, 0.03125, 0.03125])
    assert apart_from(np.arange(1, 5), p_T) == 3
    assert apart_from(np.arange(1, 5), p_T[::-1]) is None


def test_exact_bounds_on_shares() -> None:
    # 1 - 0.05^(1/8): no collapse in eight runs still allows 31 %
    assert robust.most(0, 8) == close(1 - 0.05 ** (1 / 8)) and robust.most(8, 8) == 1
    # the interval of the median: second and second-largest of nine leave P(Bin(9, 1/2) < 2) = 10/512 at each end
    nine = np.arange(9.0)
    assert robust.median(nine) == robust.Summary(4.0, (1.0, 7.0))
    assert robust.median(nine[:6]).ci == (0.0, 5.0) and robust.median(nine[:5]).ci is None
    # Clopper and Pearson, 6 of 6
    assert robust.improvement(np.ones(6)).ci == pytest.approx((0.025 ** (1 / 6), 1.0))
    # of 0, 1, ..., 7 the middle four; winsorised 2, 2, 2, 3, 4, 5, 5, 5 has variance 2; t(.985, 3) = 3.8960, times
    # sqrt(2 x 8) / 4
    found = robust.interquartile_mean(np.arange(8.0))
    assert found.value == 3.5 and found.ci == pytest.approx((3.5 - 3.896046, 3.5 + 3.896046), rel=1e-6)


def test_all_runs_need_many_pairs_without_a_collapse() -> None:
    n = robust.pairs_for_all_runs(0.1)
    assert n is not None and robust.holds_for_all_runs(0.1, n, 0) and not robust.holds_for_all_runs(0.1, n - 2, 0)
    assert robust.pairs_for_all_runs(-0.1) is None


def test_the_power_of_the_whole_rule() -> None:
    assert paired.rule_mde(2.0, 6) == close(2 * 1.92) and paired.rule_mde(1.0, 5) is None
    assert paired.rule_seeds_needed(0.1, 1.0) == 6, "no fewer than the rule needs"
    needed = paired.rule_seeds_needed(1.0, 0.5)
    assert needed is not None
    before, after = paired.rule_mde(1.0, needed - 1), paired.rule_mde(1.0, needed)
    assert before is not None and after is not None and after <= 0.5 < before
    assert paired.rule_seeds_needed(1.0, 1e-5) is None
