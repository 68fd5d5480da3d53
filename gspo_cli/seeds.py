"""Stateless seeds: every random number derives from a hash, so a run has no generator state to save.

A seed is the hash of its purpose: the run's seed, the stream (`"sample"`, `"data"`, ...) and its keys. The algorithm's
name is left out, so two algorithms with one seed see the same prompts and, at equal weights, draw the same samples, as
a paired comparison needs.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

GAMMA, FIRST, SECOND = (value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""splitmix64's constants (Steele, Lea and Flood 2014) as int64; the first is its golden gamma."""


def derive_seed(run_seed: int, stream: str, *keys: int | str) -> int:
    """A non-negative 63-bit seed. JSON keeps `("1", "23")` and `("12", "3")` apart, and `1` and `"1"`."""
    text = json.dumps(["gspo-seed-1", stream, run_seed, *keys], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@lru_cache(maxsize=2)
def permutation(size: int, seed: int) -> tuple[int, ...]:
    """The numbers 0..size-1 in an order that depends only on the seed, not on a library's generator.

    The last two are kept: every batch of an epoch asks for the same one.
    """
    return tuple(sorted(range(size), key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest()))


def mix_bits(bits: Any) -> Any:
    """splitmix64's output function, of an int64 array of numpy or tensor of torch: products wrap around."""
    bits = (bits ^ shift_right(bits, 30)) * FIRST
    bits = (bits ^ shift_right(bits, 27)) * SECOND
    return bits ^ shift_right(bits, 31)


def shift_right(bits: Any, by: int) -> Any:
    """A logical shift."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
