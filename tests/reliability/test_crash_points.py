"""The real run, killed at every change of a file: each resume ends equal to the uninterrupted run, byte for byte."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import toy

from gspo_cli.checkpoint import protocol
from gspo_cli.config import Recipe
from gspo_cli.runlog import fs, log, repair
from gspo_cli.training import checkpoints

RUN = "gspo-s0"
JOBS = 2


class Point(NamedTuple):
    """Where the process is killed."""

    index: int
    torn: bool


def points(recipe: Recipe, folder: Path) -> list[Point]:
    """All of an uninterrupted run, which is left in `folder/whole`."""
    disk = toy.Disk()

    def whole() -> None:
        disk.install()
        toy.train(recipe, folder / "whole")
        (folder / "changes.json").write_text(json.dumps(disk.done))

    assert toy.in_child(whole, folder / "said") == 0, (folder / "said").read_text()
    disk.done = [(name, where) for name, where in json.loads((folder / "changes.json").read_text())]
    found = [Point(index, False) for index in range(len(disk.done))]
    return found + [Point(index, True) for index in range(len(disk.done)) if disk.can_tear(index)]


def fault(recipe: Recipe, folder: Path, point: Point, breakage: Callable[[], object]) -> str | None:
    """What differs after the kill and the resume, if anything does."""
    study, said = folder / f"{point.index}-{point.torn}", folder / f"said-{point.index}-{point.torn}"

    def killed() -> None:
        breakage()
        toy.Disk(*point).install()
        toy.train(recipe, study)

    def resumed() -> None:
        breakage()
        toy.train(recipe, study)

    code = toy.in_child(killed, said)
    if code != -9:
        return f"not killed but ended with {code}: {said.read_text()}"
    before = toy.checkpoints(study / RUN)
    if (code := toy.in_child(resumed, said)) != 0:
        return f"the resume ended with {code}: {said.read_text()}"
    return difference(study / RUN, folder / "whole" / RUN, before)


def difference(run: Path, whole: Path, before: list[int]) -> str | None:
    """The first way in which a resumed run is not the uninterrupted one."""
    if (run / "metrics.jsonl").read_bytes() != (whole / "metrics.jsonl").read_bytes():
        return "metrics.jsonl differs"
    for kind in ("checkpoints", "rollouts"):
        mine, theirs = (
            {p.relative_to(f).as_posix(): p.read_bytes() for p in sorted((f / kind).rglob("*")) if p.is_file()}
            for f in (run, whole)
        )
        if names := mine.keys() ^ theirs.keys() or {n for n in mine if mine[n] != theirs[n]}:
            return f"{kind} differ: {sorted(names)[:3]}"
    if left := [p.name for p in run.rglob("*") if p.name.startswith((".tmp-", ".del-"))]:
        return f"left behind: {left}"
    resumed_from = [start["resumed_from"] for start in toy.events(run, "start") if "resumed_from" in start]
    if before and resumed_from and resumed_from[-1] != before[-1]:
        return f"resumed from {resumed_from[-1]} although {before[-1]} was whole"
    if toy.events(run, "resume_diverged"):
        return "a repeated line differed"
    return None


def faults(
    recipe: Recipe, folder: Path, some: Iterable[Point], breakage: Callable[[], object] = lambda: None, most: int = 999
) -> dict[str, str]:
    """Point -> fault, in `JOBS` processes that each stop after `most` faults."""
    some, workers = list(some), []
    for job in range(JOBS):
        worker = os.fork()
        if not worker:
            found: dict[str, str] = {}
            try:
                for point in some[job::JOBS]:
                    if len(found) < most and (why := fault(recipe, folder, point, breakage)):
                        found[str(tuple(point))] = why
                (folder / f"faults-{job}.json").write_text(json.dumps(found))
            finally:
                os._exit(0)
        workers.append(worker)
    for worker in workers:
        os.waitpid(worker, 0)
    return {k: v for job in range(JOBS) for k, v in json.loads((folder / f"faults-{job}.json").read_text()).items()}


def test_killed_at_every_change_of_a_file(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start)
    some = points(recipe, ram)
    assert len(some) > 100
    assert faults(recipe, ram, some) == {}


# Negative controls: each breaks one rule, and the same harness must see it


def save_in_place(folder: Path, step: int, _attempt: int, fill: Callable[[Path], None]) -> object:
    """A checkpoint written under its own name, as most trainers do."""
    target = folder / f"step-{step:06d}"
    target.mkdir(parents=True, exist_ok=True)
    fill(target)
    for path in protocol.files_in(target):
        fs.fsync(path)
    manifest = protocol.describe(target, step)
    (target / "MANIFEST.json").write_text(manifest.text())
    return manifest


def in_place() -> None:
    checkpoints.write = save_in_place  # type: ignore[assignment]


def no_cut() -> None:
    repair.cut = lambda *_: None  # type: ignore[assignment]
    from gspo_cli.training import resume

    resume.cut = lambda *_: None  # type: ignore[assignment]


def old_one_first() -> None:
    """The old checkpoints deleted before the new one is written."""
    real = protocol.write

    def write(folder: Path, step: int, attempt: int, fill: Callable[[Path], None]) -> object:
        for path in protocol.checkpoints(folder):
            fs.remove_tree(path)
        return real(folder, step, attempt, fill)

    checkpoints.write = write  # type: ignore[assignment]


def no_generators() -> None:
    checkpoints.restore_generators = lambda _: None


def no_optimizer() -> None:
    checkpoints.restore_optimizer = lambda *_: None


def numbers_again() -> None:
    """A log that starts to count anew."""
    real = log.RunLog.go_on

    def go_on(self: log.RunLog, _seq: int, num_bytes: int, head: str, dropped: bytes = b"") -> None:
        real(self, 0, num_bytes, head, dropped)

    log.RunLog.go_on = go_on  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "breakage", [in_place, no_cut, old_one_first, no_generators, no_optimizer, numbers_again], ids=lambda f: f.__name__
)
def test_a_broken_variant_is_seen(start: Path, ram: Path, breakage: Callable[[], object]) -> None:
    recipe = toy.recipe(start)
    some = points(recipe, ram)
    half = [point for point in some if point.index > len(some) // 4]
    assert faults(recipe, ram, half[::2], breakage, most=1)


def test_the_order_of_writing_and_forcing(start: Path, ram: Path) -> None:
    """What a kill cannot show: data, then manifest, then folder are forced to the disk before the name exists."""
    points(toy.recipe(start), ram)
    done = [(name, where.removeprefix(str(ram / "whole" / RUN) + "/")) for name, where in
            json.loads((ram / "changes.json").read_text())]  # fmt: skip
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
