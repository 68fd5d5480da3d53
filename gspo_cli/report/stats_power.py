"""What a paired t test over N seeds can see, and how many seeds it takes to see more."""

from __future__ import annotations

from scipy import optimize, stats

ALPHA = 0.05
POWER = 0.8
MOST_SEEDS = 1 << 20


def power(effect_sd: float, n: int) -> float:
    """Probability that the two-sided paired t test at 5 % finds a true difference of `effect_sd` standard deviations.

    The noncentral F form; scipy's noncentral t returns NaN in the far tail, which breaks a root finder.
    """
    critical = stats.t.ppf(1 - ALPHA / 2, n - 1) ** 2
    return float(stats.ncf.sf(critical, 1, n - 1, n * effect_sd**2))


def mde(sd: float, n: int) -> float:
    """The smallest true difference found with 80 % power, in the unit of `sd`."""
    return float(sd * optimize.brentq(lambda effect: power(effect, n) - POWER, 1e-3, 20.0, xtol=1e-12, rtol=1e-12))


def seeds_needed(sd: float, margin: float) -> int | None:
    """The fewest seeds with which a true difference of `margin` is found with 80 % power; None beyond a million."""

    def enough(n: int) -> bool:
        return power(margin / sd, n) >= POWER - 1e-9  # the power at `mde` itself is 0.8 but for rounding

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def sd_range(n: int) -> tuple[float, float]:
    """95 % range of the true over the estimated standard deviation: what the two numbers above rest on."""
    low, high = ((n - 1) / stats.chi2.ppf([0.975, 0.025], n - 1)) ** 0.5
    return float(low), float(high)
