"""Sandboxes for tests: the machine's own, and one that runs as another user where we are root."""

import os
from pathlib import Path

import pytest

from gspo_cli.errors import GspoError
from gspo_cli.sandbox.bubblewrap import Bubblewrap, nobody
from gspo_cli.sandbox.choose import open_sandbox
from gspo_cli.sandbox.contract import Sandbox
from gspo_cli.sandbox.machine import find_interpreter

SYSTEM_PYTHON = "/usr/bin/python3"


def own_sandbox() -> Sandbox:
    """As users get it. Without one the test is skipped, or fails where everything must be tested.

    A sandbox that isolates badly always fails.
    """
    try:
        return open_sandbox()
    except GspoError as error:
        if os.environ.get("GSPO_NEEDS_SANDBOX") or "reaches" in error.why:
            raise
        pytest.skip(f"no sandbox: {error.why}")


def plain_user_sandbox() -> Sandbox:
    """Bubblewrap started by `nobody`, as an ordinary user would."""
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("needs root, to become another user, and a Python that all users may read")
    own_sandbox().close()
    return Bubblewrap(find_interpreter(SYSTEM_PYTHON), nobody())
