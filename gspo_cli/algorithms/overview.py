"""One table over all algorithms, by what they share and where they differ."""

from dataclasses import asdict
from typing import Any

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.algorithms.contract import AlgorithmSpec

UNITS = {"token": "token w", "sequence": "sequence s"}
COLUMNS = {
    "ratio": "ratio",
    "positive": "A > 0",
    "negative": "A < 0",
    "advantage": "advantage",
    "mean": "mean",
    "default_of": "default of",
}
"""Of the table, by key of `shared`."""


def shared(algorithm: AlgorithmSpec) -> dict[str, str]:
    """An algorithm's ratio, bounds at its published setting, advantage, mean, and who trains with it by default."""
    said, params = algorithm.SUMMARY, algorithm.Params()
    settings: dict[str, Any] = {name: f"{x:g}" for name, x in asdict(params).items() if isinstance(x, float)}
    above = below = "none"
    if hasattr(params, "clip"):
        symbol = {"token": "w", "sequence": "s"}[algorithm.clip_unit]
        settings |= {"low": f"{1 - params.clip.low:.5g}", "high": f"{1 + params.clip.high:.5g}"}
        above, below = f"{symbol} <= {settings['high']}", f"{symbol} >= {settings['low']}"
    return {
        "ratio": said.ratio.format(**settings) or (UNITS[algorithm.UNIT] if algorithm.HAS_RATIO else "none"),
        "positive": said.positive.format(**settings) or above,
        "negative": said.negative.format(**settings) or below,
        "advantage": said.advantage,
        "mean": algorithm.REDUCTION,
        "default_of": said.default_of,
    }


def table() -> str:
    """All of them as a Markdown table; it stands in docs/algorithms.md."""
    rows = [("name", *COLUMNS.values()), ("---",) * (len(COLUMNS) + 1)]
    for name, algorithm in ALGORITHMS.items():
        cells = [text.replace("|", "\\|") for text in shared(algorithm).values()]
        rows.append((f"`{name}`", *cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
