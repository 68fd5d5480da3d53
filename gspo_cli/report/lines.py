"""Where the lines of a block of a log stand, and their kinds, without parsing them.

N = lines, X = bytes
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPEN, CLOSE, NEWLINE = b"{}\n"
COUNTS, KIND = b'{"counts":{', b',"kind":"'
"""How the log's writer begins a line, and goes on after its counts, which are flat."""
KINDS = ("rollout", "update", "step", "eval")

Array = np.ndarray[Any, Any]


class Lines:
    """The lines of a block."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        bytes_X = np.frombuffer(block, np.uint8)
        self._starts_N, self._ends_N = line_ends(bytes_X)
        closing = np.append(np.flatnonzero(bytes_X == CLOSE), len(block) - 1)
        self._after_N = closing[np.searchsorted(closing, self._starts_N)] + 1
        own_N = _stands(bytes_X, self._starts_N, COUNTS)
        self._kind_N = np.full(len(own_N), -1)
        """Positions in `KINDS`; -1 where the line is not in the writer's own form."""
        for code, kind in enumerate(KINDS):
            self._kind_N[own_N & _stands(bytes_X, self._after_N, KIND + b'%b"' % kind.encode())] = code

    @property
    def own_form(self) -> bool:
        """Whether all are in the form that the log's writer gives them."""
        return bool((self._kind_N >= 0).all())

    def of(self, kind: str, counts: bool = True) -> bytes:
        """Those of a kind, with or without their counts."""
        rows = np.flatnonzero(self._kind_N == KINDS.index(kind))
        starts_N = (self._starts_N if counts else self._after_N)[rows] + 1
        places = zip(starts_N.tolist(), self._ends_N[rows].tolist(), strict=True)
        return b"{".join([b"", *(self._block[start:end] for start, end in places)])


def line_ends(bytes_X: Array) -> tuple[Array, Array]:
    """Where each line begins, and where the next one does, both [N]."""
    ends_N = np.flatnonzero(bytes_X == NEWLINE) + 1
    return np.append(0, ends_N)[:-1], ends_N


def _stands(bytes_X: Array, starts_N: Array, text: bytes) -> Array:
    """Whether the text stands at each place: bool [N]."""
    places = np.minimum(starts_N[:, None] + np.arange(len(text)), len(bytes_X) - 1)
    return np.asarray((bytes_X[places] == np.frombuffer(text, np.uint8)).all(axis=1))
