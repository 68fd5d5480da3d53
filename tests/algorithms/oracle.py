"""Every loss in plain Python loops, written from the papers' formulas.

Nothing of the package under test is imported. Each function takes a batch and the algorithm's settings (the defaults
are the published ones), states J and dJ/dl, and answers with everything a loss returns. `@oracle` files it under its
name, which is the algorithm's; no other list in the tests names every algorithm.

i = response, t = token position, N = responses and T = loss tokens of the batch, L_i = loss tokens of response i
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from oracle_batch import Answer, Batch, Term, Terms, ratio, reduced, saturated
from oracle_metrics import capped_metrics, clip_metrics, gate_metrics, outside_metric, ratio_metrics


class Oracle(NamedTuple):
    """An algorithm as its paper has it."""

    formula: Callable[..., Answer]
    detached: bool
    """Its gradient is, on purpose, not its value's slope."""
    scaled: bool
    """Its advantage is divided by the deviation of the group's rewards."""

    def __call__(self, batch: Batch, **settings: Any) -> Answer:
        return self.formula(batch, **settings)


ORACLES: dict[str, Oracle] = {}


def oracle(detached: bool = False, scaled: bool = True) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Files a formula under its name."""

    def file(formula: Callable[..., Answer]) -> Callable[..., Answer]:
        ORACLES[formula.__name__] = Oracle(formula, detached, scaled)
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


@oracle(scaled=False)
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


@oracle(detached=True, scaled=False)
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
