"""Calls one function once in an ordinary interpreter, for the `script` grader: no stand-ins, no state between tests.

The prelude is kept because programs for LeetCode rely on it; the program is compiled on its own. Runs as `start.py`.
"""

import json
import os
import sys
from types import ModuleType
from typing import Any

from gspo_cli.rewards.code.harness import candidate
from gspo_cli.rewards.code.harness.channel import Encoder, greet

# Bound now: the program may replace what these modules hold.
_dumps, _loads, _exit = json.dumps, json.loads, os._exit


def main() -> None:
    """Hello, program, arguments, one result."""
    channel, header, program = greet()
    try:
        method = load(program, header["fn_name"])
        channel.send({"status": "loaded"})
        _, text = channel.receive()
        arguments = [_loads(line) for line in text.decode("utf-8", "surrogatepass").split("\n")]
        encoder = Encoder()
        data = _dumps(encoder.encode(method(*arguments))).encode()
    except BaseException as error:  # an exit or an interrupt within a function is an error too
        channel.send({"status": "runtime_error", "error": type(error).__name__})
        _exit(1)
    if len(data) > header["cap"]:
        channel.send({"status": "output_limit"})
    else:
        channel.send({"status": "ok", "unprintable": encoder.too_long}, data)
    _exit(0)


def load(program: str, name: str) -> Any:
    """The method of a new `Solution`, or the function, that `program` itself defines."""
    module = ModuleType("solution")
    sys.modules["solution"] = module
    own = candidate.defines(program, name)
    exec(candidate.PRELUDE, module.__dict__)
    exec(compile(program, "<program>", "exec", dont_inherit=True), module.__dict__)
    if hasattr(module, "Solution"):
        return getattr(module.Solution(), name)
    if not own:
        raise AttributeError(name)
    return getattr(module, name)


if __name__ == "__main__":
    main()
