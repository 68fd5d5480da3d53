"""Rows of a data file or a hub data set, with the columns a task asks for."""

from __future__ import annotations

from pathlib import Path

from gspo_cli.errors import GspoError

FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def load_rows(
    path: str | None, hub: tuple[str, str, str | None] | None, split: str, columns: dict[str, str]
) -> list[dict[str, str]]:
    """All rows as {our name: text}, `columns` giving the name of each column in the data.

    `path` (json, jsonl, parquet) comes before `hub` (name, configuration, revision).
    Errors: GspoError for a missing or unreadable file, an empty one, or missing columns (with those it has).
    """
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity_error()
    source = path or (hub[0] if hub else "no source")
    try:
        if path is not None:
            data = datasets.load_dataset(_format(path), data_files=path, split="train")
        else:
            assert hub is not None
            data = datasets.load_dataset(hub[0], hub[1], revision=hub[2], split=split)
    except GspoError:
        raise
    except Exception as error:  # datasets raises many types; each means that there are no rows
        hint = (
            "check the file"
            if path
            else f"where there is a network: hf download {source} --repo-type dataset --local-dir FOLDER; then here: "
            "--set task.path=FILE, one of its json, jsonl or parquet files"
        )
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GspoError(f"cannot read the data {source}", why, hint) from error
    missing = [name for name in columns.values() if name not in data.column_names]
    if missing:
        raise GspoError(
            f"{source} has no column {missing[0]!r}",
            f"its columns are {', '.join(data.column_names)}",
            "name them in the recipe, e.g. --set task.columns.prompt=NAME",
        )
    if not len(data):
        raise GspoError(f"{source} holds no rows", "there is nothing to train on", "give a file with rows")
    return [{ours: str(row[theirs]) for ours, theirs in columns.items()} for row in data]


def _format(path: str) -> str:
    if not Path(path).is_file():
        raise GspoError(f"no data file {path}", "the path does not name a file", "check task.path")
    if Path(path).suffix not in FORMATS:
        raise GspoError(f"cannot read {path}", f"the ending must be one of {', '.join(FORMATS)}", "convert the file")
    return FORMATS[Path(path).suffix]
