"""Chat templates, rendered in a process that has limits: a template is a program that comes with the model."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

PROGRAM = Path(__file__).with_name("template_worker.py")


class TemplateError(Exception):
    """A template refuses what it is given, or exceeds its limits."""


class _Worker:
    """A process that renders, and is replaced when a template has ended it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, request: bytes) -> bytes:
        """The reply; empty if the template has ended the process."""
        with self._lock:
            reply = b""
            try:
                self._process.stdin.write(request)  # type: ignore[union-attr]
                self._process.stdin.flush()  # type: ignore[union-attr]
                reply = self._process.stdout.readline()  # type: ignore[union-attr]
            finally:
                if not reply:  # after Ctrl-C too: a late reply would be taken for the next one
                    self._process.kill()
                    self._process.communicate()
                    self._start()
            return reply


@cache
def _worker(_process: int) -> _Worker:
    """This process's own: a fork would share its pipes. It ends with its input, that is with this process."""
    return _Worker()


def render(template: str, messages: list[dict[str, str]], variables: dict[str, Any]) -> str:
    """The messages as text, ending where the response begins. Errors: TemplateError."""
    request = variables | {"chat_template": template, "messages": messages, "add_generation_prompt": True}
    reply = _worker(os.getpid()).ask(json.dumps(request, default=str).encode() + b"\n")
    if not reply:
        raise TemplateError("it takes more than 5 s of CPU time, or 512 MiB, for one prompt")
    answer = json.loads(reply)
    if "error" in answer:
        raise TemplateError(answer["error"])
    return str(answer["text"])
