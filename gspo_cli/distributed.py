"""Ranks of a distributed run: collectives on plain values, what each is doing, and restarts by the launcher."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from gspo_cli.errors import ExitCode, GspoError, reason

if TYPE_CHECKING:
    from torch import Tensor

LAUNCHED_AT, RESTART_REASON = "GSPO_LAUNCHED", "GSPO_LAUNCHED_AGAIN"
PROFILE = "GSPO_PROFILE"
"""Names the rollout batch of `--profile` to all processes that a command starts."""


def launch_time() -> datetime:
    """When the launcher started, the same in its second attempt; now, if there is no launcher."""
    launched = os.environ.get(LAUNCHED_AT)
    return datetime.fromisoformat(launched) if launched else datetime.now(UTC)


def restart_reason() -> str:
    """Why the first attempt of this command ended; empty in the first attempt."""
    return os.environ.get(RESTART_REASON, "")


def created_by_first_attempt(created: str) -> bool:
    """Whether the first attempt of this command made something at that time (ISO; empty = not recorded yet)."""
    return bool(restart_reason()) and (not created or datetime.fromisoformat(created) >= launch_time())


class Interruption(BaseException):
    """Abandons work that changes nothing: sampling and evaluating."""


@dataclass
class Activity:
    """What this process is doing, for those who watch it."""

    phase: str = "start"
    since: float = field(default_factory=time.monotonic)
    longest: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds of the longest one that ended."""
    least_limit_s: float = 600.0
    """`guards.hang_s`."""
    waits: bool = False
    """Whether it waits for other ranks."""
    works: bool = False
    """Whether it does its own part of a collective, which may be abandoned by itself: the others are told."""
    interrupted: bool = False
    """Whether such a part is to be abandoned."""
    ranks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the watcher knows of each rank; empty for a single process."""

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before it ends."""
        now = time.monotonic()
        self.longest[self.phase] = max(self.longest.get(self.phase, 0.0), now - self.since)
        self.phase, self.since = phase, now

    def as_table(self) -> dict[str, Any]:
        """The phase, for how long it has lasted, how long it may last, and whether this process waits for others."""
        known = self.phase in self.longest and self.phase != "start"
        limit_s = max(self.least_limit_s, 10 * self.longest[self.phase]) if known else TIMEOUT_S
        return {"phase": self.phase, "for_s": time.monotonic() - self.since, "limit_s": limit_s, "waits": self.waits}


TIMEOUT_S = 4 * 3600.0
"""Of a collective, and of a phase that has not been measured yet: it must outlast the slowest sampling."""
ACTIVITY = Activity()
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among the processes of its run."""

    rank: int = 0
    size: int = 1
    local: int = 1
    """Ranks on this machine, numbered consecutively as torchrun assigns them."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes and prints."""
        return self.rank == 0

    def shard(self, items: list[T]) -> list[T]:
        """This rank's shard: every `size`-th item, starting at `rank`."""
        return items[self.rank :: self.size]

    def all_gather(self, work: Callable[[], Any], divisible: bool = True) -> list[Any]:
        """The results of `work` on every rank, in rank order; they travel as JSON. `divisible` = a rank can abandon its
        part while the others go on with theirs.

        Errors: GspoError with the failing rank's message, on all ranks; GspoError (exit code 5) if a rank is lost;
        Interruption on all ranks if one of them was interrupted.
        """
        if self.size == 1:
            return [work()]
        try:
            try:
                ACTIVITY.works = divisible
                if ACTIVITY.interrupted:
                    raise Interruption
                mine: dict[str, Any] = {"result": work()}
            finally:
                ACTIVITY.works = False
        except GspoError as error:
            mine = {"failed": [error.message, error.why, error.hint, int(error.code)]}
        except Interruption:
            mine = {"interrupted": True}
        answers = [json.loads(text) for text in all_gather_bytes(json.dumps(mine).encode())]
        for answer in answers:
            if "failed" in answer:
                message, why, hint, code = answer["failed"]
                failed = GspoError(message, why, hint, ExitCode(code))
                failed.shared = True
                raise failed
        if any("interrupted" in answer for answer in answers):
            raise Interruption
        return [answer["result"] for answer in answers]

    def broadcast(self, work: Callable[[], Any]) -> Any:
        """Run `work` on rank 0 alone and return its result on every rank. Errors: as `all_gather`."""
        return self.all_gather(lambda: work() if self.is_main else None)[0]

    def barrier(self) -> None:
        """Wait until every rank gets here."""
        self.all_gather(lambda: None)

    def all_sum(self, numbers: list[float]) -> list[float]:
        """The sum of each number over all ranks, bitwise equal on every rank."""
        if self.size == 1:
            return numbers
        return [sum(column) for column in zip(*self.all_gather(lambda: numbers), strict=True)]


SINGLE_PROCESS = Ranks()


def interleave(shares: list[list[T]]) -> list[T]:
    """Put the shards of `Ranks.shard`, or one result per item of them, back into the original order."""
    whole: list[T | None] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        whole[rank :: len(shares)] = share
    return whole  # type: ignore[return-value]


def all_gather_bytes(data: bytes, group: Any = None) -> list[bytes]:
    """Every rank's bytes, in rank order. Nothing is pickled. `group` = of some ranks, for a thread beside the main one.

    Errors: GspoError (exit code 5) if a rank is lost or does not answer in time.
    """
    import torch
    import torch.distributed as dist

    size = dist.get_world_size(group)
    if group is None:
        ACTIVITY.waits = True
    try:
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group)
        longest = int(max(lengths))
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts: list[Tensor] = [torch.empty(longest, dtype=torch.uint8) for _ in range(size)]
        dist.all_gather(parts, mine, group)
    except RuntimeError as error:
        raise lost_rank_error(error) from error
    finally:
        if group is None:
            ACTIVITY.waits = False
    return [part[: int(n)].numpy().tobytes() for part, n in zip(parts, lengths, strict=True)]


def lost_rank_error(error: RuntimeError) -> GspoError:
    """A failed collective as a user error."""
    lost = GspoError(
        "lost another rank of this run",
        reason(error),
        "see that rank's own message; gspo train --resume continues from the last checkpoint, on any number of ranks",
        ExitCode.ENGINE,
    )
    lost.shared = True
    return lost


def join(timeout_s: float = TIMEOUT_S) -> Ranks:
    """Join the other processes that `torchrun` started; a single rank if it started none.

    A rank that dies is noticed at once; `launch.watch` notices one that hangs.
    Errors: GspoError (exit code 5) if the others do not join.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return SINGLE_PROCESS
    import torch
    import torch.distributed as dist

    faulthandler.enable(2)  # an aborted rank dies silently; this prints where its threads were
    if not dist.is_initialized():
        backend = "cpu:gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            backend = "cpu:gloo,cuda:nccl"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            raise lost_rank_error(RuntimeError(str(error))) from error
    return Ranks(dist.get_rank(), size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def leave(ranks: Ranks) -> None:
    """Leave the process group cleanly: its threads must not outlive it."""
    if ranks.size > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


def exit_rank(code: int) -> None:
    """End a process that joined others, without Python's own shutdown; in any other process this does nothing.

    Threads of the collectives outlive the process group where something still refers to it. One that drops a tensor's
    last reference asks for the interpreter; during shutdown it is ended within C++ code instead, which aborts the
    process ("terminate called without an active exception") after all its work is done.
    """
    collectives = sys.modules.get("torch.distributed")
    if collectives is None or not collectives.is_initialized():
        return
    threading._shutdown()  # type: ignore[attr-defined]  # as in the normal end: other threads, then exit handlers
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
