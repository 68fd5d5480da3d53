"""torch for modules that name it when they are imported and use it when they are called.

A recipe is checked with the settings of algorithms alone, and loading torch takes longer than all the rest of a check.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class LazyTorch(ModuleType):
    """Stands for torch in modules imported within `torch_when_used`."""

    Tensor = Any  # in annotations

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks for
            raise AttributeError(name)
        return getattr(importlib.import_module("torch"), name)


@contextmanager
def torch_when_used() -> Iterator[None]:
    """What is imported in this context loads torch at its first use; afterwards `import torch` is the real one."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = LazyTorch("torch")
    try:
        yield
    finally:
        del sys.modules["torch"]
