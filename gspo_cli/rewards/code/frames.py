"""The grader's end of the frames (`harness/channel.py` is the other): every read has a deadline and a cap."""

from __future__ import annotations

import json
from typing import Any

from gspo_cli.rewards.code.harness.channel import LENGTHS
from gspo_cli.sandbox.process import Process

MAX_HEADER = 1 << 16


class Garbled(Exception):
    """The other side sent what the harness never sends: the program wrote into the channel."""


def send(process: Process, header: dict[str, Any], payload: bytes, deadline: float) -> None:
    """One frame to the harness. Errors: Ended, Late."""
    head = json.dumps(header).encode()
    process.write(LENGTHS.pack(len(head), len(payload)) + head + payload, deadline)


def receive(process: Process, deadline: float, cap: int) -> tuple[dict[str, Any], bytes]:
    """The next frame, with a payload of at most `cap` bytes. Errors: Ended, Late, Garbled."""
    head_size, size = LENGTHS.unpack(process.read(LENGTHS.size, deadline))
    if head_size > MAX_HEADER or size > cap:
        raise Garbled
    try:
        header = json.loads(process.read(head_size, deadline))
    except (ValueError, RecursionError) as error:
        raise Garbled from error
    if not isinstance(header, dict):
        raise Garbled
    return header, process.read(size, deadline)
