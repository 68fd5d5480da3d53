"""The sbatch script of docs/clusters.md, run by bash with a played `gspo` and `scontrol`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "clusters.md"
GSPO = """#!/bin/bash
echo "$@" >> {folder}/asked
trap 'sleep 0.3; echo saved >> {folder}/asked; exit 143' TERM
[ -z "${{LONG:-}}" ] || for _ in $(seq 600); do sleep 0.1; done
exit "${{CODE:-0}}"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with its paths under a folder of its own."""
    block = DOCS.read_text(encoding="utf-8").split("#!/bin/bash\n")[1].split("```")[0]
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text(f"PATH={tmp_path}:$PATH\n")
    (tmp_path / "gspo").write_text(GSPO.format(folder=tmp_path))
    (tmp_path / "scontrol").write_text(f'#!/bin/bash\necho scontrol "$@" >> {tmp_path}/asked\n')
    for name in ("gspo", "scontrol"):
        (tmp_path / name).chmod(0o755)
    path = tmp_path / "job.sh"
    path.write_text(block.replace("/shared", str(tmp_path)))
    return path


def started(script: Path, task: int, **env: str) -> subprocess.Popen[bytes]:
    """The script as Slurm starts it."""
    slurm = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "8"}
    return subprocess.Popen(["bash", str(script)], env=os.environ | slurm | env, start_new_session=True)


def asked(script: Path) -> list[str]:
    """What was called, a line a call."""
    path = script.parent / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_each_task_trains_its_run_and_goes_on_with_it(script: Path) -> None:
    with started(script, 5, CODE="4") as job:
        assert job.wait(30) == 0  # a guard's stop is a result
    (call,) = asked(script)
    assert call.startswith("train math-qwen3-4b --algo gspo --seed 2 --out ") and "model.threads=8" in call
    run = script.parent / "results" / "math-4b" / "gspo-s2"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with started(script, 5, CODE="6") as job:
        assert job.wait(30) == 6
    assert asked(script)[1:] == [f"train --resume {run}"]


def test_the_warning_saves_and_requeues(script: Path) -> None:
    with started(script, 0, LONG="1") as job:
        until = time.monotonic() + 30
        while not asked(script):
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.2)  # for the traps to be set
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 0
    assert asked(script)[1:] == ["saved", "scontrol requeue 77_0"]
