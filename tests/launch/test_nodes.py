"""The scripts of docs/nodes.md: a small run on two "nodes" of one rank, with local processes as `srun`'s tasks and as
pods. It is told to end, ends with 143, and the same script goes on with it. Then the sbatch script of docs/clusters.md,
with a played `gspo` and `scontrol`."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import GSPO, strict_lines, wait_until

from gspo_cli.distributed import free_port

DOCS = Path(__file__).parents[2] / "docs"
PLAYED = Path(__file__).with_name("played")
"""Stand-ins for the programs of a cluster, and for `gspo`."""
PAGE = (DOCS / "nodes.md").read_text(encoding="utf-8")


def of_page(name: str, folder: Path, smoke: Path) -> str:
    """The block of the page that begins so, with a small run, and its paths under a folder."""
    text = PAGE.split(f"\n{name}\n")[1].split("\n```")[0]
    for old, new in {
        "/shared": str(folder), "real/qwen3-8b-8gpu": str(smoke), "eth0": "lo", '"16"': '"2"', '"8"': '"1"',
        "qwen3-8b-0.qwen3-8b": "127.0.0.1", '"29500"': f'"{free_port()}"',
        "checkpoint.minutes=30": "cluster.gpu=h100 --set checkpoint.every=1 --steps 8 --set eval.bench=[]",
    }.items():  # fmt: skip
        text = text.replace(old, new)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shared folder, with the stand-ins."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in ("srun", "scontrol"):
        shutil.copy(PLAYED / name, tmp_path / name)
    (tmp_path / "venv" / "bin" / "activate").write_text(f"PATH={GSPO.parent}:$PATH\n")
    return tmp_path


def saved(folder: Path) -> bool:
    """Whether the run has saved its first batch."""
    return (folder / "results/qwen3-8b/gspo-s0/checkpoints/step-000001/MANIFEST.json").exists()


def check_run(folder: Path) -> None:
    """It was interrupted once, went on, and has all its batches."""
    run = folder / "results" / "qwen3-8b" / "gspo-s0"
    events = strict_lines(run / "events.jsonl")
    assert [e["event"] for e in events if e["event"] in ("start", "interrupted")] == ["start", "interrupted", "start"]
    assert [e.get("resumed_from", 0) >= 1 for e in events if e["event"] == "start"] == [False, True]
    assert [e["step"] for e in strict_lines(run / "metrics.jsonl") if e["kind"] == "step"] == [*range(1, 9)]


@pytest.mark.slow
def test_slurm_signals_the_ranks_and_the_script_requeues_itself(folder: Path, smoke: Path) -> None:
    (folder / "run.sh").write_text(of_page("#!/bin/bash", folder, smoke))
    slurm = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1",
             "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "n[1-2]"}  # fmt: skip
    for attempt in (1, 2):
        job = subprocess.Popen(["bash", "run.sh"], cwd=folder, env=os.environ | slurm, start_new_session=True)
        if attempt == 1:
            wait_until(lambda: saved(folder), job)
            job.send_signal(signal.SIGTERM)
            for task in (folder / "tasks").read_text().split():
                os.kill(int(task), signal.SIGTERM)
        assert job.wait(240) == 0, (folder / f"qwen3-8b-{os.getpid()}-rank-0.log").read_text()
        assert (folder / "requeued").read_text() == f"requeue {os.getpid()}\n"  # after the first attempt alone
    assert len(list(folder.glob("qwen3-8b-*-rank-*.log"))) == 2
    check_run(folder)


def pod(job: dict[str, Any], index: int, path: str = "") -> subprocess.Popen[bytes]:
    """The container of an indexed Job's pod."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]} | {"JOB_COMPLETION_INDEX": str(index)}
    path = f"{path or GSPO.parent}:{os.environ['PATH']}"
    command = [*container["command"], *container["args"]]
    return subprocess.Popen(command, env=os.environ | env | {"PATH": path}, start_new_session=True)


def action(job: dict[str, Any], code: int) -> str:
    """What the Job does about a pod's exit code."""
    rules = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    return next((rule["action"] for rule in rules if code in rule["onExitCodes"]["values"]), "Count")


@pytest.mark.slow
def test_a_pod_is_taken_away_and_both_are_made_again(folder: Path, smoke: Path) -> None:
    service, job = yaml.safe_load_all(of_page("# run.yaml", folder, smoke))
    assert service["metadata"]["name"] == job["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    pods = [pod(job, index) for index in range(job["spec"]["completions"])]
    wait_until(lambda: saved(folder), *pods)
    pods[1].send_signal(signal.SIGTERM)
    assert [action(job, process.wait(240)) for process in pods] == ["Ignore", "Ignore"]
    assert [pod.wait(240) for pod in [pod(job, index) for index in (0, 1)]] == [0, 0]
    assert len(list((folder / "logs").iterdir())) == 2
    check_run(folder)


def test_an_index_names_arm_and_seed(tmp_path: Path, smoke: Path) -> None:
    (job,) = yaml.safe_load_all(of_page("# runs.yaml", tmp_path, smoke))
    (tmp_path / "gspo").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\nexit "${{CODE:-0}}"\n')
    (tmp_path / "gspo").chmod(0o755)
    run = tmp_path / "results" / "math-4b" / "gspo-s2"
    assert pod(job, 5, str(tmp_path)).wait(30) == 0
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert pod(job, 5, str(tmp_path)).wait(30) == 0
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert first.startswith("train math-qwen3-4b --algo gspo --seed 2 --out ") and second == f"train --resume {run}"
    assert [action(job, code) for code in (143, 4, 5, 137)] == ["Ignore", "FailIndex", "Count", "Count"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with its paths under a folder of its own."""
    block = (DOCS / "clusters.md").read_text(encoding="utf-8").split("#!/bin/bash\n")[1].split("```")[0]
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text(f"PATH={tmp_path}:$PATH\n")
    for name, played in (("gspo", "gspo"), ("scontrol", "scontrol-told")):
        shutil.copy(PLAYED / played, tmp_path / name)
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
        wait_until(lambda: asked(script), limit_s=30)
        time.sleep(0.2)  # for the traps to be set
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 0
    assert asked(script)[1:] == ["saved", "scontrol requeue 77_0"]
