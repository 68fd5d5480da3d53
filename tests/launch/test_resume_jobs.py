"""`--resume STUDY --jobs N`: every unfinished run in a worker process, complete ones left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from program import Gspo

from gspo_cli.errors import ExitCode
from gspo_cli.launch import local
from gspo_cli.launch.local import TrainingJob


def test_unfinished_runs_go_to_workers_and_complete_ones_do_not(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--out", tmp_path, "--name", "one", "--steps", "1", "--set", "eval.bench=[]"]
    assert gspo_here("train", smoke, "--algo", "grpo", *where).code == 0
    seen: list[tuple[list[TrainingJob], int]] = []

    def run_jobs(jobs: list[TrainingJob], at_once: int, _on_event: Any) -> dict[str, int]:
        seen.append((jobs, at_once))
        return {job.name: ExitCode.OK for job in jobs}

    monkeypatch.setattr(local, "run_jobs", run_jobs)
    assert (
        gspo_here("train", smoke, "--algo", "grpo", "--seeds", "1-2", "--jobs", "2", *where).code == 0
    )  # never begins
    done = gspo_here("train", "--resume", tmp_path / "one", "--jobs", "2")
    assert done.code == 0 and "grpo-s0 is complete" in done.err, done.err
    assert len(seen) == 1  # no plan of the second command was recorded: its run had not begun

    more = ("--steps", "2", "--allow-change", "train.steps")
    longer = gspo_here("train", "--resume", tmp_path / "one", "--jobs", "3", *more)
    assert longer.code == 0, longer.err
    jobs, at_once = seen[-1]
    assert [job.name for job in jobs] == ["grpo-s0"] and at_once == 3
    assert jobs[0].request["go_on"] is True and jobs[0].request["changes"] == {"train": {"steps": 2}}
