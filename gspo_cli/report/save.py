"""Writes a figure: csv, side file, svg, png. The same table and side file give the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype

from gspo_cli.report import style
from gspo_cli.runlog.fs import write_atomic


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


def save(folder: Path, name: str, table: pd.DataFrame, side: dict[str, Any], figure: Figure) -> list[Path]:
    """Writes `<name>.csv`, `.json`, `.svg` and `.png` into `folder`; the images carry the side file's sha256, the side
    file the csv's. Returns their paths.

    Errors: GspoError (exit code STORAGE) when the disk refuses.
    """
    csv = csv_bytes(table)
    side = {**side, "csv": {"bytes": len(csv), "sha256": hashlib.sha256(csv).hexdigest()}}
    text = (json.dumps(side, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()
    digest = hashlib.sha256(text).hexdigest()
    files = {
        "csv": csv,
        "json": text,
        # matplotlib would write the time of day
        "svg": _image(figure, "svg", {"Title": name, "Identifier": f"sha256:{digest}", "Date": None}),
        "png": _image(figure, "png", {"Title": name, "Source": f"sha256:{digest}"}),
    }
    return [_write(folder / f"{name}.{suffix}", content) for suffix, content in files.items()]


def _image(figure: Figure, suffix: str, metadata: dict[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    with style.applied():
        figure.savefig(buffer, format=suffix, metadata=metadata)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> Path:
    with write_atomic(path) as temporary:
        temporary.write_bytes(content)
    return path
