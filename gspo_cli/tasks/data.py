"""Rows of a data file or a hub data set, with the columns a task asks for."""

from __future__ import annotations

from collections.abc import Iterable
from logging import CRITICAL
from math import isfinite
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.hub import prepare_hub
from gspo_cli.rows import Located, Row, number_rows, read_rows, require_text

AS_TEXT = "write it as text; task.system and task.template add what is the same in all prompts (docs/prompts.md)"


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
        source, rows = path, list(read_rows(Path(path)))
    else:
        assert hub is not None
        source, rows = hub[0], list(number_rows(hub[0], _hub_rows(hub, split)))
    for ours, theirs in columns.items():
        if not any(theirs in row for _, row in rows):
            raise GspoError(
                f"{source} has no column {theirs!r}",
                f"its columns are {', '.join(rows[0][1])}",
                f"name them in the recipe, e.g. --set {key}.columns.{ours}=NAME",
            )
    return [{ours: _text(located, ours, theirs) for ours, theirs in columns.items()} for located in rows]


def fill(template: str, question: str) -> str:
    """A template with the question in its place. Other braces stay: questions and templates hold LaTeX and JSON."""
    return template.replace("{question}", question)


def _text(located: Located, ours: str, column: str) -> str:
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


def _hub_rows(hub: tuple[str, str, str | None], split: str) -> Iterable[Row]:
    import datasets

    prepare_hub()
    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(CRITICAL)  # it prints what it raises, too
    try:
        data: Iterable[Row] = datasets.load_dataset(hub[0], hub[1], revision=hub[2], split=split)
    except Exception as error:  # datasets raises many types; each means that there are no rows
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GspoError(
            f"cannot read the data {hub[0]}",
            why,
            f"where there is a network: hf download {hub[0]} --repo-type dataset --local-dir FOLDER; then here: "
            "--set task.path=FILE, one of its json, jsonl or parquet files",
        ) from error
    return data
