"""How published data sets name a problem's id, question and answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.rows import File
from gspo_cli.rewards.boxes import boxes

Row = dict[str, Any]
"""With lower-case column names."""


IDS = ("unique_id", "id", "problem_idx")


def _own_id(row: Row) -> Any:
    return next((row[name] for name in IDS if row.get(name) is not None), None)


@dataclass(frozen=True, slots=True)
class Schema:
    """One way of naming; `columns` must all be there."""

    columns: tuple[str, ...]
    question: Callable[[Row], Any]
    answer: Callable[[Row], Any]
    id: Callable[[Row], Any] = _own_id


@dataclass(frozen=True, slots=True)
class RawProblem:
    """A problem as the data has it."""

    id: str
    question: str
    answer: str


def final_number(solution: Any) -> Any:
    """GSM8K's reference: what follows the last `####`, without commas."""
    return solution.rsplit("####", 1)[-1].strip().replace(",", "") if isinstance(solution, str) else solution


def last_box(solution: Any) -> Any:
    r"""The content of the last closed `\boxed{...}`; None without one."""
    found = boxes(solution) if isinstance(solution, str) else []
    return found[-1].content if found else None


def _last_message(row: Row) -> Any:
    messages = row["prompt"]
    return messages[-1].get("content") if isinstance(messages, list) and messages else messages


def _nested(row: Row, table: str, key: str) -> Any:
    value = row.get(table)
    return value.get(key) if isinstance(value, dict) else None


SCHEMAS = (
    Schema(("problem", "answer"), lambda row: row["problem"], lambda row: row["answer"]),
    Schema(("question", "answer"), lambda row: row["question"], lambda row: final_number(row["answer"])),
    Schema(
        ("prompt", "reward_model"),
        _last_message,
        lambda row: _nested(row, "reward_model", "ground_truth"),
        lambda row: _nested(row, "extra_info", "index"),
    ),
    Schema(("problem", "solution"), lambda row: row["problem"], lambda row: last_box(row["solution"])),
)
"""HuggingFaceH4/aime_2024, Maxwell-Jia/AIME_2024, MathArena/aime_*, HuggingFaceH4/MATH-500; openai/gsm8k; verl files
and BytedTsinghua-SIA/AIME-2024; math-ai/aime24. The first that fits is taken."""


def raw_problems(files: list[File], where: str) -> list[RawProblem]:
    """The problems of all files, in order; a row without an id is called by its number.

    Two files that number their problems alike (the two halves of a competition) get ids with the file's name.
    Errors: GspoError for columns that no schema knows, or a row without a question or an answer.
    """
    found: list[tuple[str, RawProblem]] = []
    for file in files:
        rows = [{str(name).lower(): value for name, value in row.items()} for row in file.rows]
        schema = _schema(rows[0], where)
        for number, row in enumerate(rows):
            found.append((file.name, _problem(schema, row, number, f"{where}, row {number + 1}")))
    homes: dict[str, set[str]] = {}
    for name, problem in found:
        homes.setdefault(problem.id, set()).add(name)
    if all(len(names) == 1 for names in homes.values()):
        return [problem for _, problem in found]
    return [RawProblem(f"{name}/{p.id}", p.question, p.answer) for name, p in found]


def _schema(row: Row, where: str) -> Schema:
    for schema in SCHEMAS:
        if all(name in row for name in schema.columns):
            return schema
    accepted = " or ".join(" + ".join(schema.columns) for schema in SCHEMAS)
    raise GspoError(
        f"{where}: no known names of columns",
        f"the columns are {', '.join(row) or 'none'}; accepted are {accepted} (upper or lower case)",
        "rename the columns of the question and the answer",
    )


def _problem(schema: Schema, row: Row, number: int, where: str) -> RawProblem:
    try:
        identity, question, answer = schema.id(row), schema.question(row), schema.answer(row)
    except (KeyError, AttributeError) as error:
        raise _missing(where, "a column that the first row has", row) from error
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    if not isinstance(question, str) or not question.strip():
        raise _missing(where, "a question", row)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise _missing(where, "an answer", row)
    return RawProblem(str(number if identity is None else identity), question, str(answer))


def _missing(where: str, what: str, row: Row) -> GspoError:
    return GspoError(f"{where} has not {what}", f"the columns are {', '.join(row)}", "mend or remove that row")
