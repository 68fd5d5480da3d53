"""The tests of a programming problem, and why some cannot be graded against."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

MAX_DIGITS = 50_000  # of an integer in JSON, as the official evaluator allows


class BadTests(Exception):
    """Tests against which nothing can be graded; the problem is left out and named, it is never a pass."""


@dataclass(frozen=True)
class CodeTests:
    """Inputs with their expected outputs; stdin and stdout, or arguments (one JSON value a line) and result."""

    inputs: tuple[str, ...] = field(repr=False)
    outputs: tuple[str, ...] = field(repr=False)
    fn_name: str | None = None

    @cached_property
    def expected(self) -> tuple[Any, ...]:
        """The outputs as values, for functions."""
        return tuple(map(parse, self.outputs))

    def check(self) -> None:
        """Errors: BadTests when there are none, their numbers differ, or a function's are no JSON."""
        if not self.inputs:
            raise BadTests("no tests")
        if len(self.inputs) != len(self.outputs):
            raise BadTests(f"{len(self.inputs)} inputs but {len(self.outputs)} outputs")
        if self.fn_name is None:
            return
        try:
            for text in self.inputs:
                for line in text.split("\n"):
                    parse(line)
            self.expected  # noqa: B018
        except (ValueError, RecursionError) as error:
            raise BadTests("arguments or results are not JSON") from error


def parse(text: str) -> Any:
    """A JSON value, with integers of up to 50,000 digits.

    Errors: ValueError, RecursionError.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer beyond the interpreter's own limit of digits
        return json.loads(text, parse_int=_long)


def _long(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("an integer of more than 50,000 digits")
    sign, digits = (-1, digits[1:]) if digits.startswith("-") else (1, digits)
    value = 0
    for start in range(0, len(digits), 4000):
        part = digits[start : start + 4000]
        value = value * 10 ** len(part) + int(part)
    return sign * value


def tests_from(row: Any) -> CodeTests:
    """From `{"inputs": [...], "outputs": [...], "fn_name": name or null}`; a list as one input means its lines.

    Errors: BadTests for anything else.
    """
    if not isinstance(row, dict) or not all(isinstance(row.get(k), list) for k in ("inputs", "outputs")):
        raise BadTests("tests are no object with the lists inputs and outputs")
    inputs = ["\n".join(map(str, i)) if isinstance(i, list) else i for i in row["inputs"]]
    if not all(isinstance(text, str) for text in (*inputs, *row["outputs"])):
        raise BadTests("an input or output is no text")
    name = row.get("fn_name")
    if name is not None and not isinstance(name, str):
        raise BadTests("fn_name is no text")
    return CodeTests(tuple(inputs), tuple(row["outputs"]), name)
