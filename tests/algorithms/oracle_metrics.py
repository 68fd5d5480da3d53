"""Clip, gate, cap and ratio metrics by their definitions: (numerator, denominator) by name."""

import math
from collections.abc import Iterable

from oracle_batch import Batch, Terms, saturated

Fractions = dict[str, tuple[float, float]]


def clip_metrics(batch: Batch, terms: Terms) -> Fractions:
    """Who lost its gradient to the clip, per token and per response; the dual clip is counted apart."""
    num_tokens = len(terms)
    clipped = {key for key, term in terms.items() if term.clipped}
    rows = [[(i, t) in clipped for t in positions] for i, positions in batch.responses()]
    return {
        "clip/token_frac": (len(clipped), num_tokens),
        "clip/token_frac_active": (len(clipped), count(batch.advantage(*key) != 0 for key in terms)),
        "clip/low_frac": (count(batch.advantage(*key) < 0 for key in clipped), num_tokens),
        "clip/high_frac": (count(batch.advantage(*key) > 0 for key in clipped), num_tokens),
        "clip/dual_frac": (count(term.dual for term in terms.values()), num_tokens),
        "clip/seq_frac": (count(all(row) for row in rows), len(rows)),
        "clip/seq_any_frac": (count(any(row) for row in rows), len(rows)),
    }


def outside_metric(terms: Terms, low: float, high: float) -> Fractions:
    """Tokens whose log-ratio lies outside [low, high], whatever the advantage's sign."""
    return {"ratio/outside_frac": (count(not low <= x.log_ratio <= high for x in terms.values()), len(terms))}


def capped_metrics(terms: Terms) -> Fractions:
    """Tokens whose detached weight is at the cap."""
    return {"weight/capped_frac": (count(term.capped for term in terms.values()), len(terms))}


def gate_metrics(batch: Batch, terms: Terms) -> Fractions:
    """SAPO's f'(w), as a mean over all tokens and by the advantage's sign."""
    gates = {key: term.gate for key, term in terms.items()}
    pos = [gate for key, gate in gates.items() if batch.advantage(*key) > 0]
    neg = [gate for key, gate in gates.items() if batch.advantage(*key) < 0]
    weights = [gate * math.exp(max(-20.0, min(20.0, batch.log_ratio(*key)))) for key, gate in gates.items()]
    return {
        "gate/mean": (math.fsum(gates.values()), len(gates)),
        "gate/mean_pos": (math.fsum(pos), len(pos)),
        "gate/mean_neg": (math.fsum(neg), len(neg)),
        "gate/below_half_frac": (count(gate < 0.5 for gate in gates.values()), len(gates)),
        "gate/weight_mean": (math.fsum(weights), len(gates)),
    }


def weight_mean(terms: Terms) -> Fractions:
    """VESPO's phi(W), as a mean over all tokens."""
    return {"gate/weight_mean": (math.fsum(term.gate for term in terms.values()), len(terms))}


def ratio_metrics(batch: Batch, terms: Terms) -> Fractions:
    """Saturated tokens (in the algorithm's own unit), and means of the log-ratios per token and per response."""
    means = {i: batch.mean_log_ratio(i, positions) for i, positions in batch.responses()}
    variances = [
        math.fsum((batch.log_ratio(i, t) - means[i]) ** 2 for t in positions) / len(positions)
        for i, positions in batch.responses()
    ]
    return {
        "ratio/saturated_frac": (count(saturated(term.log_ratio) for term in terms.values()), len(terms)),
        "ratio/token_log_mean": (math.fsum(batch.log_ratio(*key) for key in terms), len(terms)),
        "ratio/seq_log_mean": (math.fsum(means.values()), len(means)),
        "ratio/within_seq_log_var": (math.fsum(variances), len(means)),
    }


def count(flags: Iterable[bool]) -> int:
    """How many are true."""
    return sum(1 for flag in flags if flag)
