"""How often each sentence of `gspo report compare` is false about its own estimand, over simulated studies.

    python results/programs/statements.py [--studies 2000] [--stream 0] [--power | --looks | --intervals]

One cell: a number of seeds, a shape of the differences, and the share of runs that collapse in each arm. Every study is
judged by the package's own rule, computed for all studies at once; a test compares the two. M = studies, S = seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from scipy import optimize, stats

from gspo_cli.stats.paired import ALPHA, EXACT_UP_TO, corrected_t, levels
from gspo_cli.stats.robust import interquartile_mean, median, most

Array = np.ndarray[Any, Any]
SEEDS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20)
COLLAPSES = ((0.0, 0.0), (0.0, 0.05), (0.0, 0.15), (0.0, 0.3), (0.15, 0.15), (0.3, 0.1))
"""Probability of a collapse in baseline and treatment."""
DEPTH = 20.0
"""How far a collapsed run falls, in standard deviations of a difference."""
MARGIN = 3.0
"""Of equality, in these standard deviations."""
FLIPS = 4096
"""Sign flips, random above twelve seeds."""


def exponential(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return 1 - rng.exponential(1, shape)


def one_arm(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """One arm exponential, the other normal with half its spread."""
    return (1 - rng.exponential(1, shape) + rng.normal(0, 0.5, shape)) / 1.25**0.5


SHAPES = {"normal": lambda rng, shape: rng.normal(0, 1, shape), "one arm skewed": one_arm, "exponential": exponential}
"""Differences with mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class Judged:
    """What the rule says of M studies."""

    better_up: Array
    better_down: Array
    within: Array
    """Equality within the margin is shown; "equal" is said where "better" is not."""
    low: Array
    high: Array


def judge_all(D_MS: Array, looks: int = 1) -> Judged:
    """The rule of `verdict.judge` for studies with equally many pairs.

    Below six seeds "better" means "suggestive", which the t tests alone decide.

    `looks` = `report.looks`: one of so many planned comparisons of the study, each at its share of the level.
    """
    num, n = D_MS.shape
    if n < 4:
        no, wide = np.zeros(num, dtype=bool), np.full(num, np.inf)
        return Judged(no, no, no, -wide, wide)
    mean, sd = D_MS.mean(1), D_MS.std(1, ddof=1)
    skew = ((D_MS - mean[:, None]) ** 3).mean(1) * n**2 / ((n - 1) * (n - 2)) / sd**3
    error, level = sd / n**0.5, levels(n)
    t, a = mean / error, skew / (3 * n**0.5)

    def ends(tail: float) -> tuple[Array, Array]:
        q = stats.t.isf(tail / looks, n - 1)
        safe = np.where(np.abs(a) < 1e-9, 1e-9, a)
        most = level.stretch * q
        t_MX = [(np.cbrt(1 + 3 * safe * (sign * q - safe / 2)) - 1) / safe for sign in (1, -1)]
        return tuple(mean - error * np.clip(t_M, -most, most) for t_M in t_MX)

    half = stats.t.isf(ALPHA / 2 / looks, n - 1) * error
    low, high = ends(level.interval / 2)
    low, high = np.minimum(low, mean - half), np.maximum(high, mean + half)
    half = stats.t.isf(level.equal / looks, n - 1) * error
    low_eq, high_eq = ends(level.equal)
    low_eq, high_eq = np.minimum(low_eq, mean - half), np.maximum(high_eq, mean + half)
    passes = (stats.t.sf(np.abs(t), n - 1) * 2 <= ALPHA / looks) & (
        stats.t.sf(np.abs(corrected_t(t, skew, n)), n - 1) * 2 <= level.skew / looks
    )
    if n >= 6:
        passes[passes] = p_exact(D_MS[passes]) <= ALPHA / looks
    equal = (low_eq >= -MARGIN) & (high_eq <= MARGIN)
    return Judged(passes & (mean > 0), passes & (mean < 0), equal, low, high)


def p_exact(D_MS: Array) -> Array:
    """The share of sign flips with a sum at least as large, [M]."""
    n = D_MS.shape[1]
    if n <= 12:
        signs_FS = np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    else:
        signs_FS = np.random.default_rng(0).choice((1.0, -1.0), (FLIPS - 1, n))
        signs_FS = np.concatenate([np.ones((1, n)), signs_FS])
    out = np.empty(len(D_MS))
    for begin in range(0, len(D_MS), 500):
        part = D_MS[begin : begin + 500]
        out[begin : begin + 500] = (np.abs(part @ signs_FS.T) >= np.abs(part.sum(1))[:, None] - 1e-9).mean(1)
    return out


def by_pairs(D_MS: Array, kept_MS: Array) -> Iterator[tuple[Array, Array]]:
    """(indices of studies, their kept differences) of the studies with equally many pairs without a collapse."""
    counts = kept_MS.sum(1)
    for n in np.unique(counts):
        rows = np.flatnonzero(counts == n)
        yield rows, D_MS[rows][kept_MS[rows]].reshape(len(rows), n)


def cell(shape: str, num_seeds: int, collapse: tuple[float, float], num: int, stream: int = 0) -> dict[str, Any]:
    """Rates of one cell, in percent of studies; another `stream` draws other studies."""
    rng = np.random.default_rng(
        [num_seeds, *shape.encode(), *(int(100 * c) for c in collapse), *[stream] * (stream > 0)]
    )
    D_MS = SHAPES[shape](rng, (num, num_seeds))
    fell_a, fell_b = (rng.random((num, num_seeds)) < c for c in collapse)
    kept_MS = ~(fell_a | fell_b)
    up, covered, told = np.zeros((3, num), dtype=bool)
    equal_MX = np.zeros((num, 2), dtype=bool)
    for rows, part in by_pairs(D_MS, kept_MS):
        judged = judge_all(part)
        up[rows] = judged.better_up | judged.better_down
        covered[rows], told[rows] = (judged.low <= 0) & (judged.high >= 0), np.isfinite(judged.low)
        if part.shape[1] >= 4:
            for side, shift in enumerate((MARGIN, -MARGIN)):  # at the margin itself "equal" is false
                equal_MX[rows, side] = judge_all(part + shift).within
    only_a, only_b = (fell_a & ~fell_b).sum(1), (fell_b & ~fell_a).sum(1)
    more = np.array([_mcnemar(int(a), int(b)) for a, b in zip(only_a, only_b, strict=True)]) <= ALPHA
    told_wrong = more & ((collapse[0] == collapse[1]) | ((only_b > only_a) != (collapse[1] > collapse[0])))
    bound = np.array([most(c, num_seeds) for c in range(num_seeds + 1)])[fell_b.sum(1)] >= collapse[1]
    kept = [row[mask] for row, mask in zip(D_MS, kept_MS, strict=True) if mask.sum() >= 4]
    all_MS = D_MS + DEPTH * (fell_a.astype(float) - fell_b.astype(float))
    return {
        "shape": shape, "seeds": num_seeds, "collapse": collapse,
        "false better": rate(up), "false within margin": max(map(rate, equal_MX.T)),
        "interval covers": rate(covered[told]),
        "no interval": rate(~told), "false collapses more often": rate(told_wrong), "bound covers": rate(bound),
        "old rule better": rate(old_rule(all_MS)), **summaries(all_MS, kept, shape, collapse),
    }  # fmt: skip


LOOKS = ((8, 12), (8, 16), (6, 8, 12), (8, 12, 16, 20))
"""Plans of `report.looks`."""


def looks_cell(shape: str, looks: tuple[int, ...], num: int) -> dict[str, Any]:
    """How often a study is called better, or equal at the margin itself, at any of its planned looks, in percent; and
    how often "better" if it were compared at the full level at every look."""
    rng = np.random.default_rng([*shape.encode(), *looks])
    D_MS = SHAPES[shape](rng, (num, looks[-1]))
    better, naive, equal, equal_below = np.zeros((4, num), dtype=bool)
    for n in looks:
        judged, plain = judge_all(D_MS[:, :n], len(looks)), judge_all(D_MS[:, :n])
        better |= judged.better_up | judged.better_down
        naive |= plain.better_up | plain.better_down
        equal |= judge_all(D_MS[:, :n] + MARGIN, len(looks)).within
        equal_below |= judge_all(D_MS[:, :n] - MARGIN, len(looks)).within
    within = max(rate(equal), rate(equal_below))
    return {"shape": shape, "looks": looks, "false better": rate(better), "false within margin": within,
            "false better without a plan": rate(naive)}  # fmt: skip


INTERVAL_SHAPES = SHAPES | {
    "lognormal": lambda rng, shape: (np.e**0.5 - rng.lognormal(0, 1, shape)) / (np.e * (np.e - 1)) ** 0.5,
    "t, 3 df": lambda rng, shape: rng.standard_t(3, shape) / 3**0.5,
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
}


def intervals_cell(shape: str, n: int, num: int) -> dict[str, Any]:
    """Intervals for the mean at 95 %: how often each covers it, in percent, and its mean length in standard deviations;
    for the headline and for Student's also over the studies whose sample is as skewed as 1.5 or more."""
    rng = np.random.default_rng([n, *shape.encode()])
    D_MS = INTERVAL_SHAPES[shape](rng, (num, n))
    mean, error, q = D_MS.mean(1), D_MS.std(1, ddof=1) / n**0.5, stats.t.isf(ALPHA / 2, n - 1)
    skew = stats.skew(D_MS, axis=1, bias=False)
    shift = skew * error / (6 * n**0.5)  # Johnson's modified t (J. Am. Stat. Assoc. 73:536, 1978)
    judged, few = judge_all(D_MS), D_MS[:2000]
    bca = stats.bootstrap((few,), np.mean, axis=-1, n_resamples=999, method="BCa", rng=rng).confidence_interval
    ends = {
        "headline": (judged.low, judged.high),
        "not limited": _unlimited(D_MS),
        "student": (mean - q * error, mean + q * error),
        "johnson": (mean + shift - q * error, mean + shift + q * error),
        "bootstrap, BCa": (bca.low, bca.high),
        "smallest to largest": (D_MS.min(1), D_MS.max(1)),
    }
    found = {name: _covers(low, high) for name, (low, high) in ends.items()}
    big = np.abs(skew) >= 1.5
    for name in ("headline", "not limited", "student"):
        found[f"{name}, skewed sample"] = _covers(*(end[big] for end in ends[name]))
    return {"shape": shape, "seeds": n, "skewed samples": rate(big), **found}


def _covers(low: Array, high: Array) -> tuple[float, float]:
    return rate((low <= 0) & (high >= 0)), round(float((high - low).mean()), 2)


def _unlimited(D_MS: Array) -> tuple[Array, Array]:
    """The headline with the whole of Hall's correction."""
    limited = levels(D_MS.shape[1])
    with mock.patch.dict(judge_all.__globals__, levels=lambda _: replace(limited, stretch=float("inf"))):
        judged = judge_all(D_MS)
    return judged.low, judged.high


def _mcnemar(a: int, b: int) -> float:
    return 1.0 if a + b == 0 else min(1.0, 2 * float(stats.binom.cdf(min(a, b), a + b, 0.5)))


def old_rule(D_MS: Array) -> Array:
    """Paired t and sign flip over all pairs, collapsed or not: what this tool said before."""
    passes = stats.ttest_1samp(D_MS, 0, axis=1).pvalue <= ALPHA
    if D_MS.shape[1] < 6:
        return np.zeros(len(D_MS), dtype=bool)
    passes[passes] = p_exact(D_MS[passes]) <= ALPHA
    return passes


def summaries(all_MS: Array, kept: list[Array], shape: str, collapse: tuple[float, float]) -> dict[str, float | None]:
    """Coverage of the intervals of the median and the probability of improvement over all pairs, and of the
    interquartile mean over `kept`, the pairs of each study without a collapse (of four or more)."""
    rng = np.random.default_rng(7)
    many = SHAPES[shape](rng, (1, 400_000))[0]
    clean = np.sort(many)
    fell = [rng.random(len(many)) < c for c in collapse]
    many = np.sort(many + DEPTH * (fell[0].astype(float) - fell[1].astype(float)))
    truth = {"median": np.median(many), "iqm": clean[len(clean) // 4 : -(len(clean) // 4)].mean()}
    found: dict[str, float | None] = {}
    rows = {"median": (median, all_MS), "iqm": (interquartile_mean, kept)}
    for name, (function, values) in rows.items():
        cis = [function(row).ci for row in values[:1000]]
        known = [ci for ci in cis if ci]
        found[f"{name} covers"] = rate(np.array([lo <= truth[name] <= hi for lo, hi in known])) if known else None
    wins, n = (all_MS > 0).sum(1), all_MS.shape[1]
    ends = np.array([stats.binomtest(k, n).proportion_ci(0.95) for k in range(n + 1)])[wins]
    share = float((many > 0).mean())
    return found | {"improvement covers": rate((ends[:, 0] <= share) & (share <= ends[:, 1]))}


def rate(values: Array) -> float:
    """A share in percent; NaN over no case, which is printed as null."""
    return round(100 * float(values.mean()), 1) if len(values) else float("nan")


def detectable(num_seeds: int, num: int, target: float = 0.8) -> float:
    """The difference, in standard deviations, for which the rule says "better" in 80 % of normal studies."""
    Z_MS = np.random.default_rng(num_seeds).normal(0, 1, (num, num_seeds))
    return float(optimize.bisect(lambda d: judge_all(Z_MS + d).better_up.mean() - target, 0.2, 8, xtol=2e-3))


def power(D_MS: Array) -> tuple[float, float]:
    """(the old rule's, the present rule's) share of studies that are called better."""
    return rate(old_rule(D_MS)), rate(judge_all(D_MS).better_up)


def main() -> None:
    """Prints one JSON line per cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--stream", type=int, default=0, help="other random numbers, to repeat the table")
    parser.add_argument("--power", action="store_true", help="the detectable difference and the power lost, instead")
    parser.add_argument("--looks", action="store_true", help="studies with planned looks, instead")
    parser.add_argument("--intervals", action="store_true", help="other intervals for the mean beside ours, instead")
    args = parser.parse_args()
    if args.intervals:
        for n, shape in itertools.product((6, 8, 12), INTERVAL_SHAPES):
            print(json.dumps(intervals_cell(shape, n, args.studies)), flush=True)
        return
    if args.looks:
        for shape, looks in itertools.product(SHAPES, LOOKS):
            print(json.dumps(looks_cell(shape, looks, args.studies)), flush=True)
        return
    if args.power:
        for n in (s for s in SEEDS if s >= 6):
            effect = detectable(n, args.studies)
            D_MS = np.random.default_rng(1).normal(0, 1, (args.studies, n))
            lost = {f"{share:g}": power(D_MS + share * effect) for share in (0.6, 0.8, 1.0)}
            print(json.dumps({"seeds": n, "detectable": round(effect, 3), "old and new power at": lost}), flush=True)
        return
    for shape, n, collapse in itertools.product(SHAPES, SEEDS, COLLAPSES):
        found = cell(shape, n, collapse, args.studies, args.stream)
        print(json.dumps({k: None if v != v else v for k, v in found.items()}, allow_nan=False), flush=True)


if __name__ == "__main__":
    assert EXACT_UP_TO >= 12
    main()
