"""The harness of the crash points: kills, resumes, compares."""

import json
import os
import shutil
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import toy
from program import tree

from gspo_cli.config import Recipe
from gspo_cli.runlog.checksums import read_checksums, sha256_of

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


def fault(recipe: Recipe, folder: Path, point: Point) -> str | None:
    """What differs after the kill of a fork and the resume here, if anything does."""
    study, said = (folder / f"{what}-{point.index}-{point.torn}" for what in ("study", "said"))
    shutil.rmtree(study, ignore_errors=True)

    def killed() -> None:
        toy.Disk(*point).install()
        toy.train(recipe, study)

    code = toy.in_child(killed, said)
    if code != -9:
        return f"not killed but ended with {code}: {said.read_text()}"
    before = toy.checkpoints(study / RUN)
    try:
        toy.train(recipe, study)
    except Exception:
        return f"the resume failed: {traceback.format_exc()}"
    found = difference(study / RUN, folder / "whole" / RUN, before)
    shutil.rmtree(study)
    return found


def difference(run: Path, whole: Path, before: list[int]) -> str | None:
    """The first way in which a resumed run is not the uninterrupted one."""
    if (run / "metrics.jsonl").read_bytes() != (whole / "metrics.jsonl").read_bytes():
        return "metrics.jsonl differs"
    for kind in ("checkpoints", "rollouts"):
        mine, theirs = tree(run / kind), tree(whole / kind)
        if names := mine.keys() ^ theirs.keys() or {n for n in mine if mine[n] != theirs[n]}:
            return f"{kind} differ: {sorted(names)[:3]}"
    if left := [p.name for p in run.rglob("*") if p.name.startswith((".tmp-", ".del-"))]:
        return f"left behind: {left}"
    resumed_from = [start["resumed_from"] for start in toy.events(run, "start") if "resumed_from" in start]
    if before and resumed_from and resumed_from[-1] != before[-1]:
        return f"resumed from {resumed_from[-1]} although {before[-1]} was whole"
    if read_checksums(run).get("events.jsonl", {}).get("sha256") != sha256_of(run / "events.jsonl"):
        return "not sealed"
    if toy.events(run, "resume_diverged"):
        return "a repeated line differed"
    return None


def faults(
    recipe: Recipe, folder: Path, some: Iterable[Point], breakage: Callable[[], object] = lambda: None, most: int = 999
) -> dict[str, str]:
    """Point -> fault, in `JOBS` processes that stop after `most` faults of one of them."""
    some, workers, enough = list(some), [], folder / "enough"
    enough.unlink(missing_ok=True)
    for job in range(JOBS):
        worker = os.fork()
        if not worker:
            found: dict[str, str] = {}
            try:
                breakage()
                for point in some[job::JOBS]:
                    if not enough.exists() and (why := fault(recipe, folder, point)):
                        found[str(tuple(point))] = why
                        if len(found) >= most:
                            enough.touch()
                (folder / f"faults-{job}.json").write_text(json.dumps(found))
            finally:
                os._exit(0)
        workers.append(worker)
    for worker in workers:
        os.waitpid(worker, 0)
    return {k: v for job in range(JOBS) for k, v in json.loads((folder / f"faults-{job}.json").read_text()).items()}
