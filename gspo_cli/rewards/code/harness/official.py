"""Runs a program as LiveCodeBench's evaluator does and reports the result of each test on request.

The rules, oddities included, are those of that evaluator at 28fef95: one process and one module for all tests, a
prelude before the program, SIGALRM as the clock of each test, objects in place of the standard streams. Runs as
`start.py`.
"""  # no `from __future__` here: what `exec` compiles would inherit it

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from io import StringIO
from types import ModuleType
from typing import Any

from gspo_cli.rewards.code.harness import candidate
from gspo_cli.rewards.code.harness.channel import Encoder, greet

# Bound now: the program may replace what these modules hold.
_dumps, _loads, _alarm, _exit = json.dumps, json.loads, signal.alarm, os._exit


class TimeoutException(Exception):
    """The alarm of a test. Its name distinguishes the time limit from other errors (`_failure`)."""


def _on_alarm(_signal: int, _frame: object) -> None:
    print("time limit reached")  # a line of the program's output, as officially
    raise TimeoutException


def main() -> None:
    """Hello, program, then test after test until the grader ends this process."""
    channel, header, program = greet()
    signal.signal(signal.SIGALRM, _on_alarm)
    name, limit = header["fn_name"], header["limit_s"]
    candidate.disable_functions(program)
    sys.argv = [""]
    try:
        method = load(program, name, limit)
    except Exception as error:
        channel.send({"status": "runtime_error", "error": str(error)[:200]})  # if this raises: runner_error
        return
    channel.send({"status": "loaded", "numpy": getattr(sys.modules.get("numpy"), "__version__", None)})
    run: Callable[..., tuple[dict[str, Any], bytes]] = run_stdin if name is None else run_function
    while True:
        _, text = channel.receive()
        try:
            reply, data = run(method, text.decode("utf-8", "surrogatepass"), limit)
        except Exception as error:  # outside the test: a standard stream or a repr that the program has spoilt
            reply, data = {"status": "runtime_error", "error": str(error)[:200]}, b""
        if len(data) > header["cap"]:
            reply, data = {"status": "output_limit"}, b""
        channel.send(reply, data)


def load(program: str, name: str | None, limit: int) -> Callable[..., Any]:
    """The function that the tests call.

    Errors: whatever the program raises while it is executed, its time limit included; AttributeError.
    """
    source = candidate.as_function(program) if name is None else f"{candidate.PRELUDE}\n\n{program}"
    is_own = name is None or "class Solution" in source or candidate.defines(program, name)
    module = ModuleType("tmp_sol", "")
    _alarm(limit)
    try:
        exec(source, module.__dict__)
        owner: Any = module
        if "class Solution" in source:  # anywhere, also in a comment
            owner = module.Solution()
    finally:
        _alarm(0)
    if not is_own:
        raise AttributeError(f"the program does not define {name}")
    method = getattr(owner, name or candidate.FUNCTION)
    if method is None:
        raise AttributeError(name or candidate.FUNCTION)
    return method  # type: ignore[no-any-return]


def run_stdin(function: Callable[[], Any], text: str, limit: int) -> tuple[dict[str, Any], bytes]:
    """What the program prints for one input."""
    _alarm(limit)
    faulthandler.enable()
    captured = StringIO()
    captured.close = lambda _: None  # type: ignore[method-assign, misc, assignment]
    before, sys.stdout = sys.stdout, captured
    try:
        candidate.call_with_stdin(function, text)
        _alarm(0)
    except Exception as error:
        _alarm(0)
        return _failure(error)
    finally:
        _alarm(0)
        faulthandler.disable()
        sys.stdout = before
    return {"status": "ok"}, captured.getvalue().encode("utf-8", "surrogatepass")


def run_function(method: Callable[..., Any], text: str, limit: int) -> tuple[dict[str, Any], bytes]:
    """What the method returns for one argument per line, as typed JSON."""
    arguments = [_loads(line) for line in text.split("\n")]
    _alarm(limit)
    faulthandler.enable()
    try:
        value = method(*arguments)
        _alarm(0)
    except Exception as error:
        _alarm(0)
        return _failure(error)
    finally:
        _alarm(0)
        faulthandler.disable()
    encoder = Encoder()
    sent = encoder.encode(value)
    return {"status": "ok", "unprintable": encoder.odd and _is_unprintable(value)}, _dumps(sent).encode()


def _failure(error: Exception) -> tuple[dict[str, Any], bytes]:
    """Time limit or other error, by the exception's repr. The program may define the repr; it may even raise."""
    text = repr(error)
    late = "timeoutexception" in text.lower()
    return {"status": "time_limit" if late else "runtime_error", "error": text[:200]}, b""


def _is_unprintable(value: Any) -> bool:
    """Whether `str` of it fails, which officially turns a wrong answer into an error."""
    try:
        str(value)
    except Exception:
        return True
    return False


if __name__ == "__main__":
    try:
        main()
    finally:  # whatever escapes, even with threads still running, ends the process at once
        _exit(1)
