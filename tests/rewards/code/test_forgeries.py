"""What a program writes into the channel is bytes that nobody trusts: each message below is at most a wrong answer of
that program alone, and costs the grader little time and memory.

The forgers run without a sandbox, for speed: they harm nothing.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_cli.rewards.code import official as official_module
from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.harness.channel import LENGTHS
from gspo_cli.rewards.code.harness_process import FORGED
from gspo_cli.rewards.code.official import Rules, grade_official
from gspo_cli.rewards.code.outputs import NoTruth, read_value, same_value
from gspo_cli.rewards.code.script import CheckedTests, grade_checked, grade_script
from gspo_cli.rewards.verdict import ProgramVerdict
from gspo_cli.sandbox.choose import UnsafeLocal
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import find_interpreter
from gspo_cli.sandbox.process import PipeClosed

GRADERS = {"official": grade_official, "script": grade_script}
ENCODER = """
import sys
def forged(self, value, depth=0):
    return {value}
sys.modules["gspo_cli.rewards.code.harness.channel"].Encoder.encode = forged
class Solution:
    def solve(self, n): return 0
"""
WRITER = """
import os, struct
def write(data):
    for descriptor in range(40, 64):
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view):]
        except OSError:
            continue
def frame(head, body=b""):
    return struct.pack("!II", len(head), len(body)) + head + body
OK = b'{"status": "ok"}'
class Solution:
    def solve(self, n):
        ACTION
        return 0
"""
EXPECTED = [
    *(0, 1, -1, 0.5, "x", True, None, 10**400, float("nan"), float("inf")),
    *([], {}, [1, 2], {"a": 1, "b": 2}, [[3]]),
]
RANDOM = random.Random(1)
VALUES: dict[str, Any] = {
    "a format of struct that yields true": ["n", "?", True],
    "a format of struct that allocates": ["n", "1500000000x?", True],
    "a format of struct that is an object": ["n", {}, 1.0],
    "a narrow number that is none": ["n", "f", [1.0]],
    "a fraction by zero": ["F", "1", "0"],
    "a fraction by zero in base 16": ["F", "0x1", "0x0"],
    "a fraction with huge terms": ["F", hex(RANDOM.getrandbits(2_000_000)), hex(RANDOM.getrandbits(2_000_000))],
    "a fraction of three": ["F", "0x1", "0x1", "0x1"],
    "a fraction of numbers": ["F", 1, 1],
    "a decimal that is none": ["D", "garbage"],
    "a decimal out of range": ["D", "1E+99999999999999999999"],
    "a signalling decimal": ["D", "sNaN"],
    "a decimal of a tuple": ["D", [0, [1], 0]],
    "a complex too large": ["c", int("9" * 401), 0],
    "a complex as text": ["c", "1"],
    "a complex of three": ["c", 1.0, 2.0, 3.0],
    "a complex of objects": ["c", {}, []],
    "an integer with a sign only": ["i", "-"],
    "an integer as a list": ["i", [1]],
    "an integer too long": ["i", "0x" + "f" * 400_000],
    "an array without a shape": ["a"],
    "an array with a shape of text": ["a", ["1", None], 1],
    "an array with a huge shape": ["a", [10**300, 10**300], 1],
    "an array with a negative shape": ["a", [-1], 1],
    "an array of many dimensions": ["a", [1] * 100, 99],
    "arrays in arrays": ["a", [], ["a", [], ["a", [], ["?"]]]],
    "an empty list": [],
    "a list of no kind": [[]],
    "a kind that is a number": [1, 2],
    "an unknown kind": ["z", 1],
    "an object": {"l": 1},
    "an object within": ["l", {}, {}],
    "a dictionary with one pair": ["d", ["a", 1]],
    "a dictionary with the same pair twice": ["d", ["a", 1], ["a", 1]],
    "a dictionary of texts": ["d", "ab", "cd"],
    "a dictionary with a list as key": ["d", [["l"], 1], [{}, 2]],
    "a dictionary of triples": ["d", ["a", 1, 2], ["b", 2, 3]],
    "not-a-number": float("nan"),
    "half a character": "\ud800",
}


def frame(head: bytes, body: bytes = b"") -> bytes:
    return LENGTHS.pack(len(head), len(body)) + head + body


OK = b'{"status": "ok"}'
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe",
    "no JSON": b"[",
    "a long integer": b"9" * 1_000_000,
    "a long exponent": b"1e" + b"9" * 100_000,
    "a long fraction": b"0." + b"0" * 1_000_000,
    "deep lists": b"[" * 900_000,
    "deep arrays": b'["a",[],' * 120 + b"1" + b"]" * 120,
    "deep objects": b'{"a":' * 200_000,
    "two values": b"0 0",
    "a zero byte": b"\x00",
}
CONVERSATIONS: dict[str, bytes] = {
    "a status that is a list": frame(b'{"status": []}'),
    "a status that is an object": frame(b'{"status": {"ok": 1}}'),
    "no status": frame(b"{}"),
    "accepted": frame(b'{"status": "accepted", "passed": true, "verdict": "accepted"}'),
    "a header that is a list": frame(b'["status"]'),
    "a header that is a number": frame(b"1"),
    "a header of a deep list": frame(b"[" * 60000),
    "a header with a long integer": frame(b'{"status": ' + b"9" * 60000 + b"}"),
    "a header without UTF-8": frame(b"\xff"),
    "a header beyond its size": LENGTHS.pack(1 << 31, 0),
    "a body beyond its size": LENGTHS.pack(16, 1 << 31) + OK,
    "half a frame": frame(OK, b"0")[:9],
    "half a length": b"\0\0",
    "two answers": frame(OK, b"1") + frame(OK, b"0"),
    "many answers": frame(OK, b"1") * 100,
    "an error that is an object": frame(b'{"status": "runtime_error", "error": {"a": [1]}}'),
    "an error that is a deep list": frame(b'{"status": "runtime_error", "error": ' + b"[" * 400 + b"]" * 400 + b"}"),
    "a load that fails late": frame(b'{"status": "loaded"}'),
    "an unprintable that is a list": frame(b'{"status": "ok", "unprintable": [1]}', b'"?"'),
    **{name: frame(OK, body) for name, body in BODIES.items()},
}
"""What follows the harness's hello, or its `loaded`."""
ACTIONS: dict[str, str] = {
    "an answer": """write(frame(OK, b"1"))""",
    "an answer after the end": """
        if __import__("posix").fork() == 0:
            import time; time.sleep(0.2); write(frame(OK, b"1")); os._exit(0)""",
    "a closed channel": """os.closerange(40, 64)""",
    "an atexit that answers": """
        import atexit
        atexit.register(lambda: write(frame(OK, b"1")))""",
    "a signal that answers": """
        import signal
        signal.signal(signal.SIGALRM, lambda *_: write(frame(OK, b"1"))); signal.setitimer(signal.ITIMER_REAL, 0.01)
        while n: n -= 0""",
    "a trace that answers": """
        import sys
        sys.settrace(lambda *_: write(frame(OK, b"1")))""",
}  # fmt: skip


@pytest.fixture(scope="module")
def local() -> Iterator[Sandbox]:
    opened = UnsafeLocal(find_interpreter())
    yield opened
    opened.close()


def cheaply(judge: Callable[[], ProgramVerdict]) -> ProgramVerdict:
    """The verdict, once the grader is known to have spent little on it."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        verdict = judge()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.thread_time() - start < 2.0
    assert peak < 48 << 20
    return verdict


REJECTED = ("wrong_answer", "runtime_error", "runner_error", "time_limit")
NEVER = CodeTests(("11", "12"), ('"7f3a"', '"91c0"'), "solve")


class Forger:
    """In place of a process: its channel holds these bytes and then ends."""

    stopped = ""

    def __init__(self, channel: bytes) -> None:
        self.left = channel

    def write(self, _data: bytes, _deadline: float) -> None:
        """Nobody reads it."""

    def read(self, size: int, _deadline: float) -> bytes:
        part, self.left = self.left[:size], self.left[size:]
        if len(part) < size:
            raise PipeClosed
        return part

    def cpu_wait_s(self) -> float:
        return 0.0


def judged(channel: bytes, tests: CodeTests) -> list[ProgramVerdict]:
    """The verdicts on what stands on the channel, at the load and at the first test, as an official test and alone."""
    official = Rules("official", cpu_s=9, limit_s=1, silence_s=9, total_s=9)
    script = replace(official, silent="time_limit", broken="runtime_error", plain=True)
    return [
        official_module._run_tests(Forger(start + channel), "", tests, rules)  # type: ignore[arg-type]
        for start in (b"", frame(b'{"status": "loaded"}'))
        for rules in (official, script)
    ]


@pytest.mark.parametrize("name", VALUES)
def test_a_forged_value_equals_nothing_and_raises_nothing_unexpected(name: str) -> None:
    for expected in EXPECTED:
        start = time.thread_time()
        try:
            assert not same_value(read_value(json.dumps(VALUES[name]).encode()), expected)
        except (NoTruth, *FORGED):
            pass
        assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("grader", GRADERS)
def test_a_patched_encoder_passes_nothing(local: Sandbox, grader: str) -> None:
    number = CodeTests(("11", "12"), ("1234567", "7654321"), "solve")
    for name in ("a format of struct that yields true", "a format of struct that allocates", "a fraction by zero",
                 "a decimal that is none", "a complex too large", "a fraction with huge terms"):  # fmt: skip
        program = ENCODER.replace("{value}", repr(VALUES[name]))
        verdict = cheaply(lambda program=program: GRADERS[grader](local, program, number))  # type: ignore[misc]
        assert verdict.verdict in REJECTED, name


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_forged_conversation_is_no_answer(name: str) -> None:
    long = CodeTests(("11", "12"), (json.dumps([[1]] * 40_000), "2"), "solve")
    for tests in (NEVER, long, replace(NEVER, fn_name=None)):
        for verdict in judged(CONVERSATIONS[name], tests):
            assert verdict.verdict in REJECTED
        cheaply(lambda tests=tests: judged(CONVERSATIONS[name], tests)[-1])  # type: ignore[misc]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from("ltdscDFinaoh"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=9,
)
statuses = st.sampled_from(["ok", "loaded", "runtime_error", "time_limit", "output_limit"])
headers = anything | st.fixed_dictionaries({"status": statuses}, optional={"error": anything, "unprintable": anything})
frames = st.builds(
    frame,
    st.binary(max_size=20) | headers.map(lambda header: json.dumps(header).encode()),
    st.binary(max_size=20) | anything.map(lambda body: json.dumps(body).encode()),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(frames | st.binary(max_size=20), max_size=4).map(b"".join))
def test_no_bytes_at_all_are_an_answer(channel: bytes) -> None:
    for tests in (NEVER, replace(NEVER, fn_name=None), CodeTests(("1",), ('[["7f3a", 2.5], {"a": 1e99}]',), "solve")):
        assert all(verdict.verdict in REJECTED for verdict in judged(channel, tests))


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_program_that_answers_for_the_harness_is_no_answer(local: Sandbox, grader: str, name: str) -> None:
    program = WRITER.replace("ACTION", ACTIONS[name].strip())
    assert cheaply(lambda: GRADERS[grader](local, program, NEVER)).verdict in REJECTED


WORDS = ["\ud800", "\x1b[2J", "[/red][bold", "\x00", "\u202e", "[link=http://x]"]


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("words", WORDS)
def test_what_a_program_says_is_fit_for_files_and_terminals(local: Sandbox, grader: str, words: str) -> None:
    stdin = CodeTests(("1\n",), ("2",))
    raising = f"class E(Exception):\n    def __repr__(self): return {words!r}\n    __str__ = __repr__\nraise E"
    for tests, program in ((stdin, raising), (NEVER, f"class Solution:\n    def solve(self, n):\n{indent(raising)}")):
        found = GRADERS[grader](local, program, tests)
        assert found.verdict in REJECTED
        assert found.reason.isprintable() and found.reason.encode()


def indent(text: str) -> str:
    return "\n".join("        " + line for line in text.split("\n"))


HONEST = {
    "numpy integer": ("import numpy\n", "numpy.int64(n)", "11"),
    "list of numpy integers": ("import numpy\n", "[numpy.int64(n), numpy.int32(1)]", "[11, 1]"),
    "numpy float": ("import numpy\n", "numpy.float64(n / 2)", "5.5"),
    "narrow numpy float": ("import numpy\n", "numpy.float32(0.1)", "0.1"),
    "numpy truth": ("import numpy\n", "numpy.bool_(n == 11)", "true"),
    "numpy text": ("import numpy\n", "numpy.str_('x')", '"x"'),
    "fraction": ("from fractions import Fraction\n", "Fraction(n, 2)", "5.5"),
    "whole fraction": ("from fractions import Fraction\n", "[Fraction(n)]", "[11]"),
    "decimal": ("from decimal import Decimal\n", "Decimal('5.50')", "5.5"),
    "complex": ("", "complex(n)", "11"),
    "dictionary of numpy integers": ("import numpy\n", "{'a': numpy.int8(n)}", '{"a": 11}'),
    "long integer": ("", "10 ** 5000", "1" + "0" * 5000),
}
UNEQUAL = {
    "numpy array": ("import numpy\n", "numpy.array([n])", "[11]"),
    "a fraction": ("from fractions import Fraction\n", "Fraction(1, 3)", "0.3333333333333333"),
    "another numpy integer": ("import numpy\n", "numpy.int64(n + 1)", "11"),
    "a set": ("", "{n}", "[11]"),
    "a fraction as text": ("from fractions import Fraction\n", "Fraction(n)", '"11"'),
    "a long fraction": ("from fractions import Fraction\n", "Fraction(1, 10 ** 60000 + 1)", "0"),
}


@pytest.mark.parametrize("name", HONEST)
def test_numbers_count_by_value_under_both_graders(local: Sandbox, name: str) -> None:
    head, value, expected = HONEST[name]
    program = f"{head}class Solution:\n    def solve(self, n): return {value}"
    for grade_one in GRADERS.values():
        assert grade_one(local, program, CodeTests(("11",), (expected,), "solve")).passed


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_not_equal_does_not_count_as_a_script(local: Sandbox, name: str) -> None:
    head, value, expected = UNEQUAL[name]
    program = f"{head}class Solution:\n    def solve(self, n): return {value}"
    assert grade_script(local, program, CodeTests(("11",), (expected,), "solve")).passed is False


def test_a_fraction_is_compared_exactly() -> None:
    for value, expected in ((Fraction(1, 2), 0.5), (Fraction(-7), -7), (Fraction(1), True)):
        sent = ["F", hex(value.numerator), hex(value.denominator)]
        assert same_value(sent, expected) and not same_value(sent, expected + 1)
        assert not same_value(sent, float("inf")) and not same_value(sent, float("nan"))


def test_a_flood_of_words_is_not_taken_apart(local: Sandbox) -> None:
    flood = "import sys\nfor _ in range(240): sys.stdout.write('1 ' * 65536)"
    found = grade_checked(local, flood, CheckedTests(("1\n",), ("2",)))
    assert (found.verdict, found.reason) == ("wrong_answer", "output_limit")
