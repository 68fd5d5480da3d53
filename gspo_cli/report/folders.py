"""Studies and runs on disk: `<root>/<study>/<arm>-s<seed>/`, known by their `run.json`."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.jsonl import corrupt, read_object

PUBLISHED = "published"
"""Committed evidence under the output root; never taken for the newest study."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder."""

    folder: Path
    run_id: str
    arm: str
    algorithm: str
    """`algo.name` of its `config.json`; the arm's label may be another name."""
    replay: str
    """Routing Replay, `algo.replay`: `none`, `r2` or `r3`."""
    seed: int


@dataclass(frozen=True, slots=True)
class Study:
    """The runs that a report is about."""

    folder: Path
    """The study's folder, or the run's if a single run was asked for; figures go to `figures/` in it."""
    runs: tuple[Run, ...]
    """Sorted by arm and seed."""


def find_study(name: str | None, root: Path) -> Study:
    """The study that `name` means: a study folder, a run folder, either of them under `root`; None = the newest.

    Errors: GspoError if there is none, or if it holds no run.
    """
    if name is None:
        return read_study(newest_study(root))
    for folder in (Path(name), root / name):
        if folder.is_dir():
            return read_study(folder)
    near = difflib.get_close_matches(name, [p.name for p in root.glob("*") if p.is_dir()], n=1)
    raise GspoError(
        f"no study {name!r}",
        f"it is neither a folder nor a name under {root}",
        f"did you mean {near[0]!r}?" if near else "give the path of a study, or `--out ROOT` where it lies",
    )


def newest_study(root: Path) -> Path:
    """The study whose runs hold the newest `created`, `published/` apart.

    Errors: GspoError if there is no run under `root`.
    """
    files = [p for p in root.glob("*/*/run.json") if p.parent.parent.name != PUBLISHED]
    if not files:
        raise GspoError(
            f"no study under {root}",
            "no folder <study>/<run>/ in it has a run.json",
            "train first (`gspo train`), or give the path of a study or `--out ROOT`",
        )
    return max((_created(p), p.parent.parent) for p in files)[1]


def read_study(folder: Path) -> Study:
    """All runs of a study folder, or the one run of a run folder.

    Errors: GspoError if there is none, if two have the same arm and seed, or if a file of theirs is corrupt.
    """
    files = [folder / "run.json"] if (folder / "run.json").is_file() else sorted(folder.glob("*/run.json"))
    if not files:
        raise GspoError(
            f"no run in {folder}",
            "neither it nor a folder in it has a run.json",
            "give the folder of a study or a run; `gspo train` makes one",
        )
    runs = sorted((_read_run(p.parent) for p in files), key=lambda run: (run.arm, run.seed))
    for one, other in _twins(runs):
        raise GspoError(
            f"two runs of arm {one.arm!r} with seed {one.seed} in {folder}",
            f"{one.folder.name} and {other.folder.name} would count as one",
            "move one of them out of the study",
            ExitCode.CHECK_FAILED,
        )
    return Study(folder, tuple(runs))


def _twins(runs: list[Run]) -> Iterator[tuple[Run, Run]]:
    return ((a, b) for a, b in itertools.pairwise(runs) if (a.arm, a.seed) == (b.arm, b.seed))


def _created(file: Path) -> datetime:
    try:
        created = datetime.fromisoformat(read_object(file)["created"])
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(str(file), f"`created` is not an ISO time: {error}") from error
    return created if created.tzinfo else created.replace(tzinfo=UTC)


def _read_run(folder: Path) -> Run:
    about, config = read_object(folder / "run.json"), read_object(folder / "config.json")
    algo = {"replay": "none", **algo} if isinstance(algo := config.get("algo"), dict) else {}
    return Run(
        folder=folder,
        run_id=_field(folder / "run.json", about, "run_id", str),
        arm=_field(folder / "run.json", about, "arm", str),
        algorithm=_field(folder / "config.json", algo, "name", str),
        replay=_field(folder / "config.json", algo, "replay", str),
        seed=_field(folder / "run.json", about, "seed", int),
    )


def _field(file: Path, table: dict[str, Any], key: str, kind: type[Any]) -> Any:
    if type(table.get(key)) is not kind:
        raise corrupt(str(file), f"`{key}` is {table.get(key)!r}, not a {kind.__name__}")
    return table[key]
