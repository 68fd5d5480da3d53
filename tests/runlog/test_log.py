"""The run log: deterministic lines in a chain, strict JSON, nothing half-written."""

import hashlib
import json
import math
import os
from pathlib import Path

import pytest

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog import fs
from gspo_cli.runlog.log import RunLog
from gspo_cli.types import StepMetrics


def written(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_lines_are_chained_and_numbered(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "start")
    for step in (1, 2):
        log.line("rollout", step, StepMetrics({"reward/mean": 0.5}, {"reward/mean": 8}))
        log.line("update", step, StepMetrics({"loss": -0.1}), mini_batch=0)
    log.flush()
    lines = written(tmp_path)
    objects = [json.loads(line) for line in lines]
    assert [o["seq"] for o in objects] == [0, 1, 2, 3]
    assert [o["mini_batch"] for o in objects] == [None, 0, None, 0]
    heads = ["start", *(hashlib.sha256(line.encode()).hexdigest()[:32] for line in lines)]
    assert [o["prev"] for o in objects] == heads[:-1] and log.head == heads[-1]
    perf = [json.loads(line) for line in (tmp_path / "perf.jsonl").read_text().splitlines()]
    assert [p["seq"] for p in perf] == [0, 1, 2, 3] and "time" in perf[0] and "time" not in objects[0]


def test_non_finite_values_are_null_with_their_name(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "")
    log.line("update", 1, StepMetrics({"loss": math.nan, "grad/norm": math.inf, "lr": -math.inf, "kl/old_k1": None}))
    log.flush()
    (line,) = written(tmp_path)
    entry = json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert entry["metrics"] == {"loss": None, "grad/norm": None, "lr": None, "kl/old_k1": None}
    assert entry["nonfinite"] == {"loss": "nan", "grad/norm": "inf", "lr": "-inf"}


def test_nothing_is_logged_without_a_definition(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no/such"):
        RunLog(tmp_path, "").line("step", 1, StepMetrics({"no/such": 1.0}))


def test_a_refused_write_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    fs.append_lines(path, ["first"])
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[: len(data) // 2]))
    with pytest.raises(GspoError) as caught:
        fs.append_lines(path, ["second", "third"])
    monkeypatch.undo()
    assert caught.value.code is ExitCode.STORAGE
    assert path.read_text() == "first\n"
