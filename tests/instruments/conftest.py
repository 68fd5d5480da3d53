"""A stored rollout batch, shared by the tests of `gspo report batch`."""

from __future__ import annotations

import pytest
from batch_files import Stored, store


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """A tiny stored rollout batch with its policies; leave them unchanged."""
    return store(tmp_path_factory.mktemp("stored"))
