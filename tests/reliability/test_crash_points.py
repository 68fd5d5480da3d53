"""The real run, killed at every change of a file: each resume ends equal to the uninterrupted run, byte for byte."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toy
from crashes import RUN, Point, faults, points

from gspo_cli.runlog import fs, log
from gspo_cli.training import run_folder
from gspo_cli.training.state import checkpoint_folder, checkpoints, contents


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder in memory for all tests here."""
    yield from toy.in_memory()


@pytest.fixture(scope="module")
def some(start: Path, shared: Path) -> list[Point]:
    """Every point of an uninterrupted run, which is kept to compare with."""
    return points(toy.recipe(start), shared)


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(start: Path, shared: Path, some: list[Point]) -> None:
    assert len(some) > 100
    assert faults(toy.recipe(start), shared, some) == {}


# Negative controls: each breaks one rule, and the same harness must see it


def save_in_place(folder: Path, step: int, _attempt: int, fill: Callable[[Path], None]) -> object:
    """A checkpoint written under its own name, as most trainers do."""
    target = folder / f"step-{step:06d}"
    target.mkdir(parents=True, exist_ok=True)
    fill(target)
    for path in checkpoint_folder.files_in(target):
        fs.fsync(path)
    manifest = checkpoint_folder.describe(target, step)
    (target / "MANIFEST.json").write_text(manifest.text())
    return manifest


def in_place() -> None:
    checkpoints.write = save_in_place  # type: ignore[assignment]


def no_cut() -> None:
    run_folder.truncate_log = lambda *_: None  # type: ignore[assignment]


def old_one_first() -> None:
    """The old checkpoints deleted before the new one is written."""
    real = checkpoint_folder.write

    def write(folder: Path, step: int, attempt: int, fill: Callable[[Path], None]) -> object:
        for path in checkpoint_folder.list_checkpoints(folder):
            fs.remove_tree(path)
        return real(folder, step, attempt, fill)

    checkpoints.write = write  # type: ignore[assignment]


def no_generators() -> None:
    contents.restore_generators = lambda _: None


def no_optimizer() -> None:
    contents.restore_optimizer = lambda *_: None


def numbers_again() -> None:
    """A log that starts to count anew."""
    real = log.RunLog.resume

    def resume(self: log.RunLog, _seq: int, num_bytes: int, head: str, dropped: bytes = b"") -> None:
        real(self, 0, num_bytes, head, dropped)

    log.RunLog.resume = resume  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(
    "breakage", [in_place, no_cut, old_one_first, no_generators, no_optimizer, numbers_again], ids=lambda f: f.__name__
)
def test_a_broken_variant_is_seen(start: Path, shared: Path, some: list[Point], breakage: Callable[[], object]) -> None:
    late = max(point.index for point in some) * 0.75  # a checkpoint with moments to lose is there, one more is to come
    nearest = sorted(some, key=lambda point: abs(point.index - late))
    assert faults(toy.recipe(start), shared, nearest[::3], breakage, most=1)


@pytest.mark.usefixtures("some")
def test_the_order_of_writing_and_forcing(shared: Path) -> None:
    """What a kill cannot show: data, then manifest, then folder are forced to the disk before the name exists."""
    done = [(name, where.removeprefix(str(shared / "whole" / RUN) + "/")) for name, where in
            json.loads((shared / "changes.json").read_text())]  # fmt: skip
    temporary = "checkpoints/.tmp-step-000002-1"
    order = [index for index, (_, where) in enumerate(done) if where.startswith(temporary)]
    named = [done[index] for index in order]
    manifest = named.index(("fsync", f"{temporary}/MANIFEST.json"))
    folder, rename = named.index(("fsync", temporary)), named.index(("rename", temporary))
    data = [
        i for i, (name, where) in enumerate(named) if name == "fsync" and where.endswith((".safetensors", "state.json"))
    ]
    assert len(data) == 4 and max(data) < manifest < folder < rename
    after = done[order[rename] + 1 :]
    assert after[0] == ("fsync", "checkpoints")
    rotation = next(i for i, (name, where) in enumerate(done) if name == "rename" and where.endswith("step-000000"))
    assert rotation > order[rename] + 1
    log_forced = max(i for i, pair in enumerate(done) if pair == ("fsync", "metrics.jsonl"))
    assert log_forced < order[0]
