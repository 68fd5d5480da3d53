"""What a program writes into the channel is bytes that nobody trusts: each message below is at most a wrong answer of
that program alone, and costs the grader little time and memory.

The forgers run without a sandbox, for speed: they harm nothing.
"""

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from attacks import PROGRAMS, writing
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_cli.rewards.code import official as official_module
from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.harness.channel import LENGTHS
from gspo_cli.rewards.code.official import FORGED, Rules, grade_official
from gspo_cli.rewards.code.outputs import NoTruth, read_value, same_value
from gspo_cli.rewards.code.script import CheckedTests, grade_checked, grade_script
from gspo_cli.rewards.verdict import ProgramVerdict
from gspo_cli.sandbox.choose import UnsafeLocal
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import find_interpreter
from gspo_cli.sandbox.process import PipeClosed

GRADERS = {"official": grade_official, "script": grade_script}
EXPECTED = [
    *(0, 1, -1, 0.5, "x", True, None, 10**400, float("nan"), float("inf")),
    *([], {}, [1, 2], {"a": 1, "b": 2}, [[3]]),
]
RANDOM = random.Random(1)
HUGE = hex(RANDOM.getrandbits(2_000_000))
ENCODED: list[Any] = [
    ["n", "?", True], ["n", "1500000000x?", True], ["F", "1", "0"], ["D", "garbage"], ["c", int("9" * 401), 0],
    ["F", HUGE, hex(RANDOM.getrandbits(2_000_000))],
]  # fmt: skip
"""What a program that patches the encoder sends: formats of struct, fractions and numbers that are none."""
VALUES: list[Any] = [
    *ENCODED, ["n", {}, 1.0], ["n", "f", [1.0]], ["F", "0x1", "0x0"], ["F", "0x1", "0x1", "0x1"], ["F", 1, 1],
    ["D", "1E+99999999999999999999"], ["D", "sNaN"], ["D", [0, [1], 0]], ["c", "1"], ["c", 1.0, 2.0, 3.0],
    ["c", {}, []], ["i", "-"], ["i", [1]], ["i", "0x" + "f" * 400_000],
    ["a"], ["a", ["1", None], 1], ["a", [10**300, 10**300], 1], ["a", [-1], 1], ["a", [1] * 100, 99],
    ["a", [], ["a", [], ["a", [], ["?"]]]],
    [], [[]], [1, 2], ["z", 1], {"l": 1}, ["l", {}, {}],
    ["d", ["a", 1]], ["d", ["a", 1], ["a", 1]], ["d", "ab", "cd"], ["d", [["l"], 1], [{}, 2]],
    ["d", ["a", 1, 2], ["b", 2, 3]], float("nan"), "\ud800",
]  # fmt: skip


def frame(head: bytes, body: bytes = b"") -> bytes:
    return LENGTHS.pack(len(head), len(body)) + head + body


OK = b'{"status": "ok"}'
HEADERS = [
    b'{"status": []}', b'{"status": {"ok": 1}}', b"{}",
    b'{"status": "accepted", "passed": true, "verdict": "accepted"}', b'["status"]', b"1",
    b"[" * 60000, b'{"status": ' + b"9" * 60000 + b"}", b"\xff", b'{"status": "loaded"}',
    b'{"status": "runtime_error", "error": {"a": [1]}}',
    b'{"status": "runtime_error", "error": ' + b"[" * 400 + b"]" * 400 + b"}",
]  # fmt: skip
BODIES = [
    b"", b"\xff\xfe", b"[", b"9" * 1_000_000, b"1e" + b"9" * 100_000, b"0." + b"0" * 1_000_000, b"[" * 900_000,
    b'["a",[],' * 120 + b"1" + b"]" * 120, b'{"a":' * 200_000, b"0 0", b"\x00",
]  # fmt: skip
CONVERSATIONS = [
    *map(frame, HEADERS), *(frame(OK, body) for body in BODIES), frame(OK, b"0")[:9], b"\0\0", LENGTHS.pack(1 << 31, 0),
    LENGTHS.pack(16, 1 << 31) + OK, frame(OK, b"1") + frame(OK, b"0"), frame(OK, b"1") * 100,
    frame(b'{"status": "ok", "unprintable": [1]}', b'"?"'),
]  # fmt: skip
"""What follows the harness's hello, or its `loaded`."""


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


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:40])
def test_a_forged_value_equals_nothing_and_raises_nothing_unexpected(value: Any) -> None:
    for expected in EXPECTED:
        start = time.thread_time()
        try:
            assert not same_value(read_value(json.dumps(value).encode()), expected)
        except (NoTruth, *FORGED):
            pass
        assert time.thread_time() - start < 0.5


@pytest.mark.parametrize("grader", GRADERS)
def test_a_patched_encoder_passes_nothing(local: Sandbox, grader: str) -> None:
    number = CodeTests(("11", "12"), ("1234567", "7654321"), "solve")
    for value in ENCODED:
        program = PROGRAMS["templates"]["encoder"].replace("{value}", repr(value))
        verdict = cheaply(lambda program=program: GRADERS[grader](local, program, number))  # type: ignore[misc]
        assert verdict.verdict in REJECTED, program[:200]


@pytest.mark.parametrize("channel", CONVERSATIONS, ids=lambda channel: f"{channel[8:40]}")
def test_a_forged_conversation_is_no_answer(channel: bytes) -> None:
    long = CodeTests(("11", "12"), (json.dumps([[1]] * 40_000), "2"), "solve")
    for tests in (NEVER, long, replace(NEVER, fn_name=None)):
        for verdict in judged(channel, tests):
            assert verdict.verdict in REJECTED
        cheaply(lambda tests=tests: judged(channel, tests)[-1])  # type: ignore[misc]


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
@pytest.mark.parametrize("name", PROGRAMS["actions"])
def test_a_program_that_answers_for_the_harness_is_no_answer(local: Sandbox, grader: str, name: str) -> None:
    program = writing(PROGRAMS["actions"][name])
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


EQUAL = [
    ("numpy.int64(n)", "11"), ("[numpy.int64(n), numpy.int32(1)]", "[11, 1]"), ("numpy.float64(n / 2)", "5.5"),
    ("numpy.float32(0.1)", "0.1"), ("numpy.bool_(n == 11)", "true"), ("numpy.str_('x')", '"x"'),
    ("Fraction(n, 2)", "5.5"), ("[Fraction(n)]", "[11]"), ("Decimal('5.50')", "5.5"), ("complex(n)", "11"),
    ("{'a': numpy.int8(n)}", '{"a": 11}'), ("10 ** 5000", "1" + "0" * 5000),
]  # fmt: skip
UNEQUAL = [
    ("numpy.array([n])", "[11]"), ("Fraction(1, 3)", "0.3333333333333333"), ("numpy.int64(n + 1)", "11"),
    ("{n}", "[11]"), ("Fraction(n)", '"11"'), ("Fraction(1, 10 ** 60000 + 1)", "0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected", "equal"), [*((*one, True) for one in EQUAL), *((*one, False) for one in UNEQUAL)],
    ids=lambda value: f"{value}"[:30],
)  # fmt: skip
def test_numbers_count_by_value(local: Sandbox, value: str, expected: str, equal: bool) -> None:
    """Under both graders; what is unequal to a script alone: the official one has arrays and sets of its own."""
    head = "import numpy\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    program = f"{head}class Solution:\n    def solve(self, n): return {value}"
    for grade_one in GRADERS.values() if equal else (grade_script,):
        assert grade_one(local, program, CodeTests(("11",), (expected,), "solve")).passed is equal


def test_a_fraction_is_compared_exactly() -> None:
    for value, expected in ((Fraction(1, 2), 0.5), (Fraction(-7), -7), (Fraction(1), True)):
        sent = ["F", hex(value.numerator), hex(value.denominator)]
        assert same_value(sent, expected) and not same_value(sent, expected + 1)
        assert not same_value(sent, float("inf")) and not same_value(sent, float("nan"))


def test_a_flood_of_words_is_not_taken_apart(local: Sandbox) -> None:
    flood = "import sys\nfor _ in range(240): sys.stdout.write('1 ' * 65536)"
    found = grade_checked(local, flood, CheckedTests(("1\n",), ("2",)))
    assert (found.verdict, found.reason) == ("wrong_answer", "output_limit")
