"""Fixed examples, each to six significant digits."""

from __future__ import annotations

import numpy as np
import pytest

from gspo_cli.stats import paired, problems, robust
from gspo_cli.stats.curves import apart_from, area_mean, last_mean, max_t

D1 = np.array([0.03, 0.02, 0.04, 0.01, 0.05, 0.02])
D3 = np.array([0.05, 0.04, -0.01, 0.06, 0.03, 0.05])
D4 = np.array([0.004, -0.006, 0.002, -0.003, 0.005, -0.001])
A = ["13412", "23321", "23421", "22311", "12412", "02412"]
B = ["32313", "43424", "34333", "44324", "44334", "02432"]
A_SJ, B_SJ = (np.array([[int(c) for c in row] for row in rows]) / 4 for rows in (A, B))


def close(value: float) -> object:
    return pytest.approx(value, rel=5e-6)


def test_six_seeds_of_one_sign() -> None:
    found = paired.paired_t(D1)
    assert (found.mean, found.sd, found.t) == (close(0.02833333), close(0.0147196), close(4.714952))
    assert (found.p, found.df) == (close(0.00526629), 5)
    assert found.ci_t == pytest.approx((0.0128861, 0.0437806), rel=5e-6)
    # skewness 36 x mean cube / (20 sd^3); at 6 %, t(.97, 5) = 2.4216, the corrected interval reaches 0.045779
    assert (found.skew, found.p_skew) == (close(0.4180715), close(0.00168772))
    assert found.ci == pytest.approx((0.0128861, 0.0457790), rel=5e-6)
    assert paired.p_equal(D1, 0.05) == close(0.0171318)
    flip = paired.sign_flip(D1)
    assert (flip.p, flip.exact, flip.flips) == (0.03125, True, 64)
    assert paired.tost(D1, 0.02) == pytest.approx((0.000240313, 0.887918), rel=2e-6)
    assert paired.tost(D1, 0.05) == pytest.approx((2.3694e-5, 0.00772631), rel=5e-5)
    assert paired.mde(found.sd, 6) == close(0.0211159)


def test_no_difference_is_shown_by_two_one_sided_tests() -> None:
    assert paired.paired_t(D4).p == close(0.927414)
    assert paired.sign_flip(D4).p == 1.0
    assert paired.tost(D4, 0.02) == pytest.approx((4.1964e-5, 4.5493e-5), rel=5e-5)


def test_the_cube() -> None:
    D_S = (B_SJ - A_SJ).mean(axis=1)
    assert pytest.approx([0.05, 0.3, 0.2, 0.4, 0.4, 0.1]) == D_S
    found = paired.paired_t(D_S)
    assert (found.mean, found.p) == (close(0.24166667), close(0.0108104))
    assert found.ci_t == pytest.approx((0.0845431, 0.3987902), rel=5e-6)
    two = problems.two_way(B_SJ - A_SJ)
    assert two is not None and two.df == 4
    assert (two.V_s, two.V_c) == (close(0.00373611), close(0.00944444))
    assert (two.V_sc, two.V) == (close(0.00323036), close(0.00995019))
    assert two.ci == pytest.approx((-0.0352855, 0.5186189), rel=5e-6)
    noise = problems.noise_split(A_SJ, B_SJ, 4)
    assert noise is not None and noise.share is not None
    assert (noise.within, noise.between) == (close(0.0201389), close(0.00227778))
    assert 100 * noise.share == pytest.approx(10.2, abs=0.05)
    assert paired.mde(found.sd, 6) == close(0.214783)
    assert problems.over_problems((B_SJ - A_SJ)[0]) == pytest.approx((-0.354733, 0.454733), rel=5e-6)


def test_the_cube_with_clusters_of_problems() -> None:
    two = problems.two_way(B_SJ - A_SJ, np.array(["x", "x", "y", "y", "z"]))
    assert two is not None and two.df == 2
    assert (two.V_c, two.V_sc, two.V) == (close(0.00943333), close(0.00327892), close(0.00989052))


def test_the_cube_by_pass_at_2() -> None:
    means = [np.mean([problems.pass_at_k(4, int(c), 2) for row in rows for c in row]) for rows in (A, B)]
    assert means == pytest.approx([0.755556, 0.922222], abs=5e-7)


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


def test_range_of_the_true_standard_deviation() -> None:
    assert paired.sd_range(6) == pytest.approx((0.62, 2.45), abs=5e-3)
    assert paired.sd_range(8) == pytest.approx((0.66, 2.04), abs=5e-3)


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
