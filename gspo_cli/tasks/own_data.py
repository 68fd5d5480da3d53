"""Data of one's own: nothing is added to the prompt, and every column of a row reaches the rewards by name.

A prompt is the text or the messages of one column, or `task.template` over several. A share of the rows (or a file, or
another split) is held out: the hash of a row's prompt decides, so rows that are appended move no other row, and no
prompt is in both parts.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError, nearest
from gspo_cli.rows import SUFFIXES, Located, require_text
from gspo_cli.tasks.data import SAVED, is_local, read_source, require_column, value_text
from gspo_cli.types import Problem, Score

PROMPTS = ("prompt", "question", "problem", "messages")
"""Names of the column with the prompt, if the recipe names none."""
READ_ANSWERS = {"number", "math", "exact", "choice"}
"""Built-in rewards that score nothing without a row's answer."""
FIELD = re.compile(r"\{([^{}\n]+)\}")
ROLES = ("system", "developer", "user", "assistant", "tool")


class OwnData:
    """Rows of a file, a folder or a data set on the hub. It has no reward of its own."""

    default_template = ""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config
        self.notes: list[str] = []

    def problems(self, split: str) -> list[Problem]:
        """The rows of a split that are not held out, or with `held_out` those that are, in the order of the data.

        Errors: GspoError for missing data or columns, for a row that is no prompt, or if a part is empty.
        """
        self.notes, share, wanted = [], self.config.held_out, split == "held_out"
        if wanted and share is None:
            why, hint = "task.held_out is not set", "--set task.held_out=0.1, or a file of such rows"
            raise GspoError("no rows are held out", why, hint)
        if isinstance(share, str) and wanted:
            return [problem for _, problem in self._read(*self._held_out_place(share), "held_out")]
        rows = self._read(self.config.path, self.config.split if wanted else split, "row")
        if isinstance(share, str):
            held = {question for question, _ in self._read(*self._held_out_place(share), "held_out")}
            found = [problem for question, problem in rows if question not in held]
            if both := len(rows) - len(found):
                self.notes.append(f"{both} rows are held out in {share} too, and are not trained on")
        else:
            found = [problem for question, problem in rows if (place_of(question) < (share or 0.0)) == wanted]
        if not found:
            raise GspoError(
                f"task.held_out = {share} leaves none of {len(rows)} rows to {'evaluate' if wanted else 'train on'}",
                "a row whose prompt is held out is not trained on, and the hash of a prompt decides about a share",
                "give more rows, another share, or a file of other rows",
            )
        return found

    def _held_out_place(self, name: str) -> tuple[str | None, str]:
        """Path and split of the held-out rows. Errors: GspoError for a name that is neither a file nor a split."""
        path = self.config.path
        if Path(name).exists() or name.endswith(SUFFIXES) or "/" in name:
            return name, "train" if Path(name).is_file() else self.config.split
        if path is not None and is_local(path) and not (Path(path) / SAVED[0]).is_file():
            why = f"{path} has no splits, of which it could be one"
            raise GspoError(
                f"task.held_out: no file {name}", why, "check the path, or give a share: task.held_out = 0.1"
            )
        return path, name

    def reward(self, problem: Problem, text: str) -> Score:
        """Errors: always, since `task.reward` takes its place."""
        raise NotImplementedError

    def _read(self, path: str | None, split: str, name: str) -> list[tuple[str, Problem]]:
        """All rows as problems, with ids that say where they stand, each with what decides whether it is held out: the
        value of its prompt's column, so that another template moves no row, or without one the whole prompt."""
        source, rows = self._source(path, split)
        columns: dict[str, str] = {str(ours): theirs for ours, theirs in self.config.columns.items()}
        if "answer" in columns:
            require_column(source, rows, "answer", columns["answer"])
        rewards = {self.config.reward, *(reward.name for reward in self.config.rewards)}
        if rewards & READ_ANSWERS and any("answer" in row for _, row in rows):
            columns.setdefault("answer", "answer")
        known = [name for name in PROMPTS if any(name in row for _, row in rows)]
        if self.config.template is None or "{question}" in self.config.template or "prompt" in columns or known:
            columns.setdefault("prompt", (known or PROMPTS)[0])
            require_column(source, rows, "prompt", columns["prompt"])
        if self.config.template is not None:
            columns |= self._fields(self.config.template, source, rows, columns.get("prompt"))
        found = [self._problem(f"{name}-{number}", located, columns) for number, located in enumerate(rows, start=1)]
        key = columns.get("prompt", "")
        return [(as_text(problem.columns.get(key)) or problem.prompt, problem) for problem in found]

    def _source(self, path: str | None, split: str) -> tuple[str, list[Located]]:
        """The name of the data, and their rows. Errors: GspoError, as `read_source`, or without a path."""
        if path is None:
            raise GspoError("task.name = data without data", "task.path is not set", "--set task.path=train.jsonl")
        return read_source(path, ("", None, self.config.revision), split)

    def _fields(self, template: str, source: str, rows: list[Located], prompt: str | None) -> dict[str, str]:
        """Field of the template -> column. Errors: GspoError if none is a column."""
        fields, known = dict.fromkeys(FIELD.findall(template)), {"question"}.union(*(row for _, row in rows))
        if not known.intersection(fields):
            raise GspoError(
                f"task.template has no column of {source} in it",
                f"the columns are {', '.join(sorted(known - {'question'}))}",
                "write {COLUMN} where the text of a column belongs",
            )
        unknown = [name for name in fields if name not in known and " " not in name]  # JSON and sets have spaces
        near = {name: nearest(f"{{{name}}}", [f"{{{one}}}" for one in known], "") for name in unknown}
        self.notes += [
            f"task.template: {{{name}}} is no column, and stays as it is" + (hint and f"; {hint}")
            for name, hint in near.items()
        ]
        return {f"{{{name}}}": name for name in fields if name in known} | ({"{question}": prompt} if prompt else {})

    def _problem(self, identity: str, located: Located, columns: dict[str, str]) -> Problem:
        where, row = located
        answer: Any = row.get(columns.get("answer", "answer"))
        if "answer" in columns:
            value_text(located, "answer", columns["answer"])
        values = row | ({"answer": answer} if answer is not None else {})
        text = require_text(where, "answer", answer if isinstance(answer, str) else as_text(answer))
        messages: tuple[dict[str, str], ...] = ()
        if self.config.template is not None:
            prompt = FIELD.sub(lambda field: fill_in(field[0], located, columns), self.config.template)
        elif isinstance(row.get(columns["prompt"]), list):
            messages = read_messages(where, columns["prompt"], row[columns["prompt"]])
            prompt = "\n\n".join(message["content"] for message in messages)
            messages = () if [message["role"] for message in messages] == ["user"] else messages
            if self.config.system is not None and any(message["role"] == "system" for message in messages):
                raise GspoError(
                    f"{where} has a system prompt, and so has the recipe",
                    "task.system would stand beside it",
                    "remove one of them",
                )
        else:
            prompt = value_text(located, "prompt", columns["prompt"])
        return Problem(identity, prompt, text, values, messages)


def fill_in(field: str, located: Located, columns: dict[str, str]) -> str:
    """What takes the place of `{NAME}`: the text of the column, or itself if there is none of that name."""
    if field not in columns:
        return field
    value = located[1].get(columns[field])
    return as_text(value) if isinstance(value, list | dict) else value_text(located, "column", columns[field])


def place_of(text: str) -> float:
    """Where the hash of a text lies in [0, 1)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def as_text(value: Any) -> str:
    """A value of a column as text: nothing for null, JSON for what is no text."""
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def read_messages(where: str, column: str, value: list[Any]) -> tuple[dict[str, str], ...]:
    """The messages of a prompt. Errors: GspoError unless each has a role and a text, and the last is not an answer."""
    for number, message in enumerate(value, start=1):
        given = message if isinstance(message, dict) else {}
        if given.get("role") not in ROLES or not isinstance(given.get("content"), str):
            raise GspoError(
                f"{where}: message {number} of {column!r} is {message!r:.80}",
                f"a message is an object with role ({', '.join(ROLES)}) and content, a text",
                "correct it, or remove the row",
            )
        require_text(where, column, message["content"])
    if not value or value[-1]["role"] == "assistant":
        what = "ends with an answer of the assistant" if value else "has no messages"
        raise GspoError(
            f"{where}: {column!r} {what}",
            "the model writes the next message",
            "let a prompt end with the user's message",
        )
    return tuple({"role": message["role"], "content": message["content"]} for message in value)
