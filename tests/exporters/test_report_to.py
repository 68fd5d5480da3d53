"""`--report-to`: a process for each tracker follows the study while it trains, and cannot hurt it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from program import Gspo, strict_lines
from test_exporters import run_folder, scalars, write_batch

from gspo_cli.errors import GspoError
from gspo_cli.exporters import mirror
from gspo_cli.launch.report_to import reporting


def test_a_study_is_followed_until_its_end(tmp_path: Path) -> None:
    said: list[str] = []
    study = tmp_path / "demo"  # comes into being after its follower
    with reporting(study, ["tensorboard"], said.append):
        _, log = run_folder(study)
        write_batch(log, 1, 0.125)
        write_batch(log, 2, 0.25)
    assert scalars(study / "tensorboard" / "gspo-s0")["reward/mean"] == [(1, 0.125), (2, 0.25)]
    assert said == [f"tensorboard: tensorboard --logdir {study / 'tensorboard'}"]


@pytest.mark.parametrize("line", ["no log\n", "{}\n", '{"seq":0,"kind":"step","metrics":3,"nonfinite":{}}\n'])
def test_a_tracker_that_fails_is_named_and_nothing_else_happens(tmp_path: Path, line: str) -> None:
    said: list[str] = []
    study = tmp_path / "demo"
    with reporting(study, ["tensorboard"], said.append):
        run, _ = run_folder(study)
        (run / "metrics.jsonl").write_text(line)
        (run / "perf.jsonl").write_text('{"time": 3}\n')
    assert len(said) == 1 and said[0].startswith("warning: tensorboard was not kept up to date: ")
    assert "cannot be exported" in said[0] and f"gspo runs export {study} --to tensorboard" in said[0]


def test_unknown_trackers_and_missing_libraries_are_refused_first(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirror.check_all(" tensorboard,wandb,tensorboard ") == ["tensorboard", "wandb"]
    assert mirror.check_all(None) == []
    done = gspo_here("train", smoke, "--out", tmp_path, "--report-to", "tensorboard,comet")
    assert done.code == 2 and "no exporter 'comet'" in done.err and os.listdir(tmp_path) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(GspoError, match="wandb is not installed"):
        mirror.check_all("wandb")


@pytest.mark.slow
def test_training_with_a_tracker_leaves_the_same_log(gspo_forked: Gspo, smoke: Path, tmp_path: Path) -> None:
    small = ["--steps", "1", "--set", "eval.bench=[]", "--out", tmp_path]
    for name, more in (("with", ["--report-to", "tensorboard"]), ("without", [])):
        done = gspo_forked("train", smoke, "--name", name, *small, *more)
        assert done.code == 0, done.err
    logs = [strict_lines(tmp_path / name / "gspo-s0" / "metrics.jsonl") for name in ("with", "without")]
    values = [[line["metrics"] for line in log if "metrics" in line] for log in logs]
    assert values[0] and values[0] == values[1]
    assert "reward/mean" in scalars(tmp_path / "with" / "tensorboard" / "gspo-s0")
