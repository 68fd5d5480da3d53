"""What the official evaluator takes away from programs. Not protection (the sandbox is that): parity of verdicts."""

import builtins
import importlib
import os
import shutil
import subprocess
import sys
from types import ModuleType

TAKEN: dict[ModuleType, str] = {
    builtins: "quit help",
    os: (
        "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate replace "
        "unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir"
    ),
    shutil: "rmtree move chown",
    subprocess: "Popen",
}
NO_IMPORT = ("ipdb", "joblib", "resource", "psutil", "tkinter")
# The official process holds these before it takes anything away, and importing them afterwards fails or is slow.
HELD = {
    "numpy": "numpy",
    "open": "unittest.mock",
    "multiprocessing": "multiprocessing",
    "concurrent": "concurrent.futures.process",
}


def take_away(program: str) -> None:
    """Disables them for the rest of the process, after importing what the program's text mentions of `HELD`."""
    for word, module in HELD.items():
        if word in program:
            try:
                importlib.import_module(module)
            except ImportError:  # the program will find out for itself
                continue
    for owner, names in TAKEN.items():
        for name in names.split():
            setattr(owner, name, None)
    for name in NO_IMPORT:
        sys.modules[name] = None  # type: ignore[assignment]
