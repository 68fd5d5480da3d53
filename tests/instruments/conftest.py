"""A stored rollout batch, shared by the tests of `gspo report batch`."""

import pytest
from batch_files import Stored, measured, store

from gspo_cli.instruments.batch.measure import BatchMeasurements


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """A tiny stored rollout batch with its policies; leave them unchanged."""
    return store(tmp_path_factory.mktemp("stored"))


@pytest.fixture(scope="session")
def off_policy(stored: Stored) -> BatchMeasurements:
    """Its measurements with ratios of the later policy."""
    return measured(stored, stored.file, against=True)


@pytest.fixture(scope="session")
def on_policy(stored: Stored) -> BatchMeasurements:
    """The same without a later policy."""
    return measured(stored, stored.file)
