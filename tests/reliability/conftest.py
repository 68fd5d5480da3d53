"""What the tests of the promises share. Every test in this folder carries the marker `reliability`, except how several
processes train together, unless it says so itself: those are the promises of docs/clusters.md."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # so that a recipe can name `toy:letters`

import toy  # noqa: E402

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, which runs respect


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`pytest -m reliability` runs this folder."""
    for item in items:
        if HERE in item.path.parents and not item.path.name.endswith("_ranks.py"):
            item.add_marker("reliability")


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder in memory."""
    yield from toy.in_memory()


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's start model. One run is made with it here, so that forks find all imports and caches done."""
    folder = toy.build_start(tmp_path_factory.mktemp("start"))
    toy.train(toy.recipe(folder), tmp_path_factory.mktemp("warm"))
    return folder
