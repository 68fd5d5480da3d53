"""The caption of a figure: its panels, how many seeds, what the band is, and its notes; as text and for LaTeX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from gspo_cli.report.curves import BAND
from gspo_cli.report.paper import Paper

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
         ">": r"\textgreater{}", "|": r"\textbar{}"} | {sign: f"\\{sign}" for sign in "_%&#{}$"}  # fmt: skip


def caption(figure: Figure, table: pd.DataFrame, lines: Sequence[str]) -> str:
    """What a reader needs beside the picture and its legend."""
    titles = [title for ax in figure.axes if (title := ax.get_title(loc="left"))]
    panels = [f"{'; '.join(titles)}."] if len(titles) > 1 else []
    return " ".join([*panels, *_seeds(table), *_band(table), *lines])


def _seeds(table: pd.DataFrame) -> list[str]:
    """How many seeds each arm has."""
    if "arm" not in table:
        return []
    arms: dict[int, list[str]] = defaultdict(list)
    for arm, rows in table.groupby("arm", sort=False):
        arms[int(rows["seed"].nunique() if "seed" in rows else rows["n"].iloc[0])].append(str(arm))
    counts = [f"N = {count} seed{'s' * (count != 1)} ({', '.join(names)})" for count, names in arms.items()]
    return [f"{'; '.join(counts)}."]


def _band(table: pd.DataFrame) -> list[str]:
    """What thin, thick and pale mean."""
    if "series" not in table or not (table["series"] == "mean").any():
        return []
    banded = bool(table["low"].notna().any())
    return [f"Thin lines: one seed; thick lines: mean over seeds{f'; bands: {BAND}' * banded}."]


def latex(name: str, text: str, image: str, paper: Paper) -> str:
    """A figure of a LaTeX document with this caption."""
    environment, width = paper.latex.split(",")
    escaped = "".join(LATEX.get(letter, letter) for letter in text)
    return (
        f"\\begin{{{environment}}}[t]\n  \\centering\n  \\includegraphics[width={width}]{{{image}}}\n"
        f"  \\caption{{{escaped}}}\n  \\label{{fig:{name.replace('_', '-')}}}\n\\end{{{environment}}}\n"
    )
