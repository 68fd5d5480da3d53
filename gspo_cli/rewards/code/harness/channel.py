"""The harness's end of the channel to the grader: frames, and results as typed JSON."""

import fcntl
import json
import os
import struct
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

LENGTHS = struct.Struct("!II")
FIRST_PRIVATE = 40  # above what programs use, below the limit of open files

# Bound now: the program may replace what these modules hold.
_read, _write, _exit = os.read, os.write, os._exit
_dumps, _loads = json.dumps, json.loads


class Channel:
    """Frames to and from the grader, on private copies of stdin and stdout."""

    def __init__(self) -> None:
        self._in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE)
        self._out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE)

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """One frame to the grader."""
        head = _dumps(header).encode()
        data = memoryview(LENGTHS.pack(len(head), len(payload)) + head + payload)
        while data:
            data = data[_write(self._out, data) :]

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame. Without one the grader is gone, and the process ends."""
        sizes = LENGTHS.unpack(self._exactly(LENGTHS.size))
        header = _loads(self._exactly(sizes[0]))
        return header, self._exactly(sizes[1])

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = _read(self._in, min(size, 1 << 20))
            if not part:
                _exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def greet() -> tuple[Channel, dict[str, Any], str]:
    """(the channel, the first header, the program), after a hello; from then on the standard streams are empty."""
    sys.set_int_max_str_digits(MAX_DIGITS)
    channel = Channel()
    channel.send({"hello": sys.version.split()[0]})
    header, source = channel.receive()
    _silence()
    return channel, header, source.decode("utf-8", "surrogatepass")


def _silence() -> None:
    """Empty the standard streams, as in the official evaluator's worker."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    sys.__stdin__.close()  # type: ignore[union-attr]
    os.open(os.devnull, os.O_RDONLY)  # descriptor 0 again
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]


MAX_DEPTH = 400  # deeper values are opaque
MAX_DIGITS = 50_000
MAX_BITS = 166_096  # of the largest integer of that many digits
PLAIN_BITS = 14_000  # below the 4300 digits that any Python prints


class Encoder:
    """Encodes one value. `odd`: it held something whose `str` may fail; `too_long`: it held a too long integer."""

    def __init__(self) -> None:
        self.odd = self.too_long = False
        self._open: set[int] = set()

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON types."""
        kind = type(value)
        if value is None or kind is bool or kind is float or kind is str:
            return value
        if issubclass(kind, int):
            return self._integer(int.__add__(value, 0))
        if issubclass(kind, str):
            return str.__str__(value)
        if issubclass(kind, float) and not _numpy(kind):
            return float.__float__(value)
        if id(value) in self._open or depth > MAX_DEPTH:
            return self._opaque()
        self._open.add(id(value))
        try:
            return self._container(value, kind, depth + 1)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, list):
            return ["l", *[self.encode(v, depth) for v in list.__iter__(value)]]
        if issubclass(kind, tuple):
            return ["t", *[self.encode(v, depth) for v in tuple.__iter__(value)]]
        if issubclass(kind, dict):
            return ["d", *[[self.encode(k, depth), self.encode(v, depth)] for k, v in dict.items(value)]]
        if kind is set or kind is frozenset:
            return ["s"]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is Decimal:
            return ["D", str(value)]
        if kind is Fraction and max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
            return ["F", hex(value.numerator), hex(value.denominator)]
        return self._numpy(value, depth) if _numpy(kind) else self._opaque()

    def _integer(self, value: int) -> Any:
        if value.bit_length() < PLAIN_BITS:
            return value
        if value.bit_length() > MAX_BITS or abs(value) >= 10**MAX_DIGITS:
            self.odd = self.too_long = True
            return ["h"]
        return ["i", hex(value)]

    def _numpy(self, value: Any, depth: int) -> Any:
        numpy = sys.modules["numpy"]
        array = numpy.asarray(value)
        if array.size != 1:
            return ["a", list(array.shape), None]
        if array.dtype in (numpy.float16, numpy.float32):
            return ["a", list(array.shape), ["n", "e" if array.dtype == numpy.float16 else "f", float(array.item())]]
        item = array.item()
        return ["a", list(array.shape), self._opaque() if _numpy(type(item)) else self.encode(item, depth)]

    def _opaque(self) -> Any:
        self.odd = True
        return ["o"]


def _numpy(kind: type) -> bool:
    """Whether it is a type of the real numpy module."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, (numpy.generic, numpy.ndarray))
