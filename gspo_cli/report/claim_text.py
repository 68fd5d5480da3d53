"""The number behind a claim's verdict, as text."""

from __future__ import annotations

from typing import Any


def found_text(row: dict[str, Any]) -> str:
    """The number behind a verdict in one line."""
    factor, unit = (100, " points") if row["points"] else (1, "")
    ends = "" if row["ci"] is None else f" [{factor * row['ci'][0]:.3g}, {factor * row['ci'][1]:.3g}]"
    text = f"{row['metric']}: {row['treatment']} against {row['baseline']} {factor * row['value']:+.3g}{unit}{ends}"
    if row["metric"] in ("clip_ratio", "clip_range"):
        text = text.replace(row["metric"], "log10 of the ratio of clip fractions", 1)
    if row["metric"] == "noise_slope":
        other = row["second"]
        text = text.replace("noise_slope", "slope of log gradient noise on log length", 1)
        text += f"; against {other['baseline']} {other['value']:+.3g}"
        text += "" if other["ci"] is None else f" [{other['ci'][0]:.3g}, {other['ci'][1]:.3g}]"
    if row["band"]:
        text += f", claimed within [{row['band'][0]:g}, {row['band'][1]:g}]"
    fallen = row["collapses"]
    if fallen:
        text += f"; collapsed {len(fallen['treatment'])} against {len(fallen['baseline'])} runs"
    tests = ", ".join(f"{name} {p:.3g}" for name, p in row["p_adjusted"].items())
    return f"{text}; N = {row['n']}; p: {tests or 'n/a'}" + ("" if row["primary"] or not tests else " (Holm)")
