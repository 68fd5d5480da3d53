"""Stateless uniform numbers: token t of a sample uses a hash of (its seed, t), whatever shares its batch."""

import numpy as np
from numpy.typing import NDArray


def uniforms(seeds: NDArray[np.uint64], first: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for tokens first..first+count-1 of each seed: [len(seeds), count].

    splitmix64 (Steele, Lea and Flood 2014) of seed + (t + 1) * golden gamma, its upper 53 bits as a float64.
    """
    with np.errstate(over="ignore"):
        counter = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = seeds[:, None] + counter[None, :]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    upper: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64)
    return upper * 2.0**-53
