"""Every random number of the tool comes from here, so that no run has generator state to save.

A seed is a hash of what it is for: the run's seed, the stream (`"sample"`, `"data"`, ...) and its keys. The
algorithm's name is not hashed: two algorithms with one seed see the same prompts and, at equal weights, draw the
same samples, which is what a paired comparison needs.
"""

import hashlib
import json


def derive_seed(run_seed: int, stream: str, *keys: int | str) -> int:
    """A non-negative 63-bit seed. JSON keeps `("1", "23")` and `("12", "3")` apart, and `1` and `"1"`."""
    text = json.dumps(["gspo-seed-1", stream, run_seed, *keys], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def permutation(size: int, seed: int) -> list[int]:
    """The numbers 0..size-1 in an order that depends on the seed alone (not on a library's generator)."""
    return sorted(range(size), key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())
