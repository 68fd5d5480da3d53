"""A signal in any phase: the run is saved, says how to go on, and ends equal to one that was not interrupted."""

import math
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import toy
from crashes import difference
from program import Forked, Gspo, Spawned, ok, strict_lines, wait_until

from gspo_cli.config import Recipe
from gspo_cli.distributed import Interruption
from gspo_cli.training import loop, rollout_queue
from gspo_cli.training.session import CODES, Signals, usual_grace
from gspo_cli.training.state import checkpoints

STEPS = 3


def recipe(start: Path) -> Recipe:
    """With an evaluation after each batch, to be interrupted in."""
    evaluated = {"every": 1, "bench": ["arithmetic"], "samples": 1}
    return toy.recipe(start, train={"steps": STEPS}, checkpoint={"every": 2}, eval=evaluated)


def quick_evaluation() -> None:
    """The benchmark's place, without its 200 problems."""
    from gspo_cli.types import StepMetrics

    loop.measure_all = lambda *_: StepMetrics({"eval/arithmetic/avg@1": 0.5})  # type: ignore[assignment]


def send_within(owner: Any, name: str, call: int, number: signal.Signals) -> None:
    """Sends the signal in the given call of a function."""
    real, calls = getattr(owner, name), list[int]()

    def spied(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    setattr(owner, name, spied)


PHASES: dict[str, tuple[Any, str, int]] = {
    "sampling": (rollout_queue, "collect", 2),
    "updating": (loop, "update", 3),
    "saving": (checkpoints, "generator_tensors", 2),
    "evaluating": (loop, "measure_all", 2),
}


def test_the_codes() -> None:
    assert {number.name: int(code) for number, code in CODES.items()} == {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


@pytest.fixture(scope="module")
def whole(start: Path) -> Iterator[Path]:
    """The run that nobody interrupted."""

    def train() -> None:
        quick_evaluation()
        toy.train(recipe(start), folder / "whole")

    for folder in toy.in_memory():
        assert toy.in_child(train, folder / "said") == 0, (folder / "said").read_text()
        yield folder / "whole" / "gspo-s0"


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=lambda n: n.name)
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase(start: Path, whole: Path, ram: Path, phase: str, number: signal.Signals) -> None:
    def interrupted() -> None:
        quick_evaluation()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        send_within(*PHASES[phase], number)
        toy.train(recipe(start), ram / "cut")

    def resumed() -> None:
        quick_evaluation()
        toy.train(recipe(start), ram / "cut")

    said = ram / "said"
    assert toy.in_child(interrupted, said) == 128 + number, said.read_text()
    study = ram / "cut" / "gspo-s0"
    (event,) = toy.events(study, "interrupted")
    assert event["signal"] == number.name and toy.checkpoints(study)[-1] == event["step"]
    assert toy.events(study, "end")[-1]["exit"] == 128 + number
    assert f"gspo train --resume {study}" in said.read_text() or "GspoError" in said.read_text()
    assert toy.in_child(resumed, said) == 0, said.read_text()
    assert (study / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    for kind in ("model/model.safetensors", "optimizer.safetensors"):
        mine, theirs = (f / "checkpoints" / f"step-{STEPS:06d}" / kind for f in (study, whole))
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_second_signal_ends_the_process_at_once(start: Path, ram: Path) -> None:
    def stubborn() -> None:
        send_within(loop, "update", 1, signal.SIGTERM)
        send_within(loop, "record_batch", 1, signal.SIGTERM)
        toy.train(recipe(start), ram / "study")

    assert toy.in_child(stubborn, ram / "said") == -signal.SIGTERM
    assert toy.checkpoints(ram / "study" / "gspo-s0") == [0]


def test_a_second_signal_ends_a_long_call_into_c() -> None:
    """No Python handler runs within such a call; this one would take many minutes."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            os.write(told, signals.received.name.encode() if signals.received else b"none")
            pow(7, 10**9)
        os._exit(1)
    assert os.read(ready, 9) == b"SIGTERM"
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_what_changes_nothing_is_abandoned() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(Interruption), signals.abandonable():
            pass


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, math.inf), ({"SLURM_JOB_ID": "7"}, 25), ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "120"}, 115),
     ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "5000"}, 25), ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 25),
     ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "120", "TORCHELASTIC_RUN_ID": "a"}, 25)],
)  # fmt: skip
def test_the_usual_grace(variables: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_JOB_END_TIME is given here as seconds from now."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME", "TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(time.time() + float(value)) if name == "SLURM_JOB_END_TIME" else value)
    assert usual_grace() == pytest.approx(seconds, abs=1)


# The program itself

STEPS_OF_PROGRAM = 6
ARGUMENTS = ("--steps", str(STEPS_OF_PROGRAM), "--set", "eval.bench=[]", "--set", "checkpoint.every=1")
Program = type[Spawned] | type[Forked]


class Whole(NamedTuple):
    """The program's run to compare with."""

    run: Path
    seconds: float


@pytest.fixture(scope="module")
def uninterrupted(start: Path, gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """`start` leaves the imports in this process that a fork needs."""
    assert start
    out = tmp_path_factory.mktemp("program")
    for name in ("cold", "whole"):  # the first one makes the cold start
        began = time.monotonic()
        ok(gspo_forked("train", smoke, *ARGUMENTS, "--out", out, "--name", name))
    return Whole(out / "whole" / "gspo-s0", time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.parametrize("number", CODES, ids=lambda n: n.name)
def test_the_program_saves_and_names_the_command_to_go_on(
    gspo_forked: Gspo, smoke: Path, uninterrupted: Whole, ram: Path, number: signal.Signals
) -> None:
    run = ram / "cut" / "gspo-s0"
    for _ in range(5):  # on a busy machine the run may be over before the signal is sent
        process = Forked("train", smoke, *ARGUMENTS, "--out", ram, "--name", "cut")
        wait_until((run / "rollouts" / "step_000001.parquet").exists)
        process.send(number)
        done = process.wait()
        if done.code:
            break
        shutil.rmtree(run.parent)
    assert done.code == 128 + number, done.err
    assert done.out == "" and "Traceback" not in done.err and f"gspo train --resume {run}" in done.err
    ok(gspo_forked("train", "--resume", run))
    assert (run / "metrics.jsonl").read_bytes() == (uninterrupted.run / "metrics.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("trial", "program"), [(0, Spawned), *((trial, Forked) for trial in range(1, 6))])
def test_the_program_killed_at_random(
    gspo_forked: Gspo, smoke: Path, uninterrupted: Whole, ram: Path, trial: int, program: Program
) -> None:
    """SIGKILL at a moment that the trial's number determines."""
    run, rng, longest = ram / "cut" / "gspo-s0", random.Random(trial), uninterrupted.seconds
    for _ in range(5):
        process = program("train", smoke, *ARGUMENTS, "--out", ram, "--name", "cut")
        wait_until((run / "events.jsonl").exists)
        time.sleep(rng.uniform(0.0, longest))
        process.send(signal.SIGKILL)
        if process.wait().code:
            break
        longest /= 2  # the run was over
        shutil.rmtree(run.parent)
    before = toy.checkpoints(run)
    ok(gspo_forked("train", "--resume", run.parent))
    assert difference(run, uninterrupted.run, before) is None
    assert strict_lines(run / "events.jsonl")[-1]["status"] == "completed"
