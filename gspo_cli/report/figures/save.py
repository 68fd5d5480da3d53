"""Write a figure: csv, side file, caption, images. The same table and side file give the same bytes."""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype

from gspo_cli.report.figures import style
from gspo_cli.report.figures.curves import BAND
from gspo_cli.report.figures.style import ALL, USUAL, Image, Paper
from gspo_cli.runlog.fs import write_atomic

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
         ">": r"\textgreater{}", "|": r"\textbar{}"} | {sign: f"\\{sign}" for sign in "_%&#{}$"}  # fmt: skip


def caption(figure: Figure, table: pd.DataFrame, lines: Sequence[str]) -> str:
    """What a reader needs beside the picture and its legend."""
    titles = [title for ax in figure.axes if (title := ax.get_title(loc="left"))]
    panels = [f"{'; '.join(titles)}."] if len(titles) > 1 else []
    return " ".join([*panels, *_seeds(table), *_band(table), *lines])


def _seeds(table: pd.DataFrame) -> list[str]:
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


class SavedFigure(NamedTuple):
    """A figure on the disk."""

    paths: list[Path]
    caption: str


def csv_bytes(table: pd.DataFrame) -> bytes:
    """The table as csv; numbers in the shortest form that reads back exactly, gaps empty, texts quoted.

    A text that a spreadsheet would take for a formula gets a leading apostrophe.
    """
    safe = table.astype({name: "Int64" for name in ("seed", "n") if name in table})
    for name in (name for name in table if not is_numeric_dtype(table[name])):
        harmless = {text: _harmless(text) for text in safe[name].unique()}
        if any(text != shown for text, shown in harmless.items()):
            safe[name] = safe[name].map(harmless)
    buffer = pa.BufferOutputStream()
    # pandas' own writer takes ten times as long, which long runs feel
    pa.csv.write_csv(pa.Table.from_pandas(safe, preserve_index=False), buffer)
    return bytes(buffer.getvalue())


def _harmless(text: Any) -> Any:
    return f"'{text}" if isinstance(text, str) and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def save(
    folder: Path,
    name: str,
    title: str,
    table: pd.DataFrame,
    side: dict[str, Any],
    draw: Callable[[Paper], Figure],
    images: Collection[Image] = USUAL,
) -> SavedFigure:
    """Writes `<name>.csv`, `.json` and the images into `folder`; these carry the side file's sha256, the side file the
    csv's and the caption. Images that are there already are drawn anew, so that all show the same. A figure for a paper
    comes with a `.tex` that holds the caption.

    Errors: GspoError (exit code STORAGE) when the disk refuses.
    """
    csv = csv_bytes(table)
    images = [one for one in ALL if one in images or _path(folder, name, one).exists()]
    figures = {paper: draw(paper) for paper in dict.fromkeys(paper for paper, _ in images)}
    words = caption(next(iter(figures.values())), table, side["notes"])
    side = {**side, "caption": words, "csv": {"bytes": len(csv), "sha256": hashlib.sha256(csv).hexdigest()}}
    text = (json.dumps(side, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()
    digest = hashlib.sha256(text).hexdigest()
    files = {folder / f"{name}.csv": csv, folder / f"{name}.json": text}
    for paper, suffix in images:
        path = _path(folder, name, (paper, suffix))
        files[path] = _image(figures[paper], suffix, name, f"sha256:{digest}")
        if paper.latex:
            files[path.with_suffix(".tex")] = latex(name, f"{title}. {words}", path.stem, paper).encode()
    for path, content in files.items():
        with write_atomic(path) as temporary:
            temporary.write_bytes(content)
    return SavedFigure(list(files), words)


def images_of(side_file: Path) -> list[Path]:
    """The images that stand beside a side file."""
    paths = (_path(side_file.parent, side_file.stem, image) for image in ALL)
    return [path for path in paths if path.exists()]


def _path(folder: Path, name: str, image: Image) -> Path:
    paper, suffix = image
    return folder / f"{name}{paper.ending}.{suffix}"


def _image(figure: Figure, suffix: str, name: str, mark: str) -> bytes:
    # matplotlib would write the time of day
    metadata: dict[str, dict[str, str | None]] = {
        "svg": {"Identifier": mark, "Date": None},
        "png": {"Source": mark},
        "pdf": {"Subject": mark, "CreationDate": None},
    }
    buffer = io.BytesIO()
    with style.applied():
        figure.savefig(buffer, format=suffix, metadata={"Title": name, **metadata[suffix]})
    return buffer.getvalue()
