"""The process that holds an engine's model: `python child.py BACKEND.py SETTINGS`, run by that engine's interpreter.

One JSON object per line, a request in, an answer out, over two private pipes. The interpreter need not have this
package: the files in this folder import only each other, their engine and the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent dies, even by SIGKILL (Linux; elsewhere the pipe's end does it
    at the next request)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)


def main() -> None:
    """Opens the file's `Backend` with the given options and answers requests until the pipe ends.

    Each request names a method of the backend in `do`, which may call `report` with the four numbers of a
    `SamplingProgress`: a line `{"progress": [...]}` before the answer. An exception becomes the answer
    `{"error": ...}`; the caller decides what to make of it.
    """
    program, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    die_with_parent(settings["parent"])
    sys.path.insert(0, str(program.parent))
    with os.fdopen(settings["requests"]) as requests, os.fdopen(settings["answers"], "w") as answers:

        def answer(call: Callable[[], dict[str, Any]]) -> None:
            try:
                text = json.dumps(call())
            except Exception as error:
                text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            print(text, file=answers, flush=True)

        backend: Any = None

        def opened() -> dict[str, Any]:
            nonlocal backend
            backend = import_module(program.stem).Backend(**settings["options"])
            backend.report = lambda *counts: answer(lambda: {"progress": counts})
            return dict(backend.facts)

        answer(opened)
        for line in requests:
            request = json.loads(line)
            answer(lambda request=request: getattr(backend, request.pop("do"))(**request))  # type: ignore[misc]


if __name__ == "__main__":
    main()
