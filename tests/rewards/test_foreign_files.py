"""Whatever a file from outside holds, the graders say what is wrong with it: no other exception leaves them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gspo_cli.errors import GspoError
from gspo_cli.rewards.code.code_tests import BadTests, parse_tests, unpack_tests
from gspo_cli.rewards.graders import GRADERS, find_grader, grade_rows, read_rows
from gspo_cli.rewards.math.extract import extract
from gspo_cli.rewards.math.grade import grade_aime, grade_number

CASES = int(os.environ.get("GSPO_FUZZ_CASES", "150"))
text = st.text(st.characters(), max_size=40)  # surrogates and controls too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
row = st.fixed_dictionaries(
    {},
    optional={
        "id": values, "response": values, "gold": values, "kind": values | st.sampled_from(["stdin", "functional"]),
        "code": values, "tests": values | st.fixed_dictionaries({"inputs": values, "outputs": values}),
    },
)  # fmt: skip
ODD = [b"", b"{", b"[" * 3000, b"{}", b"\xff\xfe", b'{"id": 1e999}', b'{"id": NaN}', b'\xef\xbb\xbf{"id": 1}']
line = st.binary(max_size=60) | row.map(lambda found: json.dumps(found).encode()) | st.sampled_from(ODD)
fuzz = settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
LATEX = [*"\\{}$1=^%,(]²\u0660\ud800", "boxed{", "text{", "frac", "circ", " cm"]


@fuzz
@given(st.lists(line, max_size=4), st.sampled_from(sorted(GRADERS)))
def test_rows(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    with suppress(GspoError):
        rows = read_rows(path, find_grader(name))
        if name in ("aime", "number"):
            list(grade_rows(find_grader(name), rows, 1))


@fuzz
@given(values, text, st.binary(max_size=60).map(lambda data: data.hex()) | text, text | values.map(json.dumps))
def test_tests_of_a_problem(found: object, public: str, private: str, metadata: str) -> None:
    with suppress(BadTests):
        parse_tests(found)
    with suppress(BadTests):
        unpack_tests(public, private, metadata)


@fuzz
@given(st.lists(st.sampled_from(LATEX) | text, max_size=20).map("".join), st.sampled_from(["7", "033", "x", "1/0", ""]))
def test_answers(response: str, gold: str) -> None:
    for given_response in (response, f"\\boxed{{{response}}}"):
        extract(given_response)
        assert grade_aime(given_response, gold).verdict
        assert grade_number(given_response, gold).verdict


def test_a_missing_file_is_an_error_in_three_parts(tmp_path: Path) -> None:
    with pytest.raises(GspoError) as caught:
        read_rows(tmp_path / "none.jsonl", find_grader("math"))
    assert caught.value.why and caught.value.hint
