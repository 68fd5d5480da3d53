"""Whatever a file from outside holds, the graders say what is wrong with it: no other exception leaves them."""

import json
import os
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_cli.rewards.code.code_tests import BadTests, parse_tests, unpack_tests
from gspo_cli.rewards.math.extract import extract
from gspo_cli.rewards.math.grade import grade_aime, grade_number

CASES = int(os.environ.get("GSPO_FUZZ_CASES", "150"))
text = st.text(st.characters(), max_size=40)  # surrogates and controls too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
fuzz = settings(max_examples=CASES, deadline=None, database=None)
LATEX = [*"\\{}$1=^%,(]²\u0660\ud800", "boxed{", "text{", "frac", "circ", " cm"]


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
