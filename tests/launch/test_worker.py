"""The process of a run on a cluster: it works where the study is, waits for its run, dies with its parent, and
runs the code of the command that started it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from program import alive, wait_until

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.events import Noted, WorkerEnded, WorkerIs
from gspo_cli.launch.local import TrainingJob, run_worker, same_package
from gspo_cli.runlog import provenance
from gspo_cli.runlog.folder import StudyFile
from gspo_cli.runlog.lock import locked
from gspo_cli.runlog.provenance import PACKAGE, code_state, package_sha256
from gspo_cli.training import worker
from gspo_cli.training.study import plans
from gspo_cli.training.study.plans import StudyPlan, record_plan
from gspo_cli.training.worker import check_package

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "gspo_cli.training.worker"], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""
SAVES = """
import signal, sys, time
from gspo_cli.events import Noted, to_line
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").write("saved"), sys.exit(143)))
print(to_line(Noted("begun")), end="", flush=True)
time.sleep(100)
"""


def test_another_machine_must_see_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study, start = Path("out/study"), tmp_path / "start"
    for needed, what in ((study / "study.json", "study.json is not there"), (start, "start is not there")):
        with pytest.raises(GspoError, match="does not see the study's files") as unseen:
            worker._enter(tmp_path, study, start)
        assert what in unseen.value.why and "GSPO_CACHE" in unseen.value.hint
        needed.parent.mkdir(parents=True, exist_ok=True)
        needed.write_text("{}")
    worker._enter(tmp_path, study, start)
    worker._enter(tmp_path, study, Path("Qwen/Qwen3-0.6B"))  # a hub name
    with pytest.raises(GspoError, match="does not see the study's files") as unseen:
        worker._enter(tmp_path / "elsewhere", study, start)
    assert "elsewhere" in unseen.value.why


def test_a_run_that_is_still_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker._wait_for(tmp_path / "run")
    monkeypatch.setattr(worker, "WAIT_S", 0.0)
    with locked(tmp_path / "held"), pytest.raises(GspoError, match="is in use"):
        worker._wait_for(tmp_path / "held")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone kills a process with its parent")
def test_a_process_dies_with_its_parent() -> None:
    pipe = subprocess.PIPE  # its end stays open here: the child still waits to be asked when its parent dies
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        files = Path(f"/proc/{pid}/fd")
        # what it does next after tying itself
        wait_until(lambda: (files / "1").readlink() == (files / "2").readlink(), limit_s=60)
        parent.kill()
        wait_until(lambda: not alive(pid), limit_s=60)


def test_a_stream_that_is_closed_early_has_the_run_saved(tmp_path: Path) -> None:
    stream = run_worker(TrainingJob("a", {}), dict(os.environ), (sys.executable, "-c", SAVES, str(tmp_path / "saved")))
    assert [next(stream), next(stream)] == [WorkerIs("training"), Noted("begun")]
    stream.close()
    assert (tmp_path / "saved").read_text() == "saved"


def test_a_run_that_a_signal_ended_names_it() -> None:
    program = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    *_, end = run_worker(TrainingJob("a", {}), dict(os.environ), program)
    assert isinstance(end, WorkerEnded) and (end.code, end.message) == (-9, "run a died")
    assert end.why.startswith("signal 9")


def test_plans_of_several_commands_at_once_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = plans.read_study_file

    def slow(study: Path) -> StudyFile:
        found = real(study)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(plans, "read_study_file", slow)
    recipe = Recipe.model_validate({"name": "r", "model": {"path": "x"}, "task": {"name": "arithmetic"}})
    commands = [threading.Thread(target=record_plan, args=(tmp_path / "study", StudyPlan(recipe, ["gspo"], [seed], "")))
                for seed in range(6)]  # fmt: skip
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert sorted(entry["seeds"][0] for entry in real(tmp_path / "study").plans) == list(range(6))


def test_a_folder_of_the_same_name_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "gspo_cli" / "runlog").mkdir(parents=True)
    for folder in (tmp_path / "gspo_cli", tmp_path / "gspo_cli" / "runlog"):
        (folder / "__init__.py").write_text("raise SystemExit(77)")
    command = same_package("gspo_cli.runlog.provenance:package_sha256")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.strip() == package_sha256() and done.returncode == 1  # `sys.exit(text)` prints it


def test_a_worker_with_other_code_refuses() -> None:
    check_package({"package": {"path": str(PACKAGE), "sha256": package_sha256()}})
    with pytest.raises(GspoError, match="runs other code") as refused:
        check_package({"package": {"path": "/other/gspo_cli", "sha256": "0" * 64}})
    assert "/other/gspo_cli" in refused.value.why and str(PACKAGE) in refused.value.why


def test_an_installed_package_records_its_code_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "SOURCE", tmp_path)  # no checkout around it, as in site-packages
    assert code_state() == {"sha256": package_sha256()} and len(package_sha256()) == 64
