"""How the official evaluator treats a program: its prelude, the functions it disables, stdin programs as functions."""

import ast
import builtins
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from types import ModuleType
from typing import Any

MODULES = [
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
]  # fmt: skip

IMPORTS = "".join(
    [f"from {name} import *\n" for name in (*MODULES, "builtins", "typing")] + [f"import {name}\n" for name in MODULES]
)
PRELUDE = IMPORTS + "sys.setrecursionlimit(50000)\n"


def defines(program: str, name: str) -> bool:
    """Whether a program's own statements bind `name`; always true for a name that the prelude lacks.

    An empty program must not pass because the prelude happens to have the wanted function (`add`, `gcd`).
    """
    scratch = ModuleType("prelude")
    exec(IMPORTS, scratch.__dict__)
    if not hasattr(scratch, name):
        return True
    import symtable  # rarely needed

    tables = [symtable.symtable(program, "<program>", "exec")]
    while tables:
        table = tables.pop()
        if name in table.get_identifiers():
            symbol = table.lookup(name)
            here = table.get_type() == "module" or symbol.is_declared_global()
            if here and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                return True
        tables += table.get_children()
    return False


DISABLED: dict[ModuleType, str] = {
    builtins: "quit help",
    os: (
        "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate replace "
        "unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir"
    ),
    shutil: "rmtree move chown",
    subprocess: "Popen",
}
BLOCKED_MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")
# The official process has these loaded before it disables anything; importing them later fails or is slow.
PRELOADED = {
    "numpy": "numpy",
    "open": "unittest.mock",
    "multiprocessing": "multiprocessing",
    "concurrent": "concurrent.futures.process",
}


def disable_functions(program: str) -> None:
    """Disable functions and modules for good, after importing those of `PRELOADED` that the program's text mentions."""
    for word, module in PRELOADED.items():
        if word in program:
            try:
                importlib.import_module(module)
            except ImportError:  # the program will see that for itself
                continue
    for owner, names in DISABLED.items():
        for name in names.split():
            setattr(owner, name, None)
    for name in BLOCKED_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]


FUNCTION = "wrapped_function"


def as_function(program: str) -> str:
    """Source whose `wrapped_function` runs the program; the program itself if it cannot be parsed."""
    program = _without_guard(program)
    try:
        statements = ast.parse(program).body
        imports: list[ast.stmt] = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
        rest = [s for s in statements if not isinstance(s, ast.Import | ast.ImportFrom)]
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        function = ast.FunctionDef(name=FUNCTION, args=nothing, body=rest, decorator_list=[], lineno=-1)
        return f"{PRELUDE}\n{ast.unparse(ast.Module(imports, []))}\n{ast.unparse(function)}"
    except Exception:  # whatever the parser raises, the program is compiled as it is
        return program


def _without_guard(program: str) -> str:
    """Replace a last statement `if __name__ == '__main__':` by its body; its `else` is dropped."""
    try:
        *before, last = ast.parse(program).body
        if isinstance(last, ast.If) and ast.unparse(last.test).strip() == "__name__ == '__main__'":
            return ast.unparse(ast.Module(before, [])) + "\n" + ast.unparse(ast.Module(last.body, []))
    except Exception:  # also an empty program
        return program
    return program


class Buffer:
    """Replaces `sys.stdin.buffer`: `read` gives the whole input, `readline` always its first line."""

    def __init__(self, text: str) -> None:
        self.inputs = text.encode("utf-8")

    def read(self, *_: Any) -> bytes:
        return self.inputs

    def readline(self, *_: Any) -> bytes:
        return self.inputs.split(b"\n")[0] + b"\n"


class Stdin:
    """Replaces `sys.stdin`: `readline` reads on, `read` and `readlines` always give everything."""

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


def call_with_stdin(function: Callable[[], Any], text: str) -> None:
    """Run it on the input `text`. SystemExit is a normal end.

    `from sys import stdin` binds the original stream, so that gets stand-ins too; its `readline` gives lines without
    their ends and StopIteration after the last.
    """
    lines = iter(text.split("\n"))
    original, saved = sys.stdin, (sys.stdin, builtins.open)
    stand_ins = {"read": lambda *_: text, "readlines": lambda *_: text.split("\n"), "readline": lambda *_: next(lines)}
    for name, stand_in in stand_ins.items():
        setattr(original, name, stand_in)
    sys.stdin = Stdin(text)  # type: ignore[assignment]
    builtins.open = _open_returning(text)
    try:
        function()
    except SystemExit:
        return
    finally:
        sys.stdin, builtins.open = saved
        for name in stand_ins:
            delattr(original, name)


def _open_returning(text: str) -> Any:
    """An `open` that gives the whole input, whatever the file; created on first use because its import is slow."""
    mocks: list[Any] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if not mocks:
            from unittest.mock import mock_open

            mocks.append(mock_open(read_data=text))
        return mocks[0](*args, **kwargs)

    return stand_in
