"""Reads the tests of a LiveCodeBench row without unpickling anything.

Private tests are JSON text, or base64 of zlib of a pickle of that text. The pickle is never loaded: its opcodes are
walked, and only those that hold one string are accepted. Every step is bounded.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from typing import Any

from gspo_cli.rewards.code.code_tests import BadTests, CodeTests

LIMIT = 256 << 20
"""Bytes that one problem's tests may unpack to."""
STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
AROUND = {"PROTO", "FRAME", "MEMOIZE", "STOP"}


def unpack_tests(public: str, private: str, metadata: str, limit: int = LIMIT) -> CodeTests:
    """Public tests, then private ones; a `func_name` in the metadata makes the problem functional.

    Errors: BadTests for anything that cannot be decoded, or of which nothing can be graded.
    """
    try:
        name = (json.loads(metadata) if metadata else {}).get("func_name")
        cases = [*json.loads(public or "[]"), *json.loads(private_text(private or "", limit) or "[]")]
        inputs, outputs = (tuple(case[key] for case in cases) for key in ("input", "output"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadTests(f"the tests cannot be decoded: {type(error).__name__}") from error
    if not all(isinstance(text, str) for text in (*inputs, *outputs)):
        raise BadTests("an input or output is no text")
    tests = CodeTests(inputs, outputs, name)
    tests.check()
    return tests


def private_text(field: str, limit: int = LIMIT) -> str:
    """The JSON text of the private tests, from either encoding.

    Errors: BadTests.
    """
    if field.lstrip().startswith("[") or not field.strip():
        return field.strip()
    try:
        packed = base64.b64decode(field.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadTests("private tests are neither JSON nor base64") from error
    return string_of_pickle(inflate(packed, limit))


def inflate(packed: bytes, limit: int) -> bytes:
    """zlib data of at most `limit` bytes, complete and with nothing after it.

    Errors: BadTests.
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


def string_of_pickle(data: bytes) -> str:
    """The one string that a pickle of a string holds.

    Errors: BadTests for any other opcode, another number of strings, or bytes after the end.
    """
    found: list[Any] = []
    end = None
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name in STRINGS:
                found.append(argument)
            elif opcode.name not in AROUND:
                raise BadTests(f"private tests are a pickle of more than text ({opcode.name})")
            end = position if opcode.name == "STOP" else None
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        raise BadTests("private tests are no pickle") from error
    if end is None or end + 1 != len(data):
        raise BadTests("private tests are followed by other data")
    if len(found) != 1 or not isinstance(found[0], str):
        raise BadTests(f"private tests hold {len(found)} strings, not one")
    return found[0]
