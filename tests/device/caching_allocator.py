"""torch's caching allocator for a GPU, as far as it decides what can be given back to the driver; nothing is stored.

Sizes are rounded up to 512 bytes. Up to 1 MiB comes out of segments of 2 MiB, up to 10 MiB out of 20 MiB, larger ones
have a segment of their own, rounded to 2 MiB. The smallest free block that fits is taken, and split if more than 1 MiB
is left over (512 bytes in a small segment); free neighbours are joined. `empty_cache` returns the segments that are
free as a whole. With expandable segments there is one endless segment for either size, and free pages (2 and 20 MiB) of
it are returned. (https://docs.pytorch.org/docs/stable/notes/cuda.html, c10/cuda/CUDACachingAllocator.cpp)
"""

from __future__ import annotations

import bisect
import weakref
from dataclasses import dataclass, field

from pretend_device import Marks
from torch import Tensor

MIB = 1 << 20


class OutOfMemory(RuntimeError):
    """The driver has no more."""


@dataclass
class Driver:
    """The GPU's memory in bytes, for whoever asks."""

    capacity: float
    used: int = 0
    most: int = 0

    def take(self, size: int) -> None:
        if self.used + size > self.capacity:
            raise OutOfMemory(f"{size / MIB:.0f} MiB wanted, {(self.capacity - self.used) / MIB:.0f} free")
        self.used += size
        self.most = max(self.most, self.used)

    def give(self, size: int) -> None:
        self.used -= size


@dataclass
class Segment:
    """Its memory, cut into blocks; those in `taken` are in use."""

    size: int
    starts: list[int] = field(default_factory=lambda: [0])
    taken: set[int] = field(default_factory=set)

    def blocks(self) -> list[tuple[int, int]]:
        """The free ones: (size, start)."""
        ends = [*self.starts[1:], self.size]
        return [(end - start, start) for start, end in zip(self.starts, ends, strict=True) if start not in self.taken]

    def take(self, start: int, size: int, rest: int) -> None:
        """The block, or the part of it that is needed, if more than `rest` bytes are left over."""
        self.taken.add(start)
        at = bisect.bisect(self.starts, start)
        end = self.starts[at] if at < len(self.starts) else self.size
        if end - start - size > rest:
            self.starts.insert(at, start + size)

    def free(self, start: int) -> None:
        """Joined with free neighbours."""
        self.taken.discard(start)
        at = bisect.bisect_left(self.starts, start)
        if at + 1 < len(self.starts) and self.starts[at + 1] not in self.taken:
            del self.starts[at + 1]
        if at > 0 and self.starts[at - 1] not in self.taken:
            del self.starts[at]


class CachingAllocator:
    """Of one GPU."""

    def __init__(self, driver: Driver, expandable: bool = False) -> None:
        self.driver, self.expandable = driver, expandable
        self.segments: dict[bool, list[Segment]] = {True: [], False: []}
        self.pages: dict[bool, set[int]] = {True: set(), False: set()}
        self.allocated = 0

    @property
    def reserved(self) -> int:
        """Bytes taken from the driver."""
        if self.expandable:
            return sum(len(self.pages[small]) * page_size(small) for small in (True, False))
        return sum(segment.size for kind in self.segments.values() for segment in kind)

    def malloc(self, size: int) -> tuple[bool, Segment, int, int]:
        """Errors: OutOfMemory, after the cache was emptied."""
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        segment, start = self._mapped(size, small) if self.expandable else self._fitting(size, small)
        segment.take(start, size, 511 if small else MIB)
        self.allocated += size
        return small, segment, start, size

    def free(self, block: tuple[bool, Segment, int, int]) -> None:
        _, segment, start, size = block
        segment.free(start)
        self.allocated -= size

    def empty_cache(self) -> None:
        """Everything that can be given back."""
        before = self.reserved
        for small, kind in self.segments.items():
            if self.expandable:
                self.pages[small] &= self._pages(small, used=True)
            else:
                kind[:] = [segment for segment in kind if segment.taken]
        self.driver.give(before - self.reserved)

    def _fitting(self, size: int, small: bool) -> tuple[Segment, int]:
        found = [(*b, i) for i, s in enumerate(self.segments[small]) for b in s.blocks() if b[0] >= size]
        if found:
            _, start, i = min(found)
            return self.segments[small][i], start
        whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        self._take(whole)
        self.segments[small].append(Segment(whole))
        return self.segments[small][-1], 0

    def _mapped(self, size: int, small: bool) -> tuple[Segment, int]:
        """The block for which the fewest new pages are needed."""
        if not self.segments[small]:
            self.segments[small].append(Segment(1 << 60))
        [segment] = self.segments[small]
        page = page_size(small)

        def missing(start: int) -> set[int]:
            return set(range(start // page, -(-(start + size) // page))) - self.pages[small]

        _, _, start = min((len(missing(start)), b, start) for b, start in segment.blocks() if b >= size)
        pages = missing(start)
        self._take(len(pages) * page)
        self.pages[small] |= pages
        return segment, start

    def _pages(self, small: bool, used: bool) -> set[int]:
        """The pages that blocks in use lie on."""
        found, page = set[int](), page_size(small)
        for segment in self.segments[small]:
            for start, end in zip(segment.starts, [*segment.starts[1:], segment.size], strict=True):
                if (start in segment.taken) == used:
                    found |= set(range(start // page, -(-end // page)))
        return found

    def _take(self, size: int) -> None:
        try:
            self.driver.take(size)
        except OutOfMemory:
            self.empty_cache()
            self.driver.take(size)


def page_size(small: bool) -> int:
    """Of an expandable segment."""
    return 2 * MIB if small else 20 * MIB


class Metered(Marks):
    """What is on the pretended device takes memory of the allocator, `scale` bytes for each of its own."""

    def __init__(self, allocator: CachingAllocator, scale: int) -> None:
        super().__init__()
        self.allocator, self.scale, self.others = allocator, scale, False
        """`others` = what is made now is not the trainer's."""

    def add(self, tensor: Tensor) -> None:
        if tensor not in self and not self.others:
            storage = tensor.untyped_storage()
            block = self.allocator.malloc(self.scale * storage.nbytes())
            weakref.finalize(storage, self.allocator.free, block)
        super().add(tensor)
