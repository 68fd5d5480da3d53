"""Processes that train one run together, as the program starts them: the paper's recipe made small, a kill, a resume on
another number of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from program import GSPO, Gspo, ok, strict_lines, wait_until

from gspo_cli import distributed
from gspo_cli.errors import GspoError
from gspo_cli.launch import local
from gspo_cli.runlog.folder import check_free, study_folder

SMALL = [
    "real/qwen3-30b-a3b-8xh200", "--algo", "gspo", "--steps", "4",
    "--set", "model={tiny = {hidden = 16, layers = 2, experts = 4}, threads = 1}",  # passes in bfloat16, as the recipe
    "--set", "cold_start={steps = 150, batch = 32, lr = 3e-2}", "--set", "task.name=arithmetic",
    "--set", "rollout={engine = 'transformers', prompts = 4, samples = 16, max_new_tokens = 12}",
    "--set", "eval={bench = ['arithmetic'], limit = 8, samples = 1, max_new_tokens = 12}",
    "--set", "checkpoint.every=1",
]  # fmt: skip


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children if "gspo_cli" in Path(f"/proc/{child}/cmdline").read_text()]


def saved_run(out: Path, step: int, launcher: subprocess.Popen[Any]) -> Path:
    """The run's folder, once it has this checkpoint."""
    manifests, found = f"*/gspo-s0/checkpoints/step-{step:06d}/MANIFEST.json", list[Path]()
    wait_until(lambda: found.extend(out.glob(manifests)) or found, launcher, limit_s=300)
    return found[0].parents[2]


@pytest.mark.slow
def test_the_papers_recipe_on_two_ranks_is_killed_and_goes_on_with_one(gspo: Gspo, tmp_path: Path) -> None:
    command = [str(GSPO), "train", *SMALL, "--out", str(tmp_path), "--launcher", "torchrun"]
    launcher = subprocess.Popen([*command, "--nproc", "2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        run = saved_run(tmp_path, 1, launcher)
        ranks = ranks_of(launcher.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=120)
    finally:
        launcher.kill()
    assert launcher.returncode == 5, said.decode()
    done = ok(gspo("train", "--resume", run, "--launcher", "torchrun", "--nproc", "3", "--json"))
    assert [json.loads(line)["arm"] for line in done.out.splitlines()] == ["gspo"]  # the first rank alone speaks
    lines = strict_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4]
    assert gspo("runs", "verify", run.parent).code == 0


ABORT = "rank 1 was killed by signal 6 (SIGABRT)"
ABORTS = """
import os
from pathlib import Path
from gspo_cli.tasks.arithmetic import Arithmetic

class Aborts(Arithmetic):
    def reward(self, problem, text):
        saved = list(Path(os.environ["OUT"]).glob("*/*/checkpoints/step-000002/MANIFEST.json"))
        if os.environ["RANK"] == "1" and saved and "GSPO_LAUNCHED_AGAIN" not in os.environ:
            os.abort()
        return super().reward(problem, text)

def aborts(_config=None):
    return Aborts()
"""


@pytest.mark.slow
def test_an_aborted_rank_is_begun_once_more_from_the_checkpoint(gspo: Gspo, smoke: Path, tmp_path: Path) -> None:
    (tmp_path / "aborts_for_tests.py").write_text(ABORTS)
    asked = ["train", smoke, "--algo", "gspo", "--steps", "4", "--launcher", "torchrun", "--nproc", "2", "--json"]
    sets = ["task.name=aborts_for_tests:aborts", "checkpoint.every=1", "eval.bench=[]"]
    out = tmp_path / "out"
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    options = [option for assignment in sets for option in ("--set", assignment)]
    done = ok(gspo(*asked, *options, "--out", out, OUT=str(out), PYTHONPATH=path))
    assert done.err.count("warning: rank 1 was killed by signal 6 (SIGABRT); restarting once") == 1
    (run,) = out.glob("*/gspo-s0")
    events = strict_lines(run / "events.jsonl")
    resumed = [e.get("resumed_from") for e in events if e["event"] == "start"]
    assert resumed in ([None, 2], [None, 3])  # the checkpoint may be there only after the third batch has been scored
    assert [e["reason"] for e in events if e["event"] == "launched_again"] == [ABORT]
    assert "Fatal Python error: Aborted" in done.err  # where it was
    assert [json.loads(line)["run"] for line in done.out.splitlines()] == [str(run)]
    assert [line["step"] for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "step"] == [1, 2, 3, 4]
    assert gspo("runs", "verify", run.parent).code == 0


ENDS = """
import atexit, os, sys, threading, time
from types import SimpleNamespace
from gspo_cli.cli import main

class AbortsInShutdown:
    def __del__(self, abort=os.abort):
        abort()

kept = AbortsInShutdown()
kept.itself = kept  # a circle, which nothing but Python's shutdown breaks
joined = SimpleNamespace(is_initialized=lambda: sys.argv.pop() == "joined")
sys.modules["torch.distributed"] = joined
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()
main.run_arguments = lambda: sys.exit(4)
main.run()
"""


@pytest.mark.parametrize(("joined", "code"), [("joined", 4), ("alone", -signal.SIGABRT)])
def test_a_rank_ends_before_pythons_shutdown(joined: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, joined], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (code, ["thread", "handler"]), done.stderr


@pytest.mark.parametrize(
    ("codes", "tries", "expected", "gpus"),
    [([-6, 0], 2, 0, []), ([-6, 4], 2, 4, []), ([-6, -6], 2, None, []), ([-6], 1, None, ["0", "1"]),
     ([-9], 1, None, []), ([5], 1, 5, []), ([0], 1, 0, []), ([143], 1, 143, []), ([-15], 1, None, [])],
)  # fmt: skip
def test_nothing_but_an_abort_on_a_cpu_is_tried_again(
    codes: list[int], tries: int, expected: int | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What NCCL aborts is not."""
    told: list[tuple[str, str | None]] = []

    def run_ranks(_nproc: int) -> tuple[int, int]:
        told.append((os.environ[distributed.LAUNCHED_AT], os.environ.get(distributed.RESTART_REASON)))
        return 1, codes[len(told) - 1]

    for name in (distributed.LAUNCHED_AT, distributed.RESTART_REASON):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(local, "run_ranks", run_ranks)
    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    if expected is None:
        with pytest.raises(GspoError, match="SIGTERM" if codes == [-15] else f"signal {-codes[-1]}") as caught:
            local.launch(2)
        assert caught.value.code == (143 if codes == [-15] else 5)
    else:
        assert local.launch(2) == expected
    assert len(told) == tries and len({when for when, _ in told}) == 1
    assert [why is not None for _, why in told] == [False, True][:tries]
    assert ("restarting once" in capsys.readouterr().err) == (tries == 2)


@pytest.mark.parametrize(
    ("codes", "first"),
    [([5, 130], (1, 130)), ([5, -2], (1, -2)), ([5, 5], (0, 5)), ([5, -9], (1, -9)), ([4, 130], (0, 4)),
     ([143, -6], (1, -6)), ([0, 0], (0, 0))],
)  # fmt: skip
def test_the_rank_that_was_told_to_end_speaks_for_those_that_lost_it(codes: list[int], first: tuple[int, int]) -> None:
    ranks: list[Any] = [SimpleNamespace(poll=lambda code=code: code) for code in codes]
    watcher: Any = None
    assert local.first_failure(ranks, watcher) == first


SLOW = """
import time
from gspo_cli.tasks.arithmetic import Arithmetic

class Slow(Arithmetic):
    def reward(self, problem, text):
        time.sleep(0.9)
        return super().reward(problem, text)

def slow(_config=None):
    return Slow()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "hit", "code"),
    [(signal.SIGTERM, "launcher", 143), (signal.SIGTERM, "all", 143), (signal.SIGSTOP, "rank 1", 5)],
)
def test_a_batch_of_a_minute_is_abandoned_and_a_stopped_rank_is_noticed(
    gspo: Gspo, smoke: Path, tmp_path: Path, number: signal.Signals, hit: str, code: int
) -> None:
    """Scoring takes a minute here: torchrun would kill the ranks after 30 s, and wait four hours for one that hangs."""
    (tmp_path / "slow_for_tests.py").write_text(SLOW)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    options = ["--set", "task.name=slow_for_tests:slow", "--set", "eval.bench=[]", "--set", "checkpoint.every=1"]
    launcher = subprocess.Popen(
        [str(GSPO), "train", str(smoke), "--algo", "gspo", *options, "--out", str(tmp_path / "out"), "--launcher",
         "torchrun", "--nproc", "2"],
        env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        run = saved_run(tmp_path / "out", 0, launcher)
        time.sleep(8)  # it scores by now
        ranks = ranks_of(launcher.pid)
        began = time.monotonic()
        for process in {"launcher": [launcher.pid], "all": [launcher.pid, *ranks], "rank 1": ranks[1:]}[hit]:
            os.kill(process, number)
        if number == signal.SIGSTOP:
            time.sleep(22)  # the heartbeat is written every 10 s, and a rank counts as silent after as many
            listed = gspo("runs", "ls", tmp_path / "out")
            assert "rank 1 of 2 has been in phase score" in listed.err and "silent for" in listed.err
        _, said = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode == code and time.monotonic() - began < (60 if code == 5 else 30), said
    assert "this is a bug" not in said and said.count("error:") == 1
    last = strict_lines(run / "events.jsonl")[-1]
    assert last["event"] == "checkpoint" if code == 5 else last["exit"] == 143, last
    assert ("rank 1 in phase score" in said) == (code == 5)


@pytest.mark.slow
def test_launches_survive_random_signals() -> None:
    """Six of the trials of results/programs/random_kills.py."""
    program = Path(__file__).parents[2] / "results" / "programs" / "random_kills.py"
    asked = [sys.executable, program, "--trials", "6", "--seed", "7", "--at-once", "3"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600)
    table = [line for line in done.stdout.splitlines() if line.endswith(" wrong")]
    assert done.returncode == 0 and table and all(line.endswith(" 0 wrong") for line in table), (
        done.stdout + done.stderr
    )


def test_what_the_first_try_has_begun_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, before, strange = (tmp_path / name for name in ("ours", "before", "strange"))
    for folder, created in ((ours, "2026-02-03T04:05:07+00:00"), (before, "2026-02-03T04:05:05+00:00")):
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"created": created}))
    strange.mkdir()
    monkeypatch.setenv(distributed.LAUNCHED_AT, "2026-02-03T04:05:06+00:00")
    with pytest.raises(GspoError, match="already holds"):
        check_free(tmp_path, ["ours"], overwrite=False)
    monkeypatch.setenv(distributed.RESTART_REASON, "rank 1 was killed by signal 6 (SIGABRT)")
    check_free(tmp_path, ["ours"], overwrite=False)
    for name in ("before", "strange"):
        with pytest.raises(GspoError, match="already holds"):
            check_free(tmp_path, [name], overwrite=False)
    assert study_folder(tmp_path, None, "r") == study_folder(tmp_path, None, "r")


def test_several_runs_at_once_are_refused(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for options in (["--jobs", "2"], ["--launcher", "ray"]):
        done = gspo_here("train", *options, "--out", tmp_path)
        assert done.code == 2 and "each of its processes" in done.err
    assert not list(tmp_path.iterdir())
