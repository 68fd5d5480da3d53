"""A host in a child process: one JSON object a line over two private pipes, a deadline on every exchange.

Its standard output is not used, because libraries print there. The child leads a process group of its own, so that
Ctrl-C reaches the trainer alone and a lost child is killed with all it started; it dies with its parent
(`hosts/child.py`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspo_cli.rollout.host import HostLost, HostRefused
from gspo_cli.rollout.weights import write_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROGRAMS = Path(__file__).parent / "hosts"
REPACK = True
"""Works around the faults of vLLM's reload on CPUs (`hosts/vllm_backend.py`); off only to show that the check sees
them."""


class ProcessHost:
    """The host program `program` run by `python`, in the environment `env`."""

    replaceable = True

    def __init__(
        self, python: str, program: str, options: dict[str, Any], env: dict[str, str], deadline_s: float
    ) -> None:
        self.deadline_s = deadline_s
        self.weights_file = os.memfd_create("gspo-weights") if hasattr(os, "memfd_create") else -1
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        requests_read, self.requests = os.pipe()
        self.answers, answers_write = os.pipe()
        settings = {"requests": requests_read, "answers": answers_write, "parent": os.getpid(), "options": options}
        passed = [requests_read, answers_write] + [f for f in [self.weights_file] if f >= 0]
        self.process = subprocess.Popen(
            [python, PROGRAMS / program, json.dumps(settings)], env=env, pass_fds=passed, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        for inherited in (requests_read, answers_write):
            os.close(inherited)
        os.set_blocking(self.requests, False)
        try:
            self.facts = self._exchange(b"")  # the first line comes unasked, when the model is loaded
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """See `Host.ask`."""
        return self._exchange(json.dumps({"do": do, **request}).encode() + b"\n")

    def load(self, weights: PreTrainedModel, version: int) -> dict[str, Any]:
        """See `Host.load`: the weights go through a file in memory that the child inherited."""
        tensors = write_weights(weights, getattr(torch, str(self.facts["dtype"])), self.weights_file)
        path = f"/proc/self/fd/{self.weights_file}"
        return self.ask("load", version=version, path=path, repack=REPACK) | {"tensors": tensors}

    def close(self) -> None:
        """Kills the process group and waits for the child: it has nothing to save."""
        if self.log.closed:
            return
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        for file in (self.requests, self.answers, self.weights_file):
            if file >= 0:
                os.close(file)

    give_up = close

    def _exchange(self, line: bytes) -> dict[str, Any]:
        """Sends a line and reads one, both before the deadline: a hung child reads no more than it writes."""
        until = time.monotonic() + self.deadline_s
        received = bytearray()
        while not received.endswith(b"\n"):
            left = until - time.monotonic()
            sending = [self.requests] if line else []
            readable, writable, _ = select.select([self.answers], sending, [], max(0.0, left))
            if not readable and not writable:
                raise HostLost(f"no answer within {self.deadline_s:g} s{self._last_words()}")
            try:
                if writable:
                    line = line[os.write(self.requests, line) :]
                part = os.read(self.answers, 1 << 20) if readable else None
            except BrokenPipeError:
                part = b""
            if part == b"":
                code = self.process.wait()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise HostLost(f"the engine's process ended ({how}){self._last_words()}")
            received += part or b""
        answer: dict[str, Any] = json.loads(received)
        if "error" in answer:
            late = answer["error"].startswith(TimeoutError.__name__)  # it looked at its clock before we did
            raise HostLost(answer["error"]) if late else HostRefused(answer["error"])
        return answer

    def _last_words(self) -> str:
        """The last line that it printed, if any."""
        self.log.seek(0)
        lines = self.log.read()[-4000:].decode(errors="replace").split("\n")
        said = [text.strip() for text in lines if text.strip()]
        return f"; it said last: {said[-1]}" if said else ""
