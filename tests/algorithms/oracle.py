"""Every loss in plain Python loops, written from the papers' formulas.

Nothing of the package under test is imported. Each function takes a batch and the algorithm's settings (the defaults
are the published ones), states J and dJ/dl, and answers with everything a loss returns. `@oracle` files it under its
name, which is the algorithm's; no other list in the tests names every algorithm.

i = response, t = token position, N = responses and T = loss tokens of the batch, L_i = loss tokens of response i
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from oracle_batch import Answer, Batch, Grid, Term, Terms, ratio, reduced, saturated
from oracle_metrics import capped_metrics, clip_metrics, gate_metrics, outside_metric, ratio_metrics, weight_mean


class Oracle(NamedTuple):
    """An algorithm as its paper has it."""

    formula: Callable[..., Answer]
    detached: bool
    """Its gradient is, on purpose, not its value's slope."""
    divide: str
    """What its advantage r - mean is divided by: `std`, `mean`, `others` (the share of the others) or `nothing`."""

    def __call__(self, batch: Batch, **settings: Any) -> Answer:
        return self.formula(batch, **settings)


class Oracles(dict[str, Oracle]):
    """By the name of the algorithm."""

    def __missing__(self, name: str) -> Oracle:
        raise AssertionError(f"tests/algorithms/oracle.py has no oracle for {name!r}: add one, written from the paper")


ORACLES = Oracles()


def oracle(detached: bool = False, divide: str = "std") -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Files a formula under its name."""

    def file(formula: Callable[..., Answer]) -> Callable[..., Answer]:
        ORACLES[formula.__name__] = Oracle(formula, detached, divide)
        return formula

    return file


def hard_clip(x: float, a: float, low: float, high: float, dual_clip: float | None) -> Term:
    """min(e^x A, clip(e^x) A), for A < 0 not below dual_clip * A; d/dx is e^x A unless clipped or saturated."""
    w = ratio(x)
    value = min(w * a, min(max(w, 1 - low), 1 + high) * a)
    clipped = (a > 0 and x > math.log(1 + high)) or (a < 0 and x < math.log(1 - low))
    dual = dual_clip is not None and a < 0 and x > math.log(dual_clip)
    if dual_clip is not None and a < 0:
        value = max(value, dual_clip * a)
    return Term(value, 0.0 if clipped or dual or saturated(x) else w * a, x, clipped, dual)


def token_clip(batch: Batch, low: float, high: float, dual_clip: float | None) -> Terms:
    """Every loss token clipped by its own ratio w_it."""
    return {
        (i, t): hard_clip(batch.log_ratio(i, t), batch.advantage(i, t), low, high, dual_clip)
        for i, positions in batch.responses()
        for t in positions
    }


def sequence_clip(batch: Batch, low: float, high: float, dual_clip: float | None) -> Terms:
    """Every loss token clipped by its response's ratio s_i."""
    terms = {}
    for i, positions in batch.responses():
        x = batch.mean_log_ratio(i, positions)
        for t in positions:
            terms[i, t] = hard_clip(x, batch.advantage(i, t), low, high, dual_clip)
    return terms


def clipped_answer(batch: Batch, terms: Terms, low: float, high: float, *reduction: str | int) -> Answer:
    """The answer of an algorithm with a hard clip of [1 - low, 1 + high]."""
    metrics = (
        clip_metrics(batch, terms)
        | outside_metric(terms, math.log(1 - low), math.log(1 + high))
        | ratio_metrics(batch, terms)
    )
    return Answer(*reduced(batch, terms, *reduction), clip_mask(batch, terms), metrics)


def clip_mask(batch: Batch, terms: Terms) -> list[list[bool]]:
    """Where a loss token is clipped."""
    return [[(i, t) in terms and terms[i, t].clipped for t in range(len(row))] for i, row in enumerate(batch.mask)]


@oracle()
def grpo(batch: Batch, low: float = 0.2, high: float = 0.27, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i 1/L_i sum_t min(w A, clip(w) A); dJ/dl = keep w A / (N L_i)."""
    return clipped_answer(batch, token_clip(batch, low, high, dual_clip), low, high, "mean", "N")


@oracle()
def ppo(batch: Batch, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> Answer:
    """GRPO's J with advantages per token."""
    return grpo(batch, low, high, dual_clip)


@oracle()
def dapo(batch: Batch, low: float = 0.2, high: float = 0.28, dual_clip: float | None = None) -> Answer:
    """J = 1/T sum_i sum_t min(w A, clip(w) A); dJ/dl = keep w A / T."""
    return clipped_answer(batch, token_clip(batch, low, high, dual_clip), low, high, "sum", "T")


@oracle(divide="nothing")
def dr_grpo(
    batch: Batch, low: float = 0.2, high: float = 0.2, max_length: int = 3000, dual_clip: float | None = None
) -> Answer:
    """J = 1/(N L_max) sum_i sum_t min(w A, clip(w) A); dJ/dl = keep w A / (N L_max)."""
    return clipped_answer(batch, token_clip(batch, low, high, dual_clip), low, high, "sum", "N L_max", max_length)


@oracle()
def gspo(batch: Batch, low: float = 3e-4, high: float = 4e-4, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i min(s_i A_i, clip(s_i) A_i); d log s_i / dl = 1/L_i, so dJ/dl = keep s_i A_i / (N L_i)."""
    return clipped_answer(batch, sequence_clip(batch, low, high, dual_clip), low, high, "mean", "N")


@oracle(detached=True)
def gspo_token(batch: Batch, low: float = 3e-4, high: float = 4e-4, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i 1/L_i sum_t min(s_it A_it, clip(s_it) A_it), log s_it = l - sg[l] + sg[log s_i].

    d log s_it / dl = 1 where GSPO's is 1/L_i, but the sum over t carries 1/L_i: the same formulas with A_it.
    """
    return gspo(batch, low, high, dual_clip)


@oracle()
def luspo(batch: Batch, low: float = 2e-3, high: float = 2.5e-3, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i L_i min(s_i A_i, clip(s_i) A_i); dJ/dl = keep s_i A_i / N."""
    return clipped_answer(batch, sequence_clip(batch, low, high, dual_clip), low, high, "sum", "N")


@oracle()
def gmpo(batch: Batch, log_clip_low: float = 0.4, log_clip_high: float = 0.4, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i g_i A_i, g_i = exp(1/L_i sum_t log w'), w' clamped where that lowers A; dJ/dl = g_i A_i / (N L_i).

    A clamped token has no gradient. The dual clip acts on g_i.
    """
    terms = {}
    for i, positions in batch.responses():
        a = batch.advantage(i, positions[0])
        xs = {t: batch.log_ratio(i, t) for t in positions}
        clamped = {t: (a > 0 and x > log_clip_high) or (a < 0 and x < -log_clip_low) for t, x in xs.items()}
        bound = log_clip_high if a > 0 else -log_clip_low
        pooled = math.fsum(bound if clamped[t] else xs[t] for t in positions) / len(positions)
        dual = dual_clip is not None and a < 0 and pooled > math.log(dual_clip)
        g = dual_clip if dual and dual_clip is not None else ratio(pooled)
        for t in positions:
            stopped = clamped[t] or dual or saturated(pooled)
            terms[i, t] = Term(g * a, 0.0 if stopped else g * a, pooled, clamped[t], dual and not clamped[t])
    inside = {(i, t): term._replace(log_ratio=batch.log_ratio(i, t)) for (i, t), term in terms.items()}
    metrics = (
        clip_metrics(batch, terms) | outside_metric(inside, -log_clip_low, log_clip_high) | ratio_metrics(batch, terms)
    )
    return Answer(*reduced(batch, terms, "mean", "N"), clip_mask(batch, terms), metrics)


@oracle()
def sapo(batch: Batch, tau_pos: float = 1.0, tau_neg: float = 1.05) -> Answer:
    """J = 1/N sum_i 1/L_i sum_t f(w) A, f(w) = 4/tau sigmoid(tau (w - 1)); dJ/dl = f'(w) w A / (N L_i).

    f'(w) = sech^2(tau (w - 1) / 2); tau is tau_pos for A > 0, else tau_neg.
    """
    terms = {}
    for i, positions in batch.responses():
        for t in positions:
            x, a = batch.log_ratio(i, t), batch.advantage(i, t)
            w, tau = ratio(x), tau_pos if a > 0 else tau_neg
            half = tau * (w - 1) / 2
            gate = 0.0 if half > 300 else 1 / math.cosh(half) ** 2
            value = 4 / tau * (1 + math.tanh(half)) / 2 * a
            terms[i, t] = Term(value, 0.0 if saturated(x) else gate * w * a, x, gate=gate)
    return Answer(*reduced(batch, terms, "mean", "N"), None, gate_metrics(batch, terms) | ratio_metrics(batch, terms))


@oracle()
def reinforce(batch: Batch) -> Answer:
    """J = 1/N sum_i 1/L_i sum_t A l; dJ/dl = A / (N L_i)."""
    terms = {
        (i, t): Term(batch.advantage(i, t) * batch.log_probs[i][t], batch.advantage(i, t), batch.log_ratio(i, t))
        for i, positions in batch.responses()
        for t in positions
    }
    return Answer(*reduced(batch, terms, "mean", "N"), None, ratio_metrics(batch, terms))


@oracle(detached=True)
def cispo(batch: Batch, cap: float = 5.0) -> Answer:
    """J = 1/T sum_i sum_t sg[min(w, cap)] A l; dJ/dl = min(w, cap) A / T."""
    terms = {}
    for i, positions in batch.responses():
        for t in positions:
            x = batch.log_ratio(i, t)
            slope = min(ratio(x), cap) * batch.advantage(i, t)
            terms[i, t] = Term(slope * batch.log_probs[i][t], slope, x, capped=ratio(x) >= cap)
    metrics = capped_metrics(terms) | outside_metric(terms, -math.inf, math.log(cap)) | ratio_metrics(batch, terms)
    return Answer(*reduced(batch, terms, "sum", "T"), None, metrics)


@oracle(detached=True, divide="nothing")
def minirl(
    batch: Batch, low: float = 0.2, high: float = 0.27, cap: float = 5.0, dual_clip: float | None = None
) -> Answer:
    """J = 1/N sum_i sum_t M sg[min(exp(l - m), cap)] A l; dJ/dl = M min(exp(l - m), cap) A / N.

    The mask M is the clip's (and the dual clip's) on w = exp(l - o); the weight's ratio is to the sampler.
    """
    terms = {}
    for (i, t), term in token_clip(batch, low, high, dual_clip).items():
        w = ratio(batch.log_probs[i][t] - batch.sampler[i][t])
        slope = 0.0 if term.clipped or term.dual else min(w, cap) * batch.advantage(i, t)
        terms[i, t] = term._replace(value=slope * batch.log_probs[i][t], slope=slope, capped=w >= cap)
    answer = clipped_answer(batch, terms, low, high, "sum", "N")
    answer.metrics.update(capped_metrics(terms))
    return answer


@oracle(divide="others")
def rloo(batch: Batch, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> Answer:
    """DAPO's J."""
    return dapo(batch, low, high, dual_clip)


@oracle(divide="mean")
def maxrl(batch: Batch, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> Answer:
    """DAPO's J."""
    return dapo(batch, low, high, dual_clip)


@oracle(divide="nothing")
def reinforce_pp(batch: Batch, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> Answer:
    """DAPO's J."""
    return dapo(batch, low, high, dual_clip)


def probability(log_prob: float) -> float:
    """exp(log_prob), at most 1."""
    return math.exp(min(0.0, log_prob))


def divergence_answer(
    batch: Batch, distance: Callable[[float, float], float], low: float, high: float, cap: float
) -> Answer:
    """J = 1/T sum_i sum_t M sg[min(w, cap)] A l; M = 0 where `distance` (of l and o) exceeds its bound and p moved in
    A's direction."""
    terms, changes = {}, {}
    for i, positions in batch.responses():
        for t in positions:
            a, x = batch.advantage(i, t), batch.log_ratio(i, t)
            p, q = probability(batch.log_probs[i][t]), probability(batch.old[i][t])
            far = distance(batch.log_probs[i][t], batch.old[i][t])
            dropped = (a > 0 and p > q and far > high) or (a < 0 and p < q and far > low)
            slope = 0.0 if dropped else min(ratio(x), cap) * a
            terms[i, t] = Term(slope * batch.log_probs[i][t], slope, x, dropped, capped=ratio(x) >= cap)
            changes[i, t] = terms[i, t]._replace(log_ratio=far if p > q else -far)
    metrics = clip_metrics(batch, terms) | outside_metric(changes, -low, high) | capped_metrics(terms)
    return Answer(*reduced(batch, terms, "sum", "T"), clip_mask(batch, terms), metrics | ratio_metrics(batch, terms))


@oracle(detached=True)
def dppo_tv(batch: Batch, delta_low: float = 0.15, delta_high: float = 0.15, cap: float = 20.0) -> Answer:
    """The distance is |p - q|, the total variation between Bernoulli(p) and Bernoulli(q)."""
    return divergence_answer(
        batch, lambda now, old: abs(probability(now) - probability(old)), delta_low, delta_high, cap
    )


@oracle(detached=True)
def dppo_kl(batch: Batch, delta_low: float = 0.05, delta_high: float = 0.05, cap: float = 20.0) -> Answer:
    """The distance is KL(Bernoulli(q) || Bernoulli(p)) = q log(q/p) + (1-q) log((1-q)/(1-p)), with 1e-8 on 1-p, 1-q."""

    def kl(now: float, old: float) -> float:
        p, q = probability(now), probability(old)
        return q * (min(0.0, old) - min(0.0, now)) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))

    return divergence_answer(batch, kl, delta_low, delta_high, cap)


@oracle(divide="nothing")
def ipo(batch: Batch, eps: float = 0.1, kl_tau: float = 1e-3) -> Answer:
    """J = 1/T sum_i sum_t (w A [|p - q| <= eps] - kl_tau (l - o)^2); dJ/dl = (w A [...] - 2 kl_tau (l - o)) / T."""
    terms, changes = {}, {}
    for i, positions in batch.responses():
        for t in positions:
            a, x = batch.advantage(i, t), batch.log_ratio(i, t)
            change = probability(batch.log_probs[i][t]) - probability(batch.old[i][t])
            far = abs(change) > eps
            gain, limited = (0.0 if far else ratio(x) * a), max(-20.0, min(20.0, x))
            slope = 0.0 if saturated(x) else gain - 2 * kl_tau * x
            terms[i, t] = Term(gain - kl_tau * limited**2, slope, x, far and a != 0)
            changes[i, t] = terms[i, t]._replace(log_ratio=change)
    metrics = clip_metrics(batch, terms) | outside_metric(changes, -eps, eps) | ratio_metrics(batch, terms)
    return Answer(*reduced(batch, terms, "sum", "T"), clip_mask(batch, terms), metrics)


@oracle(detached=True)
def vespo(
    batch: Batch, k_pos: float = 2.0, lambda_pos: float = 3.0, k_neg: float = 3.0, lambda_neg: float = 2.0
) -> Answer:
    """J = 1/T sum_i phi(W_i) A_i sum_t l, phi(W) = W^k e^{lambda (1 - W)}; dJ/dl = phi(W_i) A_i / T.

    W = prod_t w, each log w within +-20 and W within [1e-8, e^20]; k and lambda by the sign of A.
    """
    terms = {}
    for i, positions in batch.responses():
        total = math.fsum(max(-20.0, min(20.0, batch.log_ratio(i, t))) for t in positions)
        big = min(max(math.exp(min(total, 20.0)), 1e-8), math.exp(20.0))
        for t in positions:
            a = batch.advantage(i, t)
            k, lam = (k_pos, lambda_pos) if a >= 0 else (k_neg, lambda_neg)
            phi = big**k * math.exp(lam * (1 - big))
            terms[i, t] = Term(phi * a * batch.log_probs[i][t], phi * a, batch.log_ratio(i, t), gate=phi)
    return Answer(*reduced(batch, terms, "sum", "T"), None, weight_mean(terms) | ratio_metrics(batch, terms))


@oracle(detached=True)
def aspo(batch: Batch, low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Answer:
    """J = 1/T sum_i sum_t M sg[min(x, cap)] A l, x = 1/w for A > 0, else w; M is the clip's, on w."""
    terms = {}
    for (i, t), term in token_clip(batch, low, high, None).items():
        a, w = batch.advantage(i, t), ratio(batch.log_ratio(i, t))
        x = 1 / w if a > 0 else w
        slope = 0.0 if term.clipped else min(x, cap) * a
        terms[i, t] = term._replace(value=slope * batch.log_probs[i][t], slope=slope, capped=x >= cap)
    answer = clipped_answer(batch, terms, low, high, "sum", "T")
    answer.metrics.update(capped_metrics(terms))
    return answer


@oracle()
def gepo(batch: Batch, low: float = 0.2, high: float = 0.2, dual_clip: float | None = None) -> Answer:
    """J = 1/N sum_i min(x_i A_i, clip(x_i) A_i), x_i = p_i sum_j q_j / sum_j q_j^2 over the group; dJ/dl as GSPO's.

    p_i and q_i are the geometric means of the response's token probabilities, now and before.
    """

    def mean(grid: Grid, i: int, positions: list[int]) -> float:
        return math.fsum(grid[i][t] for t in positions) / len(positions)

    groups = [0] * len(batch.mask) if batch.groups is None else batch.groups
    q = {i: math.exp(mean(batch.old, i, positions)) for i, positions in batch.responses()}
    terms = {}
    for i, positions in batch.responses():
        fellows = [q[j] for j in q if groups[j] == groups[i]]
        expected = math.fsum(x * x for x in fellows) / math.fsum(fellows)
        x = mean(batch.log_probs, i, positions) - math.log(expected)
        for t in positions:
            terms[i, t] = hard_clip(x, batch.advantage(i, t), low, high, dual_clip)
    return clipped_answer(batch, terms, low, high, "mean", "N")
