"""Advantages in plain Python loops: group statistics, generalised advantage estimation, whitening."""

import math

from oracle_batch import Grid


def group_advantage(rewards: list[float], groups: list[int], divide: str = "std") -> list[float]:
    """A_i = r_i - mean over the group, divided by `std` (with n - 1), by the `mean`, by `nothing`, or by what makes it
    r_i - mean of the `others`.

    NaN = not scored: outside mean and std, A = 0. Fewer than two scored responses, or rewards that differ by no more
    than 1e-9 * max(1, max |r|), or for `mean` a mean that is not positive: A = 0 exactly.
    """
    advantages = [0.0] * len(rewards)
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group and not math.isnan(rewards[i])]
        scored = [rewards[i] for i in members]
        if len(scored) < 2 or max(scored) - min(scored) <= 1e-9 * max(1.0, max(abs(r) for r in scored)):
            continue
        mean = math.fsum(scored) / len(scored)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in scored) / (len(scored) - 1))
        divisor = {"std": std, "mean": mean if mean > 0 else math.inf, "nothing": 1.0}
        for i in members:
            others = [rewards[j] for j in members if j != i]
            apart = rewards[i] - math.fsum(others) / len(others)
            advantages[i] = apart if divide == "others" else (rewards[i] - mean) / divisor[divide]
    return advantages


def gae(values: Grid, rewards: list[float], mask: list[list[bool]], gamma: float, lam: float) -> tuple[Grid, Grid]:
    """(A, R) with delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}, R_t = A_t + V_t.

    t + 1 is the next loss token: tool tokens between are skipped. The reward sits on the last loss token, after which V
    and A are 0. Outside the mask the results are 0.
    """
    advantages = [[0.0] * len(row) for row in mask]
    returns = [[0.0] * len(row) for row in mask]
    for i, row in enumerate(mask):
        next_value, next_advantage, reward = 0.0, 0.0, rewards[i]
        for t in reversed([t for t, is_loss in enumerate(row) if is_loss]):
            delta = reward + gamma * next_value - values[i][t]
            advantages[i][t] = delta + gamma * lam * next_advantage
            returns[i][t] = advantages[i][t] + values[i][t]
            next_value, next_advantage, reward = values[i][t], advantages[i][t], 0.0
    return advantages, returns


def whitened(advantages: Grid, mask: list[list[bool]], ddof: int) -> Grid:
    """(A - mean) / std over all loss tokens, 0 outside; left centred only where they do not differ."""
    tokens = [a for i, row in enumerate(advantages) for t, a in enumerate(row) if mask[i][t]]
    mean = math.fsum(tokens) / max(1, len(tokens))
    std = math.sqrt(math.fsum((a - mean) ** 2 for a in tokens) / max(1, len(tokens) - ddof)) or 1.0
    return [[(a - mean) / std if mask[i][t] else 0.0 for t, a in enumerate(row)] for i, row in enumerate(advantages)]
