"""The corpus of programs that do not know the answer: neither grader accepts one, and the grader outlives all.

A row of `cheats.jsonl` has a name, a program and why it must fail. A program that was accepted wrongly becomes a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attacks import answer
from sandboxes import own_sandbox, plain_user_sandbox

from gspo_cli.rewards.code.code_tests import CodeTests
from gspo_cli.rewards.code.official import grade_official
from gspo_cli.rewards.code.script import grade_script
from gspo_cli.sandbox.contract import Sandbox


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


CHEATS = rows("cheats.jsonl")
TESTS = CodeTests(("11\n",), (answer(11),))
HONEST = f"input()\nprint({answer(11)!r})"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = own_sandbox()
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("grade", [grade_official, grade_script])
def test_no_program_of_the_corpus_is_accepted(sandbox: Sandbox, grade: object) -> None:
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda row: grade(sandbox, row["code"], TESTS), CHEATS))  # type: ignore[operator]
    assert [row["name"] for row, verdict in zip(CHEATS, verdicts, strict=True) if verdict.passed is not False] == []
    assert grade(sandbox, HONEST, TESTS).passed  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("opened", [own_sandbox, plain_user_sandbox])
def test_no_attack_on_the_machine_is_accepted_or_leaves_a_trace(opened: Callable[[], Sandbox]) -> None:
    """Process bombs, forged frames, kernel interfaces, full storage: the grader still accepts an honest program."""
    attacks = rows("cheats_machine.jsonl")
    shared = set(os.listdir("/dev/shm"))
    sandbox = opened()
    try:
        for grade in (grade_official, grade_script):
            with ThreadPoolExecutor(4) as pool:
                verdicts = list(pool.map(lambda row, grade=grade: grade(sandbox, row["code"], TESTS), attacks))
            accepted = [row["name"] for row, verdict in zip(attacks, verdicts, strict=True) if verdict.passed]
            assert accepted == [] and grade(sandbox, HONEST, TESTS).passed
    finally:
        sandbox.close()
    assert "fill" not in set(os.listdir("/dev/shm")) - shared
    assert not Path("/tmp/graders_canary").exists() and not Path("/tmp/fill").exists()
