"""A run in progress: its parts and counters, the times of its phases, and the signals that ask it to save and stop."""

import math
import os
import signal
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

import torch
from torch.profiler import record_function
from transformers import PreTrainedTokenizerBase

from gspo_cli.distributed import ACTIVITY, SINGLE_PROCESS, Interruption, Ranks
from gspo_cli.errors import ExitCode
from gspo_cli.evals.settings import BenchmarkSet
from gspo_cli.events import Emit, PhaseBegun, SignalReceived, ignore
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.rollout.engine import Engine
from gspo_cli.runlog.log import RunLog
from gspo_cli.tasks import Task
from gspo_cli.training.guards import Guards, Watch
from gspo_cli.training.step.update import Learner
from gspo_cli.training.study.arms import Run
from gspo_cli.types import RolloutBatch

LONGEST_NOTICE_S = 600.0
"""A signal that comes earlier before the end of a Slurm job is no notice of its end."""
CODES = {signal.SIGHUP: ExitCode.SIGHUP, signal.SIGINT: ExitCode.SIGINT, signal.SIGTERM: ExitCode.SIGTERM}


class Signals:
    """Within the context, the first SIGINT, SIGTERM or SIGHUP only asks the run to save and stop; a second one ends the
    process at once.

    The first signal removes the handlers, so that the system itself acts on the second, even inside a long call into C
    where no Python handler would run. A signal that was ignored before (`nohup`) stays ignored.

    One of several ranks ignores the second: a scheduler signals the ranks and their launcher, which passes it on. The
    launcher ends them at a second one.
    """

    def __init__(self, ranks: Ranks = SINGLE_PROCESS, emit: Emit = ignore, grace_s: float | None = None) -> None:
        self.ranks, self.emit, self.grace_s = ranks, emit, grace_s
        self.received: signal.Signals | None = None
        self.deadline = math.inf
        """When the process will be killed, by the monotonic clock."""
        self._may_abandon = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in CODES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.deadline = time.monotonic() + (usual_grace() if self.grace_s is None else self.grace_s)
        for each in self._before:
            signal.signal(each, signal.SIG_DFL if self.ranks.size == 1 else signal.SIG_IGN)
        self.emit(SignalReceived())
        ACTIVITY.interrupted = self._may_abandon
        if self._may_abandon and (self.ranks.size == 1 or ACTIVITY.works):
            raise Interruption

    def agreed(self) -> signal.Signals | None:
        """A signal that any rank has received so far. All ranks get the same answer, so they stop after the same
        rollout batch; a later signal waits for the next call."""
        received = self.ranks.all_gather(lambda: self.received and int(self.received))
        return next((signal.Signals(number) for number in received if number), None)

    def too_late(self, needed_s: float) -> bool:
        """Whether a rank got a signal and would be killed before another `needed_s` seconds have passed. All ranks get
        the same answer."""
        left = self.ranks.all_gather(lambda: self.received and self.deadline - time.monotonic() - needed_s)
        return any(spare is not None and spare < 0 for spare in left)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Within the context a signal raises Interruption: at once, or with several ranks on all of them where they
        exchange what each has done."""
        self._may_abandon = True
        try:
            ACTIVITY.interrupted = self.received is not None
            if self.received and self.ranks.size == 1:
                raise Interruption
            yield
        finally:
            self._may_abandon = ACTIVITY.interrupted = False


def usual_grace() -> float:
    """Seconds between a signal and the kill that follows it, with a margin: what Slurm announces before the end of a
    job's time, or 30 s under Slurm (`KillWait`), torchrun and Kubernetes. Nothing else kills."""
    left = float(os.environ.get("SLURM_JOB_END_TIME", 0)) - time.time()
    if left > 0 and "TORCHELASTIC_RUN_ID" not in os.environ and left < LONGEST_NOTICE_S:
        return left - 5
    killed = {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"} & os.environ.keys()
    return 25.0 if killed else math.inf


class Stopwatch:
    """Adds up the time spent in each phase of a rollout batch, which a profiler sees by name.

    It waits for the GPU where a phase begins and ends: otherwise it would measure how long launching kernels takes.
    """

    def __init__(self, emit: Emit = ignore) -> None:
        self.emit = emit
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self.last_reset = time.perf_counter()
        self.phase = "start"
        """The phase that began last, for readers of a run in progress."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the context's body. One may lie within another; the outer one's time includes it."""
        _wait_for_gpu()
        start, outer = time.perf_counter(), self._open[-1] if self._open else None
        self._open.append(phase)
        self._enter(phase)
        try:
            with record_function(phase):
                yield
                _wait_for_gpu()
        finally:
            self._open.pop()
            self.seconds[phase] += time.perf_counter() - start
            if outer is not None:
                self._enter(outer)

    def _enter(self, phase: str) -> None:
        self.phase = phase.removesuffix("_s")
        ACTIVITY.enter(self.phase)
        self.emit(PhaseBegun(self.phase))

    def reset(self) -> dict[str, float]:
        """The phases since the last reset, and `batch_s`, the whole time since then."""
        now = time.perf_counter()
        times = {k: round(v, 6) for k, v in self.seconds.items()} | {"batch_s": round(now - self.last_reset, 6)}
        self.seconds.clear()
        self.last_reset = now
        return times


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@dataclass
class Session:
    """A run with everything it needs."""

    run: Run
    learner: Learner
    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    task: Task
    stream: PromptStream
    log: RunLog
    emit: Emit = ignore
    """Takes the run's events, for whoever shows it."""
    benchmarks: BenchmarkSet = field(default_factory=list)
    watches: tuple[Watch, ...] = ()
    signals: Signals = field(default_factory=Signals)
    guards: Guards = field(default_factory=Guards)
    clock: Stopwatch = field(default_factory=Stopwatch)
    totals: Counter[str] = field(default_factory=Counter)
    """The compute/* counters."""
    step: int = 0
    """Rollout batches done."""
    updates: int = 0
    """Mini-batches done, whether their update was applied or not."""
    prompt_batches: int = 0
    """Batches of the prompt stream consumed; dynamic sampling may take several for one rollout batch."""
    rollout_queue: deque[RolloutBatch] = field(default_factory=deque)
    """Rollout batches sampled and not yet trained on, the next one first."""
    max_ratio_deviation: float = 0.0
    """Largest distance of a sequence ratio from 1 so far."""
    left_clip_range: bool = False
    """Whether any ratio has left the clip range so far."""
