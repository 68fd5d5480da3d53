"""How often each method calls a difference where there is none, over simulated studies.

M = studies, S = seeds, J = problems
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import special, stats

from gspo_cli.report.compared import evidence_of
from gspo_cli.report.numbers import Array, Scores, measure
from gspo_cli.report.verdict import Evidence, judge

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
    for m in range(40):
        cube = (a_MSJ[m], b_MSJ[m])
        sides = [side.mean(axis=1) for side in cube]
        evidence = evidence_of(measure(Scores(sides[0], sides[1], cube, SAMPLES, True), 2.0))
        assert (evidence.p_t, evidence.p_exact) == pytest.approx((p_t[m], p_exact[m]))
        assert (judge(evidence, "higher") == "better") == (num_seeds >= 6 and max(p_t[m], p_exact[m]) <= 0.05)
