"""Runs that are cut short: what was logged stays whole and readable, and the exit code says what happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest
from program import GSPO, strict_lines

PREPARE = "import os, resource, signal, sys; {}; os.execv(sys.argv[1], sys.argv[1:])"
LIMIT = 48 * 1024  # bytes of any file: more than a model of the smoke recipe, less than its log of 60 rollout batches
FEW_FILES = ["--set", "eval.bench=[]", "--set", "rollout.store=0"]


@contextmanager
def started(prepare: str, *args: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The program as a process that has first done `prepare`; killed if it does not end."""
    command = [sys.executable, "-c", PREPARE.format(prepare), str(GSPO), *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = Timer(90, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def check_whole_batches(run: Path) -> int:
    """The log ends with a whole rollout batch; the number of them."""
    lines = strict_lines(run / "metrics.jsonl")
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert lines[-1]["kind"] == "step"
    assert len(strict_lines(run / "perf.jsonl")) == len(lines)
    return int(lines[-1]["step"])


@pytest.mark.slow
def test_ctrl_c_leaves_whole_lines_and_says_where(smoke: Path, tmp_path: Path) -> None:
    arguments = ("train", smoke, "--steps", "5000", "--out", tmp_path, "--name", "cut", *FEW_FILES)
    # a shell that starts a process in the background makes it ignore the signal
    with started("signal.signal(signal.SIGINT, signal.SIG_DFL)", *arguments) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("run=gspo-s0 step=1/"):
                break
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate()
    run = tmp_path / "cut" / "gspo-s0"
    assert process.returncode == 130, said + rest
    assert out == ""
    assert str(run) in (said + rest).split("interrupted", 1)[1]
    assert "Traceback" not in said + rest
    assert 1 <= check_whole_batches(run) < 5000
    last = strict_lines(run / "events.jsonl")[-1]
    assert (last["event"], last["status"], last["exit"]) == ("end", "interrupted", 130)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_readable_log(smoke: Path, tmp_path: Path) -> None:
    arguments = ("train", smoke, "--steps", "5000", "--out", tmp_path, "--name", "full", *FEW_FILES)
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))"
    no_git = "os.environ['PATH'] = ''"  # in a changed source tree code.diff alone could reach the limit
    with started(f"{limit}; {no_git}", *arguments) as process:
        out, said = process.communicate()
    run = tmp_path / "full" / "gspo-s0"
    log = run / "metrics.jsonl"
    assert process.returncode == 6, said
    assert out == ""
    assert f"error: cannot write {log}\nwhy:   " in said and "\ndo:    " in said
    assert str(run) in said
    assert "Traceback" not in said
    assert LIMIT / 2 < log.stat().st_size <= LIMIT
    assert check_whole_batches(run) >= 2
    last = strict_lines(run / "events.jsonl")[-1]
    assert (last["event"], last["status"], last["exit"]) == ("end", "failed", 6)
    assert json.loads((run / "run.json").read_text())["planned_steps"] == 5000
