"""How often each method calls a difference where there is none, over simulated studies.

M = studies, S = seeds, J = problems
"""

import itertools

import numpy as np
import pytest
from program import results_program
from scipy import special, stats

from gspo_cli.report.compare.scores import Array, Scores, difference_stats
from gspo_cli.report.compare.verdict import Evidence, judge, within_margin
from gspo_cli.stats import paired

STUDIES, PROBLEMS, SAMPLES = 2000, 30, 16


def null_studies(num_seeds: int) -> tuple[Array, Array]:
    """Shares of right answers of both arms, each [M, S, J], of studies in which the algorithms do not differ.

    In logits: problems N(-1, 2), luck of a seed 0.15 (both arms), of a run 0.25, of a run on a problem 0.5; about 4
    points from run to run.
    """
    rng = np.random.default_rng(num_seeds)
    shape = (2, STUDIES, num_seeds, PROBLEMS)
    logits = rng.normal(-1, 2, (1, STUDIES, 1, PROBLEMS)) + rng.normal(0, 0.15, (1, STUDIES, num_seeds, 1))
    logits = logits + rng.normal(0, 0.25, (*shape[:3], 1)) + rng.normal(0, 0.5, shape)
    a, b = rng.binomial(SAMPLES, special.expit(logits)) / SAMPLES
    return a, b


def p_values(D_MS: Array) -> tuple[Array, Array]:
    """p of the paired t test and of all sign flips, each [M]; the formulas, for all studies at once."""
    p_t = stats.ttest_1samp(D_MS, 0.0, axis=1).pvalue
    signs = np.array(list(itertools.product((1, -1), repeat=D_MS.shape[1])))
    sums = np.abs(D_MS @ signs.T)
    return p_t, (sums >= sums[:, :1] - 1e-12).mean(axis=1)


@pytest.mark.parametrize("num_seeds", [6, 8])
def test_false_positives(num_seeds: int) -> None:
    a_MSJ, b_MSJ = null_studies(num_seeds)
    D_MS = (b_MSJ - a_MSJ).mean(axis=2)
    p_t, p_exact = p_values(D_MS)
    better = np.array([
        judge(Evidence(num_seeds, d.mean(), ci=(0, 1), p_t=t, p_exact=e), "higher") == "better"
        for d, t, e in zip(D_MS, p_t, p_exact, strict=True)
    ])  # fmt: skip
    assert 0.03 <= (p_t <= 0.05).mean() <= 0.07
    assert 0.005 <= better.mean() <= 0.055
    # the usual way, all answers as if independent: why none of this is done
    answers = num_seeds * PROBLEMS * SAMPLES
    a_M, b_M = a_MSJ.mean(axis=(1, 2)), b_MSJ.mean(axis=(1, 2))
    pooled = (a_M + b_M) / 2
    z = (b_M - a_M) / np.sqrt(2 * pooled * (1 - pooled) / answers)
    assert (abs(z) > 1.96).mean() > 0.20


@pytest.mark.parametrize("num_seeds", [5, 6, 8])
def test_the_formulas_above_are_what_compare_computes(num_seeds: int) -> None:
    a_MSJ, b_MSJ = null_studies(num_seeds)
    p_t, p_exact = p_values((b_MSJ - a_MSJ).mean(axis=2))
    for m in range(15):
        cube = (a_MSJ[m], b_MSJ[m])
        sides = [side.mean(axis=1) for side in cube]
        evidence = difference_stats(Scores(sides[0], sides[1], cube, SAMPLES, True), 2.0).evidence()
        assert evidence.p_t is not None and evidence.p_t >= p_t[m] * (1 - 1e-9)  # never below the uncorrected one
        assert evidence.p_exact == pytest.approx(p_exact[m])
        better = judge(evidence, "higher") == "better"
        assert not better or (num_seeds >= 6 and max(p_t[m], p_exact[m]) <= 0.05)


def test_planned_looks_together_keep_the_level() -> None:
    statements = results_program("statements")
    for shape in statements.SHAPES:
        cell = statements.looks_cell(shape, (8, 12), 1000)
        # 7 %, with three standard errors of 1,000 studies; at the full level at each look it is 7 to 9 %
        assert max(cell["false better"], cell["false within margin"]) <= 9.4, cell
        assert cell["false better"] < cell["false better without a plan"], cell
    D_MS = np.random.default_rng(5).exponential(1, (60, 8)) - 0.2
    found, base = statements.judge_all(D_MS, 3), np.linspace(0.1, 0.2, 8)
    for m, D_S in enumerate(D_MS):  # as compare judges one look of three
        evidence = difference_stats(Scores(base, base + D_S), statements.MARGIN, looks=3).evidence()
        assert (judge(evidence, "higher") == "better") == bool(found.better_up[m] | found.better_down[m])
        assert evidence.ci == pytest.approx((found.low[m], found.high[m]))


@pytest.mark.slow
@pytest.mark.parametrize("collapse", [(0.0, 0.0), (0.0, 0.15), (0.3, 0.1)])
@pytest.mark.parametrize("num_seeds", [5, 6, 8])
def test_no_sentence_is_often_false_about_its_own_estimand(num_seeds: int, collapse: tuple[float, float]) -> None:
    statements = results_program("statements")
    for shape in statements.SHAPES:
        cell = statements.cell(shape, num_seeds, collapse, 1000)
        # 7 % and 90 %, with three standard errors of 1,000 studies
        assert max(cell["false better"], cell["false within margin"], cell["false collapses more often"]) <= 9.4, cell
        assert cell["interval covers"] >= 87.2 and cell["bound covers"] >= 93, cell
    if collapse == (0.0, 0.15) and num_seeds == 8:
        rng = np.random.default_rng(0)
        D_MS = rng.normal(0, 1, (1000, 8)) + 3
        D_MS = D_MS - 20 * (rng.random((1000, 8)) < 0.15)  # mean difference 0, as one in seven runs collapses
        assert statements.old_rule(D_MS).mean() > 0.2


def test_three_arms_at_the_margin_are_seldom_called_equal() -> None:
    num_seeds, rng = 8, np.random.default_rng(1)
    D_MAS = 1 + rng.normal(0, 0.5, (4000, 4, num_seeds))  # the margin is 1: "equal" is false for every arm
    p_MA = one_sided_p(D_MAS)
    assert p_MA[0, 0] == pytest.approx(paired.p_equal(D_MAS[0, 0], 1.0))
    others_at_five_percent = stats.ttest_1samp(D_MAS[:, 1:], 1.0, axis=2, alternative="less").pvalue <= 0.05
    assert 0.12 <= others_at_five_percent.any(axis=1).mean() <= 0.16  # 1 - 0.95^3
    equal_MA = np.array([[within_margin(e) for e in as_compare_adjusts(p_A, num_seeds)] for p_A in p_MA])
    assert equal_MA[:, 1:].any(axis=1).mean() <= 0.04  # one family at 3 %
    assert equal_MA.any(axis=1).mean() <= 0.07  # with the primary arm


def one_sided_p(D_MAS: Array) -> Array:
    """`paired.p_equal` against the margin 1 for all studies at once, [M, A]; the differences are positive."""
    n = D_MAS.shape[-1]
    mean, sd = D_MAS.mean(axis=-1), D_MAS.std(axis=-1, ddof=1)
    skew = stats.skew(D_MAS, axis=-1, bias=False)
    above, below = ((mean + shift) / (sd / n**0.5) for shift in (1, -1))
    pairs = [(above, below), (paired.corrected_t(above, skew, n), paired.corrected_t(below, skew, n))]
    return np.max([np.maximum(stats.t.sf(up, n - 1), stats.t.cdf(down, n - 1)) for up, down in pairs], axis=0)


def as_compare_adjusts(p_A: Array, num_seeds: int) -> list[Evidence]:
    """What the verdicts on several arms rest on: the first is primary, the others are one family."""
    others = paired.holm(dict(enumerate(p_A[1:].tolist())))
    p_equal = [float(p_A[0]), *(others[i] for i in range(len(others)))]
    return [Evidence(num_seeds, 1.0, p_equal=p, margin=1.0) for p in p_equal]


def test_a_stationary_reward_seldom_collapses_and_a_fall_does() -> None:
    collapse = results_program("collapse_rule")
    for steps, former in ((10, 40), (20, 30)):  # the former rule: 54 and 46 %
        rates = collapse.row(np.full(steps, 0.1), 8, 4, 150)
        assert rates["at the end"] <= 1 and rates["former rule, at the end"] > former, rates
    falls = np.where(np.arange(20) < 12, 0.5, 0.1)
    assert collapse.row(falls, 32, 16, 50)["at the end"] == 100
