"""Rows of a data file or a hub data set, with the columns a task asks for."""

from __future__ import annotations

from collections.abc import Iterable
from logging import CRITICAL
from math import isfinite
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.hub import prepare_hub
from gspo_cli.rows import SUFFIXES, is_unicode, parse_jsonl, read_files


def load_rows(
    path: str | None, hub: tuple[str, str, str | None] | None, split: str, columns: dict[str, str], key: str = "task"
) -> list[dict[str, str]]:
    """All rows as {our name: text}, `columns` giving the name of each column in the data.

    `path` (json, jsonl, parquet) comes before `hub` (name, configuration, revision); `key` = the recipe's table that
    names them.
    Errors: GspoError for a missing or unreadable file, an empty one, a missing column (with those there are), or a row
    without text in one of them; a fault in a file is named with its row.
    """
    if path is not None:
        return _texts(path, _file_rows(path, key), columns, key)
    assert hub is not None
    return _texts(hub[0], enumerate_rows(hub[0], _hub_rows(hub, split)), columns, key)


def enumerate_rows(source: str, rows: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """(`SOURCE, row N`, row), from row 1."""
    return [(f"{source}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _texts(
    source: str, rows: list[tuple[str, dict[str, Any]]], columns: dict[str, str], key: str
) -> list[dict[str, str]]:
    """The columns as text. Errors: GspoError without rows, or for the first row that has no text in a column."""
    if not rows:
        raise GspoError(f"{source} holds no rows", "there is nothing to train on", "give a file with rows")
    for ours, theirs in columns.items():
        if not any(theirs in row for _, row in rows):
            raise GspoError(
                f"{source} has no column {theirs!r}",
                f"its columns are {', '.join(rows[0][1])}",
                f"name them in the recipe, e.g. --set {key}.columns.{ours}=NAME",
            )
    texts = [{ours: _text(where, row, theirs) for ours, theirs in columns.items()} for where, row in rows]
    for (where, _), text in zip(rows, texts, strict=True):
        for ours in ("prompt", "answer"):
            if not text.get(ours, ours).strip():
                raise GspoError(
                    f"{where}: {columns[ours]!r} is empty", "it holds no text", "fill it in, or remove the row"
                )
    return texts


def _text(where: str, row: dict[str, Any], column: str) -> str:
    """One value as text: numbers and booleans are written out."""
    value = row.get(column)
    if value is None or (isinstance(value, float) and not isfinite(value)):  # NaN is how pandas writes a missing value
        why = "its value is null" if column in row else f"the row has {', '.join(row) or 'no columns'}"
        raise GspoError(f"{where} has no {column!r}", why, "fill it in, or remove the row")
    if isinstance(value, dict | list | bytes):
        raise GspoError(
            f"{where}: {column!r} is not text",
            f"it is a {type(value).__name__}" + (" of messages or parts" if isinstance(value, list) else ""),
            "write it as text; task.system and task.template add what is the same in all prompts (docs/prompts.md)",
        )
    text = str(value)
    if not is_unicode(text):
        raise GspoError(
            f"{where}: {column!r} is no text", "it holds half of a surrogate pair", "repair it, or remove the row"
        )
    return text


def _hub_rows(hub: tuple[str, str, str | None], split: str) -> Iterable[dict[str, Any]]:
    import datasets

    prepare_hub()
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(CRITICAL)  # it prints what it raises, too
    try:
        data: Iterable[dict[str, Any]] = datasets.load_dataset(hub[0], hub[1], revision=hub[2], split=split)
    except Exception as error:  # datasets raises many types; each means that there are no rows
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GspoError(
            f"cannot read the data {hub[0]}",
            why,
            f"where there is a network: hf download {hub[0]} --repo-type dataset --local-dir FOLDER; then here: "
            "--set task.path=FILE, one of its json, jsonl or parquet files",
        ) from error
    return data


def _file_rows(path: str, key: str) -> list[tuple[str, dict[str, Any]]]:
    """(`FILE, line N`, row) of a jsonl file, (`FILE, row N`, row) of any other. Errors: as `load_rows`."""
    file = Path(path)
    if not file.is_file():
        raise GspoError(f"no data file {path}", "the path does not name a file", f"check {key}.path")
    if file.suffix not in SUFFIXES:
        raise GspoError(f"cannot read {path}", f"the ending must be one of {', '.join(SUFFIXES)}", "convert the file")
    if file.suffix == ".jsonl" or (file.suffix == ".json" and _starts_with_object(file)):
        try:
            with file.open("rb") as lines:
                return list(parse_jsonl(lines, file))
        except OSError as error:
            raise GspoError(f"cannot read {path}", str(error.strerror or error), "check its permissions") from error
    [data] = read_files((file,))
    return enumerate_rows(path, data.rows)


def _starts_with_object(path: Path) -> bool:
    """Whether a json file is a list of lines, as many tools write them, rather than one list."""
    with path.open("rb") as file:
        return file.read(4096).lstrip().startswith(b"{")
