"""What surrounds an engine in a process of its own: pipes, deadlines, one restart, and no partial answer."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_engine import BACKEND, with_fault
from program import alive, ok, wait_until
from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig
from gspo_cli.distributed import SINGLE_PROCESS
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.rollout.engine import SampleKey, generate_checked
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.types import Prompt, Sample, Sampling

PROMPTS = [Prompt("a", (4, 5, 6)), Prompt("b", (7, 8))]
SEEDS: dict[SampleKey, int] = {(p, i): 10 * i + ord(p) for p in "ab" for i in range(3)}
SAMPLING = Sampling(1.0, 20)


@contextmanager
def faulty(model: PreTrainedModel, deadline_s: float = 30, **fault: Any) -> Iterator[HostedEngine]:
    """An engine whose process has a fault."""
    engine = with_fault(**fault)(RolloutConfig(deadline_s=deadline_s), model, frozenset({1}), SINGLE_PROCESS)
    try:
        yield engine
    finally:
        engine.close()


def draw(engine: HostedEngine, version: int = 0) -> dict[SampleKey, Sample]:
    return generate_checked(engine, PROMPTS, SAMPLING, SEEDS, version)


def process_of(engine: HostedEngine) -> int:
    return int(engine.host.process.pid)  # type: ignore[attr-defined]


def test_samples_are_matched_by_key(tiny_moe: PreTrainedModel) -> None:
    with faulty(tiny_moe) as plain, faulty(tiny_moe, fault="reordered") as reordered:
        expected = draw(plain)
        assert draw(reordered) == expected == draw(plain)
        assert set(expected) == set(SEEDS)
        assert all(s.seed == SEEDS[key] and (s.problem_id, s.index) == key for key, s in expected.items())
        assert len({s.token_ids for s in expected.values()}) == len(expected)


def test_the_version_moves_with_the_weights(tiny_moe: PreTrainedModel) -> None:
    with faulty(tiny_moe) as engine:
        before = draw(engine)
        engine.sync(tiny_moe, 3)
        after = draw(engine, version=3)
        assert {s.weight_version for s in after.values()} == {3}
        assert {k: s.token_ids for k, s in after.items()} != {k: s.token_ids for k, s in before.items()}
        with pytest.raises(GspoError, match=r"(?s)rejected.*weights of step 3, not 4"):
            draw(engine, version=4)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing", "1 samples missing, 0 too many of 6"), ("extra", "0 samples missing, 1 too many of 6"),
        ("stale", "weights of step -1, not 0"), ("nan", "not finite"), ("vocabulary", "outside the vocabulary"),
        ("long", "where 1 to 20 are allowed"),
    ],
)  # fmt: skip
def test_a_wrong_answer_rejects_the_whole_batch(tiny_moe: PreTrainedModel, fault: Any, reason: str) -> None:
    with faulty(tiny_moe, fault=fault) as engine, pytest.raises(GspoError, match=reason) as caught:
        draw(engine)
    assert caught.value.code is ExitCode.ENGINE
    assert engine.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "deadline_s", "reason"), [("die", 30, "SIGKILL"), ("hang", 2, "no answer within 2 s")]
)
def test_a_lost_engine_is_restarted_once_and_gives_the_same_batch(
    tiny_moe: PreTrainedModel, fault: Any, deadline_s: float, reason: str
) -> None:
    with faulty(tiny_moe) as sound:
        sound.sync(tiny_moe, 7)
        expected = draw(sound, version=7)
    with faulty(tiny_moe, deadline_s, fault=fault, call=2) as engine:
        draw(engine)
        engine.sync(tiny_moe, 7)
        reasons: list[str] = []
        engine.on_restart = reasons.append
        first = process_of(engine)
        assert draw(engine, version=7) == expected
        assert len(reasons) == 1 and reason in reasons[0]
        assert not alive(first) and alive(process_of(engine))
        # the new process counts its calls anew: this second one is the second loss
        with pytest.raises(GspoError) as caught:
            draw(engine, version=7)
        assert "again after a restart" in caught.value.message and reason in caught.value.why
        assert "step 7" in caught.value.why
        assert caught.value.code is ExitCode.ENGINE
        assert not alive(process_of(engine))


@pytest.mark.parametrize("fault", ["die", "hang"])
def test_an_engine_that_stays_lost_ends_within_its_deadlines(tiny_moe: PreTrainedModel, fault: Any) -> None:
    with faulty(tiny_moe, deadline_s=1, fault=fault, every=True) as engine:
        start = time.monotonic()
        with pytest.raises(GspoError, match="again after a restart"):
            draw(engine)
        assert time.monotonic() - start < 2 * 1 + 8  # two deadlines, and one start of a process


def test_a_hung_engine_cannot_block_the_sending(tiny_moe: PreTrainedModel) -> None:
    """A request larger than a pipe holds, to a process that reads nothing."""
    with faulty(tiny_moe, deadline_s=1) as engine:
        os.kill(process_of(engine), signal.SIGSTOP)
        engine.restarts = 1
        start = time.monotonic()
        with pytest.raises(GspoError, match="lost"):
            engine.generate([Prompt("a", (4,) * 1_000_000)], SAMPLING, {("a", 0): 0})
        assert time.monotonic() - start < 9


def test_nothing_is_left_open(tiny_moe: PreTrainedModel) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with faulty(tiny_moe) as engine:
        child = process_of(engine)
        assert os.getpgid(child) == child != os.getpgid(0)  # Ctrl-C is sent to a whole group
        draw(engine)
    engine.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not alive(child)


def test_an_engine_that_cannot_start_says_why(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faulty_engine.sys.executable", "/bin/false")
    with pytest.raises(GspoError, match=r"(?s)did not start.*exit code 1"), faulty(tiny_moe):
        pass


PARENT = f"""
import sys, time
from gspo_cli.rollout.vllm.host import ProcessHost
host = ProcessHost(sys.executable, {str(BACKEND)!r}, {{"stop_ids": [1], "vocabulary": 9, "fault": FAULT, "call": 1,
                                                       "every": True}}, {{}}, 60.0)
print(host.process.pid, flush=True)
host.ask("generate", prompts=[[1]], requests=[[0, 0]], sampling={{"max_tokens": 4}}, deadline_s=60)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
@pytest.mark.parametrize("fault", [None, "hang"])
def test_the_engine_dies_with_its_parent_however_that_ends(fault: str | None) -> None:
    program = PARENT.replace("FAULT", repr(fault))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert alive(child)  # idle, or hung in the middle of a request
        parent.kill()
    wait_until(lambda: not alive(child), limit_s=5)


def test_a_lost_engine_in_training_leaves_an_event_and_whole_lines(gspo_here: Any, smoke: Path, tmp_path: Path) -> None:
    arguments = ["train", smoke, "--steps", "3", "--out", tmp_path, "--set", "eval.every=0", "--set", "eval.bench=[]",
                 "--set", "rollout.deadline_s=5", "--set", "rollout.samples=4", "--set"]  # fmt: skip
    ok(gspo_here(*arguments, "rollout.engine=faulty_engine:dies_at_call_3", "--name", "once"))
    events = [json.loads(line) for line in (tmp_path / "once" / "gspo-s0" / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events if e["event"] == "engine_restarted"] == ["engine_restarted"]
    sound = gspo_here(*arguments, "rollout.engine=faulty_engine:sound", "--name", "sound")
    assert sound.code == 0
    logs = [(tmp_path / name / "gspo-s0" / "metrics.jsonl").read_bytes() for name in ("once", "sound")]
    metrics = [[json.loads(line)["metrics"] for line in log.splitlines()] for log in logs]
    assert metrics[0] == metrics[1]  # the restart changed no sample

    twice = gspo_here(*arguments, "rollout.engine=faulty_engine:dies_from_call_2", "--name", "twice")
    assert twice.code == ExitCode.ENGINE
    lines = (tmp_path / "twice" / "gspo-s0" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} == {1, 2}  # call 2 was repeated by a new process, as its first
    assert "lost again after a restart" in twice.err
