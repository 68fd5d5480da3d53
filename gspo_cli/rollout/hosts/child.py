"""How a host process talks: one JSON object a line, a request in, an answer out, over two private pipes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent dies, even by SIGKILL (Linux; elsewhere the pipe's end does it
    at the next request)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)


def serve(open_backend: Callable[[dict[str, Any]], Any]) -> None:
    """Opens a backend with the options of the command line and answers requests until the pipe ends.

    Each request names a method of the backend in `do`; an exception is the answer `{"error": ...}`, and what asked
    decides what to make of it.
    """
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["parent"])
    with os.fdopen(settings["requests"]) as requests, os.fdopen(settings["answers"], "w") as answers:

        def answer(call: Callable[[], dict[str, Any]]) -> None:
            try:
                text = json.dumps(call())
            except Exception as error:
                text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            answers.write(text + "\n")
            answers.flush()

        backend: Any = None

        def opened() -> dict[str, Any]:
            nonlocal backend
            backend = open_backend(settings["options"])
            return dict(backend.facts)

        answer(opened)
        for line in requests:
            request = json.loads(line)
            answer(lambda request=request: getattr(backend, request.pop("do"))(**request))  # type: ignore[misc]
