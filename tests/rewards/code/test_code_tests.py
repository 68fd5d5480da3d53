"""Private tests are decoded without unpickling anything; whatever is not exactly one string is refused, at once."""

import base64
import json
import pickle
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gspo_cli.rewards.code.code_tests import BadTests, inflate, pickled_string, private_json, unpack_tests

CASES = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
PUBLIC = json.dumps([{"input": "0\n", "output": "1\n", "testtype": "stdin"}])


def packed(pickled: bytes) -> str:
    return base64.b64encode(zlib.compress(pickled)).decode()


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("text", [CASES, "[" + ",".join([CASES[1:-1]] * 9000) + "]"], ids=["short", "long"])
def test_both_encodings_give_the_same_tests(protocol: int, text: str) -> None:
    found = unpack_tests(PUBLIC, packed(pickle.dumps(text, protocol)), "{}")
    assert found == unpack_tests(PUBLIC, text, "")
    assert found.inputs[:2] == ("0\n", "1\n") and found.outputs[:2] == ("1\n", "2\n") and found.fn_name is None


def test_a_function_is_named_by_the_metadata() -> None:
    cases = '[{"input": "1", "output": "2"}]'
    assert unpack_tests(cases, "", '{"func_name": "f"}').fn_name == "f"


class Evil:
    """Unpickling it writes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os

        return os.system, (f"touch {self.canary}",)


def test_an_evil_pickle_does_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for protocol in range(6):
        with pytest.raises(BadTests, match=r"more than text|no pickle"):
            private_json(packed(pickle.dumps(Evil(canary), protocol)))
        with pytest.raises(BadTests):
            private_json(packed(pickle.dumps([CASES, Evil(canary)], protocol)))
    assert not canary.exists()


GOOD = pickle.dumps(CASES, 4)
BAD = {
    "two strings": pickle.dumps((CASES, CASES), 4), "two strings without a tuple": GOOD[:-1] + b"\x8c\x01a" + b".",
    "bytes": pickle.dumps(CASES.encode(), 4), "a number": pickle.dumps(7, 4), "nothing": b"", "only an end": b".",
    "trailing data": GOOD + b"x", "two pickles": GOOD + GOOD, "cut off": GOOD[:-3], "no pickle": b"\xff\xfe\xfd",
    "a wrong length": b"\x80\x04X\xff\xff\xff\xffabc.",
    "a huge length": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "broken UTF-8": b"\x80\x04\x8c\x02\xff\xfe\x94.", "text protocol 0": pickle.dumps(CASES, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_other_pickles_are_refused(name: str) -> None:
    start = time.perf_counter()
    with pytest.raises(BadTests):
        pickled_string(BAD[name])
    with pytest.raises(BadTests):
        unpack_tests(PUBLIC, packed(BAD[name]), "{}")
    assert time.perf_counter() - start < 1


def test_a_bomb_is_refused_quickly() -> None:
    bomb = zlib.compress(bytes(80 << 20), 1)
    start = time.process_time()
    with pytest.raises(BadTests, match="more than 64 MiB"):
        inflate(bomb, 64 << 20)
    assert time.process_time() - start < 1


FIELDS = {
    "trailing": base64.b64encode(zlib.compress(GOOD) + b"more").decode(),
    "cut off": base64.b64encode(zlib.compress(GOOD)[:-5]).decode(), "not compressed": base64.b64encode(GOOD).decode(),
    "stray letter": packed(GOOD) + "!", "text": "not base64 at all", "object": "{}", "deep": "[" * 100_000,
    "no output": '[{"input": "1"}]', "numbers": '[{"input": 1, "output": 2}]', "bare": "[1]",
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_other_fields_are_refused(name: str) -> None:
    with pytest.raises(BadTests):
        unpack_tests(PUBLIC, FIELDS[name], "{}")


def test_bad_metadata_is_refused() -> None:
    for metadata in ("{", "[]", "7"):
        with pytest.raises(BadTests):
            unpack_tests(PUBLIC, "", metadata)


def test_every_published_row_decodes(shared_data: Path) -> None:
    rows = [json.loads(line) for line in (shared_data / "lcb_sample.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [unpack_tests(r["public_test_cases"], r["private_test_cases"], r["metadata"]) for r in rows]
    assert len(found) == 33 and all(f.inputs for f in found)
    assert sum(not r["private_test_cases"].startswith("[") for r in rows) > 5
