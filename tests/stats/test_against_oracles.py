"""The statistics against independent ones, and properties that must hold for any data."""

import itertools

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.sandwich_covariance import cov_cluster_2groups

from gspo_cli.stats import paired, problems
from gspo_cli.stats.curves import max_t

RNG = np.random.default_rng(7)


def test_paired_t_is_scipys_and_antisymmetric() -> None:
    for n in range(2, 11):
        a, b = RNG.normal(size=(2, n))
        found, oracle = paired.paired_t(b - a), stats.ttest_rel(b, a)
        assert (found.t, found.p, found.df) == pytest.approx((oracle.statistic, oracle.pvalue, oracle.df), rel=1e-12)
        assert found.ci_t == pytest.approx(tuple(oracle.confidence_interval(0.95)), rel=1e-12)
        swapped = paired.paired_t(a - b)
        assert (swapped.mean, swapped.p) == pytest.approx((-found.mean, found.p), rel=1e-12)
        assert swapped.ci == pytest.approx((-found.ci[1], -found.ci[0]), rel=1e-12)


def test_two_one_sided_tests_are_scipys() -> None:
    for n in range(3, 9):
        D_S = RNG.normal(0.1, 1, size=n)
        sides = [
            stats.ttest_1samp(D_S, end, alternative=side).pvalue for end, side in ((-0.5, "greater"), (0.5, "less"))
        ]
        assert paired.tost(D_S, 0.5) == pytest.approx(sides, rel=1e-9)
        ends = stats.ttest_1samp(D_S, 0.0).confidence_interval(0.95)
        assert problems.over_problems(D_S) == pytest.approx(tuple(ends), rel=1e-9)


@pytest.mark.parametrize("n", range(2, 11))
def test_sign_flip_is_the_enumeration(n: int) -> None:
    D_S = RNG.normal(0.3, 1, size=n).round(2)
    sums = np.array([np.dot(signs, D_S) for signs in itertools.product((1, -1), repeat=n)])
    assert paired.sign_flip(D_S).p == pytest.approx((abs(sums) >= abs(D_S.sum()) - 1e-12).mean())


def test_the_corrected_interval_is_the_inversion_of_its_test() -> None:
    """The means that the skewness-corrected test does not reject, found on a grid. From a skewness of about 1 on, six
    differences reach the flat part of the cubic, and the end lies at the most that it may stretch Student's."""
    drawn = (RNG.normal(size=6), RNG.exponential(size=6), RNG.exponential(size=9))
    for D_S in (*drawn, np.array(ROUTER), np.array(NOISY)):
        found, n = paired.paired_t(D_S), len(D_S)
        level = paired.levels(n).interval
        grid = np.linspace(found.mean - 9 * found.sd, found.mean + 9 * found.sd, 40_001)
        t = (found.mean - grid) / (found.sd / n**0.5)
        p = 2 * stats.t.sf(abs(paired.corrected_t(t, stats.skew(D_S, bias=False), n)), n - 1)
        kept = grid[p > level]
        ends = (min(kept[0], found.ci_t[0]), max(kept[-1], found.ci_t[1]))
        assert found.ci == pytest.approx(ends, abs=2 * (grid[1] - grid[0]))


NOISY = (-19.48, -19.01, -12.92, -17.15, -16.92, -17.99)
ROUTER = (-1.19, -3.83, -3.06, -3.72, -3.28, -3.61)


@pytest.mark.parametrize("D_S", [NOISY, ROUTER])
def test_an_interval_does_not_run_away_from_its_data(D_S: tuple[float, ...]) -> None:
    """Both have a skewness above 1.4. Without the limit the upper ends were -8.7 and -0.1; by hand, mean plus 2.5 times
    t(.97, 5) = 2.4216 standard errors: -17.245 + 6.0539 x 0.95718 and -3.115 + 6.0539 x 0.40242."""
    found = paired.paired_t(np.array(D_S))
    assert found.ci[1] == pytest.approx({NOISY: -11.4503, ROUTER: -0.6788}[D_S], abs=2e-4)
    assert found.ci[0] == found.ci_t[0] and found.p_mean < 0.05


def test_sign_flip_ends() -> None:
    assert paired.sign_flip(np.zeros(6)).p == 1
    for n in range(2, 11):
        assert paired.sign_flip(np.arange(1.0, n + 1)).p == 2 / 2**n


def test_many_seeds_are_drawn_and_repeat() -> None:
    D_S = np.random.default_rng(1).normal(0.5, 1, 19)
    one, other = paired.sign_flip(D_S), paired.sign_flip(D_S)
    assert not one.exact and one.flips == 99_999 and one == other
    assert one.p == pytest.approx(paired.paired_t(D_S).p, abs=0.02)


@pytest.mark.parametrize("clustered", [False, True])
def test_two_way_is_statsmodels(clustered: bool) -> None:
    for _ in range(50):
        num_seeds, num_problems = RNG.integers(2, 8), RNG.integers(4, 9)
        d_SJ = RNG.normal(size=(num_seeds, num_problems)) + RNG.normal(size=num_problems)
        cluster_J = np.arange(num_problems) // 2 if clustered else np.arange(num_problems)
        found = problems.two_way(d_SJ, cluster_J if clustered else None)
        fit = OLS(d_SJ.ravel(), np.ones(d_SJ.size)).fit()
        seeds_of = np.repeat(np.arange(num_seeds), num_problems)
        both, by_seed, by_cluster = cov_cluster_2groups(
            fit, seeds_of, np.tile(cluster_J, num_seeds), use_correction=True
        )
        assert found is not None
        oracle = [float(v[0, 0]) for v in (by_seed, by_cluster, both)]
        assert (found.V_s, found.V_c) == pytest.approx(tuple(oracle[:2]), rel=1e-10)
        assert found.V_s + found.V_c - found.V_sc == pytest.approx(oracle[2], rel=1e-9)
        assert max(found.V_s, found.V_c) <= found.V
        half = stats.t.ppf(0.975, found.df) * found.V**0.5
        assert found.ci == pytest.approx((d_SJ.mean() - half, d_SJ.mean() + half), rel=1e-9)
        assert found.df == min(num_seeds, len(set(cluster_J))) - 1


def test_power_is_statsmodels_without_nan() -> None:
    for n in range(2, 33):
        for effect in (0.1, 0.5, 1.0, 3.0, 12.0):
            found, oracle = paired.power(effect, n), TTestPower().power(effect, n, 0.05)
            assert np.isfinite(found)
            # the noncentral t behind the oracle gives NaN in the far tail
            assert found == pytest.approx(oracle, abs=1e-6) or np.isnan(oracle)
    solved = {n: TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8) for n in (4, 6, 8, 16, 32)}
    assert {n: paired.mde(1.0, n) for n in solved} == pytest.approx(solved, abs=1e-4)


def test_more_seeds_see_less_and_the_inverse_holds() -> None:
    found = [paired.rule_mde(0.03, n) or 0.0 for n in range(6, 40)]
    assert all(a > b for a, b in itertools.pairwise(found))
    assert [paired.rule_seeds_needed(0.03, m) for m in found] == list(range(6, 40))
    assert paired.rule_seeds_needed(1.0, 0.01) == pytest.approx((1.05 * (1.959964 + 0.841621) / 0.01) ** 2, rel=1e-3)
    assert paired.rule_seeds_needed(1.0, 1e-9) is None


@pytest.mark.slow
def test_holm_is_statsmodels() -> None:
    for size in range(1, 9):
        p = list(RNG.uniform(size=size) ** 2)
        oracle = dict(enumerate(multipletests(p, method="holm")[1]))
        assert paired.holm(dict(enumerate(p))) == pytest.approx(oracle)


@pytest.mark.parametrize("n", [3, 6])
def test_max_t_is_the_enumeration_and_never_below_the_pointwise_p(n: int) -> None:
    D_ST = RNG.normal(0.5, 1, size=(n, 7))
    flips = [D_ST * np.array(signs)[:, None] for signs in itertools.product((1, -1), repeat=n)]
    t_FT = np.array([abs(flip.mean(axis=0)) / flip.std(axis=0, ddof=1) for flip in flips])
    largest = (t_FT.max(axis=1)[:, None] >= t_FT[0] - 1e-9).mean(axis=0)
    assert max_t(D_ST) == pytest.approx(largest)
    assert (max_t(D_ST) >= (t_FT >= t_FT[0] - 1e-9).mean(axis=0)).all()


def test_the_share_within_seeds_is_unbiased() -> None:
    rng, k = np.random.default_rng(3), 4
    p_SJ = rng.uniform(size=(2, 6, 10))
    # the variance of a mean of binomials is known: sum of p(1-p)/k over problems and arms, over J^2
    true = (p_SJ * (1 - p_SJ) / k).sum(axis=(0, 2)).mean() / 10**2
    drawn = rng.binomial(k, p_SJ, size=(2000, 2, 6, 10)) / k
    found = [problems.noise_split(a, b, k) for a, b in drawn]
    assert np.mean([f.within for f in found if f]) == pytest.approx(true, rel=0.01)
    assert min(f.between for f in found if f) >= 0
    assert problems.noise_split(*drawn[0], 1) is None
    assert problems.noise_split(*drawn[0][:, :1], 4) is None


def test_equal_differences_have_no_t() -> None:
    assert paired.is_flat(np.full(6, 0.1)) and paired.is_flat(np.zeros(4)) and paired.is_flat(np.ones(1))
    with pytest.raises(AssertionError):
        paired.paired_t(np.full(6, 0.1))
    assert problems.two_way(np.ones((1, 5))) is None
    assert problems.over_problems(np.ones(5)) is None
