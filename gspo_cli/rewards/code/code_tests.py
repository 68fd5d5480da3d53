"""The tests of a programming problem: validated, and read from LiveCodeBench's packed form without unpickling."""

import base64
import binascii
import json
import pickletools
import zlib
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import Any

MAX_DIGITS = 50_000  # of an integer in JSON, as the official evaluator allows
MAX_UNPACKED, FEW_UNPACKED, MAX_TIMES = 256 << 20, 8 << 20, 100
"""Bytes that one problem's tests may unpack to, and that any may; larger ones, to so many times their packed size."""
MAX_OPCODES = 16
"""Of a pickle of one string, which has 5."""
STRING_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
FRAMING_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "STOP"}


class BadTests(Exception):
    """Nothing can be graded against these tests. The problem is left out and named; it is never a pass.

    The messages are keys of `excluded` in summaries.
    """


@dataclass(frozen=True)
class CodeTests:
    """Inputs with their expected outputs: stdin and stdout, or arguments (one JSON value per line) and result."""

    inputs: tuple[str, ...] = field(repr=False)
    outputs: tuple[str, ...] = field(repr=False)
    fn_name: str | None = None

    @cached_property
    def expected(self) -> tuple[Any, ...]:
        """The outputs as values; for functions."""
        return tuple(map(parse_json, self.outputs))

    def check(self) -> None:
        """Errors: BadTests without tests, for unequal numbers of inputs and outputs, or values that should be JSON."""
        if not self.inputs:
            raise BadTests("no tests")
        if len(self.inputs) != len(self.outputs):
            raise BadTests(f"{len(self.inputs)} inputs but {len(self.outputs)} outputs")
        if self.fn_name is None:
            return
        try:
            for text in self.inputs:
                for line in text.split("\n"):
                    parse_json(line)
            self.expected  # noqa: B018
        except (ValueError, RecursionError) as error:
            raise BadTests("arguments or results are not JSON") from error


def parse_json(text: str) -> Any:
    """A JSON value, with integers of up to 50,000 digits. Errors: ValueError (also for a key that is there twice),
    RecursionError."""
    return json.loads(text, parse_int=_integer, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return table


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("an integer of more than 50,000 digits")
    return int(digits) if len(digits) < 4000 else int(Decimal(digits))  # `int` parses no more than 4300


def parse_tests(row: Any) -> CodeTests:
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


def unpack_tests(public: str, private: str, metadata: str, limit: int = MAX_UNPACKED) -> CodeTests:
    """Public tests, then private ones; a `func_name` in the metadata makes the problem functional.

    Errors: BadTests for tests that cannot be decoded, or against which nothing can be graded.
    """
    try:
        name = (json.loads(metadata) if metadata else {}).get("func_name")
        cases = [*json.loads(public or "[]"), *json.loads(private_json(private or "", limit) or "[]")]
        inputs, outputs = ([case[key] for case in cases] for key in ("input", "output"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadTests(f"the tests cannot be decoded: {type(error).__name__}") from error
    tests = parse_tests({"inputs": inputs, "outputs": outputs, "fn_name": name})
    tests.check()
    return tests


def private_json(field: str, limit: int = MAX_UNPACKED) -> str:
    """The private tests as JSON text, from either encoding. Errors: BadTests."""
    if field.lstrip().startswith("[") or not field.strip():
        return field.strip()
    try:
        packed = base64.b64decode(field.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadTests("private tests are neither JSON nor base64") from error
    return pickled_string(inflate(packed, min(limit, max(FEW_UNPACKED, MAX_TIMES * len(packed)))))


def inflate(packed: bytes, limit: int) -> bytes:
    """Decompress zlib data to at most `limit` bytes.

    Errors: BadTests for more than that, and for data that is cut off or followed by other data.
    """
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, limit)
    except zlib.error as error:
        raise BadTests("private tests are no zlib data") from error
    if stream.unconsumed_tail:
        raise BadTests(f"private tests unpack to more than {limit >> 20} MiB")
    if not stream.eof or stream.unused_data:
        raise BadTests("private tests are cut off or followed by other data")
    return data


def pickled_string(data: bytes) -> str:
    """The string in a pickle of one string, read from the opcodes without unpickling.

    Errors: BadTests for any other opcode, another number of strings, or bytes after the end.
    """
    try:
        steps = list(islice(pickletools.genops(data), MAX_OPCODES + 1))
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        raise BadTests("private tests are no pickle") from error
    if others := {opcode.name for opcode, _, _ in steps} - STRING_OPCODES - FRAMING_OPCODES:
        raise BadTests(f"private tests are a pickle of more than text ({min(others)})")
    strings = [argument for opcode, argument, _ in steps if opcode.name in STRING_OPCODES]
    last, _, position = steps[-1]
    if len(strings) != 1 or (last.name, position) != ("STOP", len(data) - 1):
        raise BadTests("private tests are not exactly one string")
    return str(strings[0])
