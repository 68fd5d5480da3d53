"""Problems of published data sets: downloaded at a pinned commit, and read whatever their columns are called."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError, reason
from gspo_cli.hub import prepare_hub
from gspo_cli.rewards.math.extract import boxes
from gspo_cli.rows import is_unicode, read_rows, require_text
from gspo_cli.runlog.checksums import sha256_of
from gspo_cli.tasks.math import final_number, reference
from gspo_cli.types import Problem

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubData:
    """A data set on the hub."""

    repo: str
    revision: str
    """The commit whose files were checked against the fingerprint."""
    files: tuple[str, ...]


def fingerprint(lines: Sequence[str]) -> str:
    """The first 16 hex digits of sha256 over the lines: identifies a published set by its answers or ids."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def download(data: HubData, revision: str | None, benchmark: str) -> tuple[list[Path], str]:
    """The files' local copies, and the commit they belong to. A commit that is in the cache needs no network.

    Errors: GspoError that says how to get the data by hand.
    """
    from huggingface_hub import hf_hub_download

    wanted = revision or data.revision

    def get(local_files_only: bool) -> list[Path]:
        how: dict[str, Any] = {"repo_type": "dataset", "revision": wanted, "local_files_only": local_files_only}
        return [Path(hf_hub_download(data.repo, name, **how)) for name in data.files]

    paths: list[Path] = []
    try:
        if COMMIT.fullmatch(wanted):
            with suppress(OSError):
                paths = get(local_files_only=True)
        if not paths:
            prepare_hub()
            paths = get(local_files_only=False)
    except Exception as error:  # the client's library and its errors differ between versions
        raise GspoError(
            f"cannot get the problems of {benchmark}",
            f"{data.repo} at {wanted[:12]} is not in the cache, and the hub gave: {reason(error)}",
            f"where there is a network: hf download {data.repo} {' '.join(data.files)} --repo-type dataset "
            f"--revision {wanted} --local-dir {benchmark}-data; then here: --data {benchmark}={benchmark}-data",
        ) from error
    commits = {p.parts[p.parts.index("snapshots") + 1] for p in paths}
    return paths, commits.pop()


def hashes(files: Sequence[Path]) -> dict[str, str]:
    """The sha256 of each file, by its name, or by its path where two have one name."""
    names = Counter(file.name for file in files)
    return {file.name if names[file.name] == 1 else str(file): sha256_of(file) for file in files}


LowerRow = dict[str, Any]
"""A row with lower-case column names."""
Reader = Callable[[LowerRow], tuple[Any, Any, Any]]
ID_COLUMNS = ("unique_id", "id", "problem_idx")


def _own_id(row: LowerRow) -> Any:
    return next((row[name] for name in ID_COLUMNS if row.get(name) is not None), None)


def _of_text(read: Callable[[str], str], answer: Any) -> Any:
    return read(answer) if isinstance(answer, str) else answer


def _last_box(solution: Any) -> Any:
    r"""The content of the last closed `\boxed{...}`; None without one."""
    closed = boxes(solution) if isinstance(solution, str) else []
    return closed[-1].content if closed else None


def _last_message(row: LowerRow) -> Any:
    messages = row["prompt"]
    return messages[-1].get("content") if isinstance(messages, list) and messages else messages


def _nested(row: LowerRow, table: str, key: str) -> Any:
    value = row.get(table)
    return value.get(key) if isinstance(value, dict) else None


READERS: dict[tuple[str, ...], Reader] = {
    ("problem", "answer"): lambda row: (_own_id(row), row["problem"], _of_text(reference, row["answer"])),
    ("question", "answer"): lambda row: (_own_id(row), row["question"], _of_text(final_number, row["answer"])),
    ("prompt", "reward_model"): lambda row: (
        _nested(row, "extra_info", "index"),
        _last_message(row),
        _nested(row, "reward_model", "ground_truth"),
    ),
    ("problem", "solution"): lambda row: (_own_id(row), row["problem"], _last_box(row["solution"])),
}
"""Columns that a row must have -> its id, question and answer; the first that fits is used. In order:
HuggingFaceH4/aime_2024, Maxwell-Jia/AIME_2024, MathArena/aime_*, HuggingFaceH4/MATH-500; openai/gsm8k; verl files and
BytedTsinghua-SIA/AIME-2024; math-ai/aime24."""


def raw_problems(files: Sequence[Path]) -> list[Problem]:
    """The problems of all files, in order, with the plain question as the prompt; a row without an id gets its number.

    If two files use the same ids (the two halves of a competition), the file's name is put before every id.
    Errors: GspoError for columns that no schema knows, or a row without a question or an answer.
    """
    problems: list[tuple[str, Problem]] = []
    for file in files:
        rows = [(where, {str(name).lower(): value for name, value in row.items()}) for where, row in read_rows(file)]
        read = _find_reader(rows[0][1], str(file))
        problems += [(file.stem, _raw_problem(read, row, n, where)) for n, (where, row) in enumerate(rows)]
    files_of_id: dict[str, set[str]] = {}
    for name, problem in problems:
        files_of_id.setdefault(problem.id, set()).add(name)
    if all(len(names) == 1 for names in files_of_id.values()):
        return [problem for _, problem in problems]
    return [replace(problem, id=f"{name}/{problem.id}") for name, problem in problems]


def _find_reader(row: LowerRow, where: str) -> Reader:
    if known := next((read for columns, read in READERS.items() if all(name in row for name in columns)), None):
        return known
    accepted = " or ".join(" + ".join(columns) for columns in READERS)
    raise GspoError(
        f"{where}: unknown column names",
        f"the columns are {', '.join(row) or 'none'}; accepted are {accepted} (upper or lower case)",
        "rename the columns of the question and the answer",
    )


def _raw_problem(read: Reader, row: LowerRow, number: int, where: str) -> Problem:
    try:
        identity, question, answer = read(row)
    except (KeyError, AttributeError) as error:
        raise _incomplete(where, "lacks a column of the first row", row) from error
    if isinstance(answer, float):
        answer = int(answer) if answer.is_integer() else answer if math.isfinite(answer) else None
    if question is None or not require_text(where, "question", question).strip():
        raise _incomplete(where, "has no question", row)
    if not is_unicode(identity, question, answer):
        raise _incomplete(where, "has half of a surrogate pair in it", row)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise _incomplete(where, "has no answer", row)
    return Problem(str(number if identity is None else identity), question, str(answer))


def _incomplete(where: str, fault: str, row: LowerRow) -> GspoError:
    return GspoError(f"{where} {fault}", f"the columns are {', '.join(row)}", "correct or remove that row")
