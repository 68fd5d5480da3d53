"""The toy run of tests/reliability, for runs on the pretended device."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("reliability", "instruments"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

import toy  # noqa: E402


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's start model."""
    return toy.build_start(tmp_path_factory.mktemp("start"))


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder in memory."""
    yield from toy.in_memory()
