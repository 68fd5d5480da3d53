"""The toy run of tests/reliability, for runs on the pretended device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("reliability", "instruments"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

import toy  # noqa: E402

from gspo_cli.runlog import provenance  # noqa: E402

SOURCE = provenance.SOURCE


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's start model."""
    return toy.build_start(tmp_path_factory.mktemp("start"))


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder in memory."""
    yield from toy.in_memory()


@pytest.fixture(autouse=True)
def source() -> Iterator[None]:
    """The toy keeps git out of its runs; other tests want it."""
    yield
    provenance.SOURCE = SOURCE
