"""Stored responses of a run, as `gspo runs samples` reads them: filtered, without token ids."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from gspo_cli.errors import GspoError
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.fs import require_regular

COLUMNS = (
    "step", "problem_id", "prompt", "answer", "sample", "text", "finish", "reward", "reason", "prompt_ids", "token_ids"
)  # fmt: skip
PARTS = "parts"
"""The column of several rewards, which a batch with a single one lacks."""
KINDS = dict.fromkeys(("step", "sample", "seed", "weight_version"), pa.types.is_integer)
KINDS |= {"reward": pa.types.is_floating} | dict.fromkeys(("prompt_ids", "token_ids", "log_probs"), pa.types.is_list)
KINDS |= {PARTS: pa.types.is_map}
"""Tests of the columns' types; the others are text."""
MAY_BE_NULL = ("reward", "reason", PARTS)
STEP = re.compile(r"step_(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Response:
    """One stored response with its prompt."""

    step: int
    """Rollout batch, from 1."""
    problem_id: str
    prompt: str
    """As the model saw it, chat template and special tokens included; the problem's own text where the run has no
    tokenizer (any more)."""
    answer: str
    """The reference answer."""
    sample: int
    """Position in the group."""
    text: str
    finish: str
    """`stop`, or `length` where the limit cut it off."""
    reward: float | None
    """None where the grader failed."""
    reason: str
    """The reward's one or two words."""
    tokens: int
    parts: dict[str, float | None]
    """Each of several rewards by its label, before its weight."""

    def value(self, part: str | None) -> float | None:
        """The reward, or one part of it."""
        return self.reward if part is None else self.parts.get(part)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which responses are wanted; None = any."""

    step: str | None = None
    """A rollout batch's number, `first`, `newest` or `all`."""
    low: float | None = None
    high: float | None = None
    """Bounds of the reward, both included; an unscored response is outside of any."""
    lowest: bool | None = None
    """The lowest rewards first, or the highest first; without what was not scored."""
    part: str | None = None
    """The part of the reward that all this is about, by its label."""
    cut_off: bool | None = None
    text: str | None = None
    """Part of the prompt or the response, whatever its case."""

    def takes(self, response: Response) -> bool:
        """Whether a response is wanted, its step aside."""
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        bounded, value = (self.low, self.high) != (None, None), response.value(self.part)
        if value is None and (bounded or self.lowest is not None):
            return False
        if value is not None and not low <= value <= high:
            return False
        if self.cut_off is not None and (response.finish == "length") != self.cut_off:
            return False
        return self.text is None or self.text.casefold() in f"{response.prompt}\n{response.text}".casefold()


def stored_steps(run: Path) -> list[int]:
    """The rollout batches that a run has stored."""
    matches = (STEP.fullmatch(path.name) for path in (run / "rollouts").glob("step_*.parquet"))
    return sorted(int(match[1]) for match in matches if match)


def responses(run: Path, wanted: Filter) -> list[Response]:
    """The wanted responses by step, in the order of the batch, or by their reward.

    Errors: GspoError if the run has stored no such batch, or its reward no such part, or (exit code STORAGE) for a file
    that cannot be read.
    """
    files = [run / "rollouts" / f"step_{step:06d}.parquet" for step in chosen_steps(run, wanted.step)]
    every = [Response(**row) for path in files for row in read_rows(path, run)]
    labels = sorted({label for response in every for label in response.parts})
    if wanted.part is not None and wanted.part not in labels:
        why = f"its parts are {', '.join(labels)}" if labels else "the run has a single reward"
        raise GspoError(
            f"--part {wanted.part}: no part of the reward of {run}", why, "name one of them, or leave it out"
        )
    found = [response for response in every if wanted.takes(response)]
    if wanted.lowest is not None:
        found.sort(key=lambda response: response.value(wanted.part) or 0.0, reverse=not wanted.lowest)
    return found


def read_rows(path: Path, run: Path) -> list[dict[str, Any]]:
    """The responses of a stored batch, as the fields of `Response`. Errors: as `read_columns`."""
    seen = prompt_reader(run)
    rows: list[dict[str, Any]] = read_columns(path, COLUMNS).to_pylist()
    for row, own in zip(rows, read_columns(path, [PARTS], absent=True).to_pylist(), strict=True):
        row["prompt"] = seen(tuple(row.pop("prompt_ids"))) or row["prompt"]
        row["tokens"], row["parts"] = len(row.pop("token_ids")), dict(own.get(PARTS) or ())
    return rows


def prompt_reader(run: Path) -> Callable[[tuple[int, ...]], str]:
    """From token ids to the text that the model saw, by the tokenizer of the last checkpoint; empty without one."""
    files = sorted(run.glob("checkpoints/step-*/model/tokenizer.json"))
    try:
        tokenizer = Tokenizer.from_file(str(files[-1])) if files else None
    except Exception:  # all that the library raises, for a file that is none
        tokenizer = None
    return cache(lambda ids: tokenizer.decode(ids, skip_special_tokens=False) if tokenizer else "")


def read_columns(path: Path, columns: Sequence[str], absent: bool = False) -> pa.Table:
    """Columns of a stored batch; `absent` = those it lacks are left out.

    Errors: GspoError (exit code STORAGE) for a file that cannot be read or lacks one.
    """
    try:
        require_regular(path)
        stored = pq.read_schema(path)
        columns = [name for name in columns if name in stored.names or not absent]
        if missing := [name for name in columns if name not in stored.names]:
            raise corrupt(str(path), f"it has no column {missing[0]}")
        if wrong := [name for name in columns if not KINDS.get(name, pa.types.is_string)(stored.field(name).type)]:
            raise corrupt(str(path), f"its column {wrong[0]} has the type {stored.field(wrong[0]).type}")
        table = pq.read_table(path, columns=list(columns))
        if empty := [name for name in columns if name not in MAY_BE_NULL and table[name].null_count]:
            raise corrupt(str(path), f"its column {empty[0]} has rows without a value")
        return table
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise corrupt(str(path), error) from error


def parse_range(text: str | None) -> tuple[float | None, float | None]:
    """The bounds of `0..0.5`, `1..`, `..0`, or of a single number. Errors: GspoError for anything else."""
    if text is None:
        return None, None
    first, dots, last = text.partition("..")
    try:
        low = float(first) if first.strip() else None
        high = low if not dots else float(last) if last.strip() else None
        least, most = -math.inf if low is None else low, math.inf if high is None else high
        if (low is None and high is None) or not least <= most:
            raise ValueError
    except ValueError:
        raise GspoError(
            f"--reward {text} is no range", "a range is LOW..HIGH, one of them may be missing", "e.g. --reward 0..0.5"
        ) from None
    return low, high


def chosen_steps(run: Path, step: str | None) -> list[int]:
    """The stored steps that `step` names: a number, `first`, `newest` (None too) or `all`."""
    steps = stored_steps(run)
    if not steps:
        raise GspoError(
            f"{run} has stored no responses",
            "its first rollout batch is not done, or rollout.keep_newest = false and rollout.store = 0",
            "wait for the first batch, or train with --set rollout.store=20 to keep every 20th",
        )
    named = {"first": steps[:1], "newest": steps[-1:], "all": steps} | {str(number): [number] for number in steps}
    name = step or "newest"
    if found := named.get(str(int(name)) if name.isdecimal() else name):
        return found
    raise GspoError(
        f"rollout batch {step} of {run} is not stored",
        f"stored are {', '.join(map(str, steps))}",
        "give one of them, or first, newest or all",
    )
