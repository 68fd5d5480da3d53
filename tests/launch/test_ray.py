"""The program on a real Ray, on this machine: workers and runs killed in mid-run, and the same bytes as without Ray."""

import importlib.util
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import GSPO, Done, Gspo, ok, strict_lines, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'gspo[ray]'"),
]
STEPS = 10
RUNS = [f"{arm}-s{seed}" for seed in (0, 1) for arm in ("grpo", "gspo")]
ASKED = ("--algo", "grpo,gspo", "--seeds", "0-1", "--steps", STEPS, "--set", "eval.bench=[]", "--set",
         "checkpoint.every=2")  # fmt: skip


def started(*args: object, **env: str) -> subprocess.Popen[str]:
    """The program with Ray on this machine, or at RAY_ADDRESS."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | env
    command = [str(GSPO), *map(str, args), "--launcher", "ray"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def on_ray(*args: object, **env: str) -> Done:
    """The same from start to end."""
    with started(*args, **env) as process:
        out, err = process.communicate(timeout=1500)  # on busy cores, workers take minutes to start
    return Done(process.returncode, out, err)


@pytest.fixture(scope="module")
def local(gspo: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study on this machine, one run after the other."""
    out = tmp_path_factory.mktemp("local")
    ok(gspo("train", smoke, *ASKED, "--out", out, "--name", "study", "-q"))
    return out / "study"


def parent_of(pid: int) -> int:
    """From /proc."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def process_of(run: Path) -> int:
    """The process that trains a run; 0 before it has begun or after it has ended."""
    try:
        pid = int(strict_lines(run / "events.jsonl")[0]["pid"])
        return pid if b"gspo_cli.training.worker" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0
    except (OSError, AssertionError):
        return 0


def kill_the_worker(pid: int) -> None:
    """The Ray worker that started the run; the run must die with it."""
    os.kill(parent_of(pid), signal.SIGKILL)


def kill_the_run(pid: int) -> None:
    """The run's own process, as the kernel does when memory is short."""
    os.kill(pid, signal.SIGKILL)


def ask_to_end(pid: int) -> None:
    """As a machine that is taken away does."""
    os.kill(pid, signal.SIGTERM)


def when_under_way(run: Path, kill: Callable[[int], None], killed: list[str]) -> None:
    """Kills once the run has a checkpoint after its first step."""
    until = time.monotonic() + 1500  # as long as the study may take
    while time.monotonic() < until:
        if (run / "checkpoints" / "step-000002").is_dir() and (pid := process_of(run)):
            kill(pid)
            killed.append(run.name)
            return
        time.sleep(0.01)


def test_a_study_with_killed_workers_has_the_bytes_of_the_local_study(smoke: Path, local: Path, tmp_path: Path) -> None:
    study, killed = tmp_path / "study", list[str]()
    kills = dict(zip(RUNS, (kill_the_worker, kill_the_run, ask_to_end), strict=False))
    killers = [threading.Thread(target=when_under_way, args=(study / run, kill, killed)) for run, kill in kills.items()]
    for killer in killers:
        killer.start()
    done = on_ray("train", smoke, *ASKED, "--out", tmp_path, "--name", "study", "--json")
    for killer in killers:
        killer.join()
    assert done.code == 0, done.err
    assert sorted(killed) == sorted(kills)
    assert "run grpo-s0 lost its worker" in done.err and "run gspo-s0 died (signal 9" in done.err
    assert "grpo-s1: interrupted by SIGTERM" in done.err
    for run in RUNS:
        assert (study / run / "metrics.jsonl").read_bytes() == (local / run / "metrics.jsonl").read_bytes(), run
        starts = [e for e in strict_lines(study / run / "events.jsonl") if e["event"] == "start"]
        assert len(starts) == (2 if run in kills else 1)
        assert all(e["resumed_from"] >= 2 for e in starts[1:])
    assert len(done.out.splitlines()) == len(RUNS)  # one JSON object a run, and nothing of Ray's
    assert "raylet" not in done.err


def test_an_interrupted_study_is_saved_and_goes_on(smoke: Path, local: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    with started("train", smoke, "--algo", "grpo", *ASKED[2:], "--out", tmp_path, "--name", "study") as process:
        wait_until((study / RUNS[0] / "checkpoints" / "step-000002").is_dir, process, limit_s=600)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert f"gspo train --resume {study} --launcher ray" in err and "Traceback" not in err
    assert strict_lines(study / RUNS[0] / "events.jsonl")[-1]["status"] in ("interrupted", "completed")
    begun = (study / RUNS[2]).exists()
    done = ok(on_ray("train", "--resume", study / RUNS[0], "--json"))  # one of its runs alone
    assert [json.loads(line)["run"] for line in done.out.splitlines()] == [str(study / RUNS[0])]
    assert (study / RUNS[0] / "metrics.jsonl").read_bytes() == (local / RUNS[0] / "metrics.jsonl").read_bytes()
    assert (study / RUNS[2]).exists() == begun
    ok(on_ray("train", "--resume", study))
    for run in ("grpo-s0", "grpo-s1"):
        assert (study / run / "metrics.jsonl").read_bytes() == (local / run / "metrics.jsonl").read_bytes(), run
