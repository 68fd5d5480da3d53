"""The process in which math-verify compares two answers: a program that takes a JSON line and gives one.

It imports nothing of this package. It lives no longer than its parent: end of file ends it at once, and should it be
busy beyond hearing, the kernel's timer does. What it reads is parsed as LaTeX and never evaluated as a program.
"""

import json
import logging
import os
import queue
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

MEMORY = 4 * 2**30  # bytes of address space
ALARM_S = 4.0  # for one comparison; the parent gives up sooner, if it is there


def read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Passes lines on; ends the process when there will be no more."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def number_only(text: str, *_args: Any, **_kwargs: Any) -> Any:
    """In place of sympy's `parse_expr`, through which sympy would evaluate a string as Python.

    Errors: ValueError for anything but a numeral.
    """
    import sympy

    if re.fullmatch("[0-9]+", text):
        return sympy.Integer(int(text))
    if re.fullmatch(r"[0-9]+\.[0-9]*|\.[0-9]+", text):
        return sympy.Float(text)
    raise ValueError("not a numeral")


def comparison() -> Callable[[str, str], dict[str, Any]]:
    """The function that compares gold and answer, warmed up: what is imported at first use is imported here."""
    import sympy.core.random
    import sympy.parsing.sympy_parser
    from math_verify import LatexExtractionConfig, parse, verify

    only_latex = [LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)]

    def read(text: str) -> list[Any]:
        # the first match only: a fraction within an answer that cannot be read is not the answer
        return list(parse(f"\\boxed{{{text}}}", only_latex, extraction_mode="first_match", parsing_timeout=None))

    def compare(gold: str, answer: str) -> dict[str, Any]:
        sympy.core.random.seed(0)  # the same verdict in whichever worker
        try:
            same = verify(read(gold), read(answer), allow_set_relation_comp=True, timeout_seconds=None)
        except MemoryError:
            return {"error": "memory"}
        return {"same": bool(same)}

    compare("(x+1)^2", "x^2+2x+1")  # a module that `simplify` imports builds its constants with `parse_expr`
    sympy.parsing.sympy_parser.parse_expr = number_only
    return compare


def main() -> None:
    """Says hello, then answers each line."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints is no reply
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    compare = comparison()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    while True:
        item = json.loads(lines.get())
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        found = compare(item["gold"], item["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"id": item["id"], **found}), file=replies, flush=True)


if __name__ == "__main__":
    main()
