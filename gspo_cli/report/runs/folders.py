"""Studies and runs on disk: `<root>/<study>/<arm>-s<seed>/`, recognised by their `run.json`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.archive import SUFFIX, unpack
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.report.runs.synthetic import synthetic_settings
from gspo_cli.runlog.folder import find_folder, newest_run, only_run, unknown_folder
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.sanitize import sanitize


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run folder."""

    folder: Path
    run_id: str
    arm: str
    algorithm: str
    """`algo.name` of its `config.json`; the arm may have another name."""
    replay: str
    """Routing Replay, `algo.replay`: `none`, `r2` or `r3`."""
    seed: int
    baseline: str = ""
    """The arm that its recipe compares the others with."""
    remark: str = ""
    """What its figures must say: synthetic noise and row lengths, and what a step of an imported run is."""
    invalid: str | None = None
    """The reason in its `invalidated.json`; None = the run counts."""


@dataclass(frozen=True, slots=True)
class Study:
    """The runs of a report."""

    folder: Path
    """The study's folder, or the run's if the report is of a single run; figures go to `figures/` in it."""
    runs: tuple[StoredRun, ...]
    """Sorted by arm and seed."""


def find_study(name: str | None, root: Path) -> Study:
    """The study, or the single run, that a name means (see `find_folder`), or a study's archive, which is then unpacked
    under `root`; None = the newest study.

    Errors: GspoError if there is none, or if it holds no run.
    """
    if name is None:
        return read_study(newest_run(root).parent)
    places = (Path(name), root / name)
    if archives := [path for path in places if path.is_file() and path.name.endswith(SUFFIX)]:
        return read_study(unpack(archives[0], root, read_study))
    folder = find_folder(name, root) or next((path for path in places if path.is_dir()), None)
    if folder is None:
        raise unknown_folder("study", name, root)
    return read_study(folder)


def find_run(name: str | None, root: Path) -> StoredRun:
    """The run that a name means (see `find_folder`), or the only run of such a study; None = the newest run.

    Errors: GspoError if there is none, or more than one.
    """
    folder = newest_run(root) if name is None else find_folder(name, root)
    if folder is None:
        raise unknown_folder("run", str(name), root)
    return read_study(only_run(folder)).runs[0]


def read_study(folder: Path) -> Study:
    """All runs of a study folder, or the one run of a run folder.

    Errors: GspoError if there is none, if two have the same arm and seed, or if a file of a run is corrupt.
    """
    files = [folder / "run.json"] if (folder / "run.json").is_file() else sorted(folder.glob("*/run.json"))
    if not files:
        studies = sorted({str(path.parent.parent) for path in folder.glob("*/*/run.json")})
        raise GspoError(
            f"no run in {folder}",
            "it holds studies" if studies else "neither it nor a folder in it has a run.json",
            f"give one of them: {', '.join(studies[:4])}"
            if studies
            else "give the folder of a study or a run; `gspo train` makes one",
        )
    runs = sorted((_read_run(p.parent) for p in files), key=lambda run: (run.arm, run.seed))
    for one, other in itertools.pairwise(runs):
        if (one.arm, one.seed) == (other.arm, other.seed):
            raise GspoError(
                f"two runs of arm {one.arm!r} with seed {one.seed} in {folder}",
                f"{one.folder.name} and {other.folder.name} would count as one",
                "move one of them out of the study",
                ExitCode.CHECK_FAILED,
            )
    return Study(folder, tuple(runs))


def overlaid(studies: Sequence[Study], root: Path) -> Study:
    """The runs of several studies as one under `root`, to be drawn: an arm is called `<study>/<arm>`, and none is the
    baseline of another. Errors: GspoError for two studies of one name."""
    names = [study.folder.resolve().name for study in studies]
    if len(set(names)) < len(names):
        raise GspoError(
            f"two studies are called {max(names, key=names.count)}",
            "their arms would have the same names",
            "rename the folder of one",
        )
    named = zip(names, studies, strict=True)
    runs = [replace(run, arm=f"{name}/{run.arm}", baseline="") for name, study in named for run in study.runs]
    return Study(root / "+".join(names), tuple(runs))


def _read_run(folder: Path) -> StoredRun:
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise corrupt(str(path), "it is no ordinary file")
    run_json, config_json = folder / "run.json", folder / "config.json"
    about, config = read_object(run_json), read_object(config_json)
    note, step_is = folder / "invalidated.json", about.get("step_is", "rollout batch")
    imported = "" if step_is == "rollout batch" else f"Imported: what is called a rollout batch is one {step_is}."
    algo = {"replay": "none", **algo} if isinstance(algo := config.get("algo"), dict) else {}
    return StoredRun(
        folder=folder,
        run_id=_field(run_json, about, "run_id", str),
        arm=sanitize(_field(run_json, about, "arm", str)),
        algorithm=sanitize(_field(config_json, algo, "name", str)),
        replay=_field(config_json, algo, "replay", str),
        seed=_field(run_json, about, "seed", int),
        baseline=str(report.get("baseline", "")) if isinstance(report := config.get("report"), dict) else "",
        remark=" ".join(filter(None, (synthetic_settings(config), imported))),
        invalid=str(read_object(note).get("reason") or "no reason given") if note.is_file() else None,
    )


def _field(file: Path, table: dict[str, Any], key: str, kind: type[Any]) -> Any:
    if type(table.get(key)) is not kind:
        raise corrupt(str(file), f"`{key}` is {table.get(key)!r}, not a {kind.__name__}")
    return table[key]
