"""The processes that train one run together: who this one is, and what all of them say to each other.

Every rank runs the same program on the same rollout batch. They differ in their share of the prompts to sample, of the
responses to score and of the rows to train on; rank 0 alone writes. A single process is the case of one rank, for which
nothing here does anything.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run."""

    rank: int = 0
    size: int = 1
    local: int = 1
    """Of them on this machine; neighbours by number, as torchrun deals them out."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0

    def share(self, items: list[T]) -> list[T]:
        """This rank's part: every `size`-th, from its own number on."""
        return items[self.rank :: self.size]

    def everywhere(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` gives on each rank, in rank order, as JSON.

        Errors: what failed on one rank fails on all: GspoError with that rank's message. GspoError (exit code 5) when a
        rank is gone.
        """
        if self.size == 1:
            return [work()]
        try:
            mine: dict[str, Any] = {"found": work()}
        except GspoError as error:
            mine = {"failed": [error.message, error.why, error.hint, int(error.code)]}
        said = [json.loads(text) for text in gather(json.dumps(mine).encode())]
        for answer in said:
            if "failed" in answer:
                message, why, hint, code = answer["failed"]
                failed = GspoError(message, why, hint, ExitCode(code))
                failed.shared = True
                raise failed
        return [answer["found"] for answer in said]

    def from_first(self, work: Callable[[], Any]) -> Any:
        """What `work` gives on rank 0, where alone it is done, as JSON.

        Errors: as `everywhere`.
        """
        return self.everywhere(lambda: work() if self.first else None)[0]

    def wait(self) -> None:
        """Returns when all ranks have come here."""
        self.everywhere(lambda: None)

    def total(self, numbers: list[float]) -> list[float]:
        """The sum over the ranks of each number, the same bits on all of them."""
        if self.size == 1:
            return numbers
        said = self.everywhere(lambda: numbers)
        return [sum(column) for column in zip(*said, strict=True)]


ALONE = Ranks()


def in_turn(shares: list[list[T]]) -> list[T]:
    """What `Ranks.share` parted, in its order again; or what was made of it, item by item."""
    whole: list[T | None] = [None] * sum(map(len, shares))
    for rank, share in enumerate(shares):
        whole[rank :: len(shares)] = share
    return whole  # type: ignore[return-value]


def gather(data: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order. Nothing is pickled.

    Errors: GspoError (exit code 5) when a rank is gone or does not answer in time.
    """
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    try:
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
        dist.all_gather(lengths, torch.tensor([len(data)]))
        longest = int(max(lengths))
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts: list[Tensor] = [torch.empty(longest, dtype=torch.uint8) for _ in range(size)]
        dist.all_gather(parts, mine)
    except RuntimeError as error:
        raise lost(error) from error
    return [part[: int(n)].numpy().tobytes() for part, n in zip(parts, lengths, strict=True)]


def lost(error: RuntimeError) -> GspoError:
    """For a collective operation that failed."""
    gone = GspoError(
        "another rank of this run is gone",
        str(error).strip().splitlines()[0],
        "its own message says why; gspo train --resume goes on from the last checkpoint, on any number of ranks",
        ExitCode.ENGINE,
    )
    gone.shared = True
    return gone


def join(timeout_s: float = 4 * 3600) -> Ranks:
    """Meets the other processes that `torchrun` started; one rank where it started none.

    A rank that died is noticed at once; the time limit is for one that hangs, and must outlast the slowest sampling.
    Errors: GspoError (exit code 5) when they do not come.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    import torch
    import torch.distributed as dist

    faulthandler.enable(2)  # what aborts a rank ends without a word; this says where its threads were
    if not dist.is_initialized():
        backend = "cpu:gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            backend = "cpu:gloo,cuda:nccl"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            raise lost(RuntimeError(str(error))) from error
    return Ranks(dist.get_rank(), size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def leave(ranks: Ranks) -> None:
    """Parts from the others in good order: threads of the process group must not outlive it."""
    if ranks.size > 1:
        import torch.distributed as dist

        dist.destroy_process_group()
