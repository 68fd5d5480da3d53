"""The numbers of one batch as tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table to print."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def lines(self) -> list[str]:
        """Title, headings and rows, as wide as they are; the first column on the left, numbers on the right."""
        grid = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        head, *body = [
            "  ".join(
                cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in grid
        ]
        return [*self.title.splitlines(), head, "-" * len(head), *body]


def tables(found: dict[str, Any]) -> list[TextTable]:
    """Algorithms, ratio spread by length, cosines; of what `report_batch` returns."""
    return [_algorithms(found), _lengths(found), _cosines(found)]


def _algorithms(found: dict[str, Any]) -> TextTable:
    policy = f"against {found['against']}" if found["against"] else "on policy (no --against: l = o, every ratio is 1)"
    title = (
        f"{found['responses']} responses in {found['groups']} groups, {found['tokens']} tokens, {policy}\n"
        f"log w: sd {_number(found['ratios']['token_log_std'])} nat, "
        f"log s: sd {_number(found['ratios']['seq_log_std'])} nat, "
        f"o - m: {_number(found['mismatch_token_rms'])} nat (root mean square)"
    )
    columns = (
        "algorithm", "J", "clip or gate", "|w| p5 p50 p95", "cv", "n_eff tok", "n_eff resp", "|grad|", "noise",
        "noise scale",
    )  # fmt: skip
    rows = [
        (
            name, _number(a["objective"], sign=True), _gate(a["metrics"]), _quantiles(a["weight_quantiles"]),
            _number(a["metrics"]["weight/within_seq_cv"]), _count(a["effective_tokens"]),
            _count(a["effective_responses"]), _number(a["gradient_norm"]), _share(a["noise_share"]),
            _number(a["noise_scale"]),
        )
        for name, a in found["algorithms"].items()
    ]  # fmt: skip
    return TextTable(title, columns, rows)


def _lengths(found: dict[str, Any]) -> TextTable:
    slope = "n/a" if found["ratios"]["slope"] is None else f"{found['ratios']['slope']:.2f}"
    title = (
        "Ratio spread by response length (standard deviations in nats)\n"
        f"sd(log s) falls as length^b, b = {slope}; independent tokens: -0.50"
    )
    columns = ("length", "responses", "tokens", "log w", "log s", "log w/sqrt(L)", "grpo clip", "gspo clip")
    rows = []
    for part in found["lengths"]:
        spread, clips = part["spread"], part["algorithms"]
        rows.append(
            (
                f"{part['low']}-{part['high']}" if part["high"] > part["low"] else str(part["low"]),
                str(spread["responses"]), str(spread["tokens"]), _number(spread["token_log_std"]),
                _number(spread["seq_log_std"]), _number(spread["independent_seq_log_std"]),
                _share(clips["grpo"]["clip_token_frac"]), _share(clips["gspo"]["clip_token_frac"]),
            )
        )  # fmt: skip
    return TextTable(title, columns, rows)


def _cosines(found: dict[str, Any]) -> TextTable:
    names = list(found["cosine"])
    rows = [
        (f"{index} {name}", *("n/a" if value is None else f"{value:.3f}" for value in row.values()))
        for index, (name, row) in enumerate(found["cosine"].items(), start=1)
    ]
    return TextTable("Cosine between gradients", ("", *(str(i + 1) for i in range(len(names)))), rows)


def _gate(metrics: dict[str, float | None]) -> str:
    """The share of clipped tokens, a soft gate's mean, or the share of capped weights: whatever the algorithm has."""
    for name, prefix in (("clip/token_frac", ""), ("gate/mean", "gate "), ("weight/capped_frac", "cap ")):
        if name in metrics:
            return prefix + (_number(metrics[name]) if name == "gate/mean" else _share(metrics[name]))
    return "n/a"


def _quantiles(values: dict[str, float] | None) -> str:
    return "n/a" if values is None else " ".join(f"{values[q]:.2f}" for q in ("p05", "p50", "p95"))


def _number(value: float | None, sign: bool = False) -> str:
    """Three digits; what is only rounding is 0."""
    return "n/a" if value is None else f"{value if abs(value) > 1e-12 else 0.0:{'+' if sign else ''}.3g}"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f} %"
