"""Rows of a data file or a hub data set, with the columns a task asks for."""

import re
from collections.abc import Iterable
from logging import CRITICAL
from math import isfinite
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError, nearest, reason
from gspo_cli.hub import prepare_hub
from gspo_cli.rows import SUFFIXES, Located, Row, data_files, number_rows, read_rows, require_text

Hub = tuple[str, str | None, str | None]
"""Name, configuration and revision of a data set on the hub."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(/[\w.-]+)?")
SAVED = ("dataset_dict.json", "state.json")
"""What marks a folder that `datasets` saved: several splits, or one."""

SPLITS = {"train", "test", "validation", "valid", "val", "dev", "eval"}
"""First words of the names of files that hold one part of the data."""
AS_TEXT = "write it as text; task.system and task.template add what is the same in all prompts (docs/prompts.md)"


def load_rows(
    path: str | None, hub: Hub | None, split: str, columns: dict[str, str], key: str = "task"
) -> list[dict[str, str]]:
    """All rows as {our name: text}, `columns` giving the name of each column in the data.

    `path` comes before `hub`, as in `read_source`; `key` = the recipe's table that names them.
    Errors: GspoError for a missing or unreadable file, an empty one, a missing column (with those there are), or a row
    without text in one of them; a fault in a file is named with its row.
    """
    source, rows = read_source(path, hub, split)
    for ours, theirs in columns.items():
        require_column(source, rows, ours, theirs, key)
    return [{ours: value_text(located, ours, theirs) for ours, theirs in columns.items()} for located in rows]


def read_source(path: str | None, hub: Hub | None, split: str) -> tuple[str, list[Located]]:
    """The name of the data and its rows. `path` is a file, a folder of files, a folder that `datasets` saved, or else
    `ORGANISATION/NAME` or `ORGANISATION/NAME/CONFIGURATION` on the hub; without it, `hub` is read.

    Errors: GspoError for what cannot be read, or holds no rows.
    """
    if path is not None and is_local(path):
        folder = Path(path)
        if any((folder / name).is_file() for name in SAVED):
            return path, list(number_rows(path, _saved_rows(folder, split)))
        return path, [row for file in of_split(folder, split) for row in read_rows(file)]
    if path is not None:
        organisation, name, *configuration = path.split("/")
        hub = f"{organisation}/{name}", configuration[0] if configuration else None, hub and hub[2]
    assert hub is not None
    return hub[0], list(number_rows(hub[0], _hub_rows(hub, split)))


def of_split(path: Path, split: str) -> list[Path]:
    """The file, or the files of a folder; of files that are named after splits (`train-0.jsonl`), those of this one.

    Errors: GspoError for a split other than `train` where no file is named after it.
    """
    files = data_files(path)
    names = {file: re.split(r"[-_.]", file.name)[0].lower() for file in files if path.is_dir()}
    found = [file for file in files if names.get(file) == split]
    if not found and (split != "train" or len(SPLITS & {*names.values()}) > 1):
        why = f"no file of {path} is named after it" if names else f"{path} is one file, without splits"
        raise GspoError(f"task.split = {split}", why, "name the file with task.path, and leave task.split out")
    return found if len(SPLITS & {*names.values()}) > 1 or split != "train" else files


def is_local(path: str) -> bool:
    """Whether data are on this machine: a path that exists, or cannot be a name on the hub."""
    return Path(path).exists() or Path(path).suffix in SUFFIXES or HUB_NAME.fullmatch(path) is None


def require_column(source: str, rows: list[Located], ours: str, theirs: str, key: str = "task") -> None:
    """Errors: GspoError for a column that no row has, with those there are."""
    if not any(theirs in row for _, row in rows):
        raise GspoError(
            f"{source} has no column {theirs!r}",
            f"its columns are {', '.join(rows[0][1])}",
            f"{nearest(theirs, rows[0][1], '')} Name it in the recipe: --set {key}.columns.{ours}=NAME".lstrip(),
        )


def fill(template: str, question: str) -> str:
    """A template with the question in its place. Other braces stay: questions and templates hold LaTeX and JSON."""
    return template.replace("{question}", question)


def value_text(located: Located, ours: str, column: str) -> str:
    """One value as text. A prompt must be text; elsewhere numbers and booleans are written out."""
    where, row = located
    value = row.get(column)
    if value is None or (isinstance(value, float) and not isfinite(value)):  # NaN is how pandas writes a missing value
        why = "its value is null" if column in row else f"the row has {', '.join(row) or 'no columns'}"
        raise GspoError(f"{where} has no {column!r}", why, "fill it in, or remove the row")
    written = str(value) if ours != "prompt" and isinstance(value, bool | int | float) else value
    text = require_text(where, column, written, AS_TEXT)
    if ours in ("prompt", "answer") and not text.strip():
        raise GspoError(f"{where}: {column!r} is empty", "it holds no text", "fill it in, or remove the row")
    return text


def _saved_rows(folder: Path, split: str) -> Iterable[Row]:
    import datasets

    try:
        data: Any = datasets.load_from_disk(str(folder))
    except Exception as error:  # as below
        hint = "save them again with save_to_disk"
        raise GspoError(f"cannot read the data in {folder}", reason(error), hint) from error
    if not isinstance(data, dict):
        return data  # type: ignore[no-any-return]
    if split not in data:
        why = f"its splits are {', '.join(data)}"
        raise GspoError(f"{folder} has no split {split!r}", why, nearest(split, data, "--set task.split=NAME"))
    return data[split]  # type: ignore[no-any-return]


def _hub_rows(hub: Hub, split: str) -> Iterable[Row]:
    import datasets

    prepare_hub()
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(CRITICAL)  # it prints what it raises, too
    try:
        data: Iterable[Row] = datasets.load_dataset(hub[0], hub[1], revision=hub[2], split=split)
    except Exception as error:  # datasets raises many types; each means that there are no rows
        raise GspoError(
            f"cannot read the data {hub[0]}",
            reason(error),
            f"where there is a network: hf download {hub[0]} --repo-type dataset --local-dir FOLDER; then here: "
            "--set task.path=FILE, one of its json, jsonl or parquet files",
        ) from error
    return data
