"""The official way to run a stdin program: as a function without arguments, on stand-ins for the standard streams."""

import ast
import builtins
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any

from gspo_cli.rewards.code.harness.prelude import PRELUDE

FUNCTION = "wrapped_function"


def as_function(program: str) -> str:
    """Source whose `wrapped_function` runs the program; the program itself where it cannot be parsed."""
    program = without_guard(program)
    try:
        statements = ast.parse(program).body
        imports: list[ast.stmt] = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
        rest = [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        function = ast.FunctionDef(name=FUNCTION, args=nothing, body=rest, decorator_list=[], lineno=-1)
        return f"{PRELUDE}\n{ast.unparse(ast.Module(imports, []))}\n{ast.unparse(function)}"
    except Exception:  # whatever the parser raises, the program is then compiled as it is
        return program


def without_guard(program: str) -> str:
    """A last statement `if __name__ == '__main__':` becomes its body; its `else` goes."""
    try:
        *before, last = ast.parse(program).body
        if isinstance(last, ast.If) and ast.unparse(last.test).strip() == "__name__ == '__main__'":
            return ast.unparse(ast.Module(before, [])) + "\n" + ast.unparse(ast.Module(last.body, []))
    except Exception:  # also an empty program
        return program
    return program


class Buffer:
    """Stands for `sys.stdin.buffer`: the whole input, and always its first line."""

    def __init__(self, text: str) -> None:
        self.inputs = text.encode("utf-8")

    def read(self, *_: Any) -> bytes:
        return self.inputs

    def readline(self, *_: Any) -> bytes:
        return self.inputs.split(b"\n")[0] + b"\n"


class Stdin:
    """Stands for `sys.stdin`: `readline` reads on, `read` and `readlines` always give everything."""

    def __init__(self, text: str) -> None:
        self.inputs = text
        self._stringio = StringIO(text)
        self.buffer = Buffer(text)

    def read(self, *_: Any) -> str:
        return self.inputs

    def readline(self, *args: Any) -> str:
        return self._stringio.readline(*args)

    def readlines(self, *_: Any) -> list[str]:
        return self.inputs.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stringio, name)


def call(function: Callable[[], Any], text: str) -> None:
    """Runs it on the input `text`. SystemExit is a normal end.

    `from sys import stdin` binds the stream of before the call, which therefore gets stand-ins too; its `readline`
    gives lines without their ends and StopIteration after the last.
    """
    lines = iter(text.split("\n"))
    original, saved = sys.stdin, (sys.stdin, builtins.open)
    stand_ins = {"read": lambda *_: text, "readlines": lambda *_: text.split("\n"), "readline": lambda *_: next(lines)}
    for name, stand_in in stand_ins.items():
        setattr(original, name, stand_in)
    sys.stdin = Stdin(text)  # type: ignore[assignment]
    builtins.open = _open_of(text)
    try:
        function()
    except SystemExit:
        return
    finally:
        sys.stdin, builtins.open = saved
        for name in stand_ins:
            delattr(original, name)


def _open_of(text: str) -> Any:
    """`builtins.open` gives the whole input, whatever the file; made when first called: its import is slow."""
    made: list[Any] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if not made:
            from unittest.mock import mock_open

            made.append(mock_open(read_data=text))
        return made[0](*args, **kwargs)

    return stand_in
