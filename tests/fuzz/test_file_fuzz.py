"""Mutated files of every kind that is read from outside: each loads, or is refused with an error in three parts.

`results/programs/file_fuzz.py` runs 20,000 such cases. A case that showed a fault is in `FOUND`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from fuzzing import fault_of
from readers import CODE, PROBLEMS, TRL, VERL, model_readers, small_readers

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import livecodebench
from gspo_cli.evals.benchmarks.elo import MAX_USERS, read_ratings
from gspo_cli.evals.data import raw_problems
from gspo_cli.runlog.import_logs import import_run

CASES = int(os.environ.get("GSPO_FUZZ_CASES", "25"))
SMALL = small_readers()


@pytest.mark.parametrize("name", SMALL)
def test_files_of_data_and_logs(tmp_path: Path, name: str) -> None:
    found = [(seed, fault) for seed in range(CASES) if (fault := fault_of(SMALL[name], seed, tmp_path))]
    assert found == []


def test_files_of_models(tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    for name, reader in model_readers(tmp_path).items():
        if name != "training data":  # slow to start
            for seed in range(max(1, CASES // 10)):
                assert fault_of(reader, seed, tmp_path / "case") == "", (name, seed)


HUGE = "9" * 400
FOUND = {
    "a reward too large for a float": ("t.json", json.dumps(TRL).replace("0.7", HUGE)),
    "a deep log": ("t.json", "[" * 3000),
    "a deep line": ("v.jsonl", "[" * 3000),
    "an endless step": ("v.jsonl", json.dumps(VERL[0]).replace('"step": 1', '"step": 1e999')),
    "values that are a list": ("v.jsonl", '{"step": 1, "data": 3}'),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_broken_log_of_another_trainer_leaves_no_half_run(tmp_path: Path, case: str) -> None:
    name, text = FOUND[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(GspoError, match="cannot import"):
        import_run(tmp_path / name, tmp_path / "study", "gspo", "gspo", 0)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_endless_time_of_another_trainer_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text(json.dumps(VERL[0]).replace("2.0", "1e999"))
    run = import_run(tmp_path / "v.jsonl", tmp_path / "study", "gspo", "gspo", 0)
    assert '"reward/mean":0.5' in (run / "metrics.jsonl").read_text()


@pytest.mark.parametrize("table", [{"1200": 10**15, "1300": -(10**15)}, {"1e999": 1}, {"1200": float("inf")}])
def test_a_rating_table_cannot_fill_the_memory(tmp_path: Path, table: dict[str, float]) -> None:
    (tmp_path / "r.json").write_text(json.dumps(table))
    start = time.monotonic()
    with pytest.raises(GspoError, match="not a rating table"):
        read_ratings(tmp_path / "r.json")
    assert time.monotonic() - start < 20 and MAX_USERS < 10**8


@pytest.mark.parametrize("key", ["question_id", "question_content"])
def test_a_problem_with_half_a_surrogate_pair_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(CODE | {key: "\ud800"}))
    with pytest.raises(GspoError, match="is no text"):
        livecodebench.load(DataChoice((tmp_path / "test.jsonl",)))
    (tmp_path / "p.jsonl").write_text(json.dumps(PROBLEMS[0] | {"problem": "\ud800"}))
    with pytest.raises(GspoError, match="surrogate"):
        raw_problems([tmp_path / "p.jsonl"])
