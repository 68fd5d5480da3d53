"""A module of the user's own, for the tests of rewards."""

import sys
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `own_rewards`, to be filled with functions."""
    module = ModuleType("own_rewards")
    monkeypatch.setitem(sys.modules, "own_rewards", module)
    return module
