"""Data files that are not what their names say: endless, packed to fill the memory, ambiguous, or without text."""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import BENCHMARKS
from gspo_cli.rewards.graders import GRADERS, read_rows
from gspo_cli.tasks.data import load_rows

ROW = {"id": "1", "question": "1+1?", "answer": "2"}
CODE = {
    "question_id": "1", "question_content": "Add.", "contest_date": "2024-12-01", "metadata": "{}",
    "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]', "private_test_cases": "[]",
}  # fmt: skip
CONTEST = {
    "id": "1A", "contest_id": 1, "index": "A", "description": "Add.", "official_tests": [{"input": "1", "output": "1"}],
}  # fmt: skip


def training(path: Path) -> Any:
    return load_rows(str(path), None, "train", {"prompt": "question", "answer": "answer"})


def evaluation(path: Path) -> Any:
    return BENCHMARKS["gsm8k"].load(DataChoice((path,)))


READERS = pytest.mark.parametrize("read", [training, evaluation], ids=["training", "evaluation"])


def refused(read: Callable[[Path], Any], path: Path, *words: str) -> None:
    with pytest.raises(GspoError) as caught:
        read(path)
    assert caught.value.why and caught.value.hint and caught.value.code == ExitCode.USER_ERROR
    assert all(word in str(caught.value) for word in words), caught.value


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.jsonl", b'{"question": "'), ("a.json", b""), ("a.json", b'[{"question": "'), ("a.parquet", b"")],
)
def test_four_gigabytes_of_nothing_are_refused_at_once(tmp_path: Path, name: str, start: bytes) -> None:
    path, before = tmp_path / name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path.write_bytes(start)
    os.truncate(path, 4 << 30)
    began = time.process_time()
    refused(training, path, str(path))
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "a gibibyte"


@READERS
def test_a_huge_cell_is_refused(tmp_path: Path, read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.Table.from_pylist([ROW | {"question": "x" * (2 << 20)}]), tmp_path / "a.parquet")
    monkeypatch.setattr("gspo_cli.rows.MAX_ROW", 1 << 20)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_: pytest.fail("it was unpacked"))
    refused(read, tmp_path / "a.parquet", str(tmp_path / "a.parquet"), "too long")


def test_a_long_cell_among_short_ones_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.rows.MAX_ROW", 1 << 16)
    table = pa.Table.from_pylist([ROW] * 70 + [ROW | {"question": "x" * (1 << 17)}] + [ROW] * 9)
    pq.write_table(table, tmp_path / "a.parquet")
    refused(training, tmp_path / "a.parquet", "too long")
    pq.write_table(table.slice(0, 70), tmp_path / "a.parquet")
    assert len(training(tmp_path / "a.parquet")) == 70


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    columns = [pa.array(["1+1?"])] * 3
    pq.write_table(pa.Table.from_arrays(columns, names=["question", "question", "answer"]), tmp_path / "a.parquet")
    refused(training, tmp_path / "a.parquet", "two columns 'question'")


@READERS
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_row_names_a_key_once(tmp_path: Path, read: Callable[[Path], Any], name: str) -> None:
    twice = '{"id": "2", "question": "1+2?", "answer": "3", "question": "1+3?"}'
    text = f"{json.dumps(ROW)}\n{twice}\n" if name == "a.jsonl" else f"[{json.dumps(ROW)}, {twice}]"
    refused(read, write(tmp_path / name, text), str(tmp_path / name), "duplicate key 'question'")


def test_an_answer_to_grade_names_a_key_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1, "response": "1", "gold": "2", "gold": "1"}\n')
    refused(lambda file: read_rows(file, GRADERS["math"]), path, "a.jsonl, line 1", "duplicate key 'gold'")


@pytest.mark.parametrize("value", [3, 2.5, True, ["1+1?"], {"text": "1+1?"}, None], ids=repr)
@pytest.mark.parametrize(
    ("read", "row", "column"),
    [
        (training, ROW, "question"),
        (evaluation, ROW, "question"),
        (lambda path: BENCHMARKS["livecodebench"].load(DataChoice((path,))), CODE, "question_content"),
        (lambda path: BENCHMARKS["codeforces"].load(DataChoice((path,))), CONTEST, "description"),
    ],
    ids=["training", "evaluation", "livecodebench", "codeforces"],
)
def test_a_question_is_text(
    tmp_path: Path, read: Callable[[Path], Any], row: dict[str, Any], column: str, value: Any
) -> None:
    assert read(write(tmp_path / "a.jsonl", row))
    refused(read, write(tmp_path / "a.jsonl", row, "\n", row | {column: value}), f"{tmp_path}/a.jsonl, line 3")
