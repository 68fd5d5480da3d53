"""`study.json`: what a study was to train, so that a study that was cut short can be finished."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.plugins import look_beside
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.read import read_object
from gspo_cli.runlog.seal import seal_files
from gspo_cli.training.cold_start import locked
from gspo_cli.training.resume import has_begun
from gspo_cli.training.study import Run
from gspo_cli.training.study import plan as plan_runs

NAME = "study.json"
LOCK = "study.lock"


@dataclass(frozen=True)
class Plan:
    """What one `gspo train` was asked for."""

    recipe: Recipe
    arms: list[str]
    seeds: list[int]
    text: str
    """The recipe's file."""
    modules: tuple[str, ...] = ()
    """The folders of the modules that it names."""

    def as_table(self) -> dict[str, Any]:
        """As JSON. Only what was set: an algorithm's preset must not take a default for a wish."""
        recipe = self.recipe.model_dump(mode="json", exclude_unset=True)
        table = {"recipe": recipe, "arms": self.arms, "seeds": self.seeds, "text": self.text}
        return table | ({"modules": list(self.modules)} if self.modules else {})

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Plan:
        """What `as_table` gave; the modules that it names are found from now on."""
        modules = tuple(table.get("modules", ()))
        for folder in reversed(modules):
            look_beside(Path(folder))
        return cls(Recipe.model_validate(table["recipe"]), table["arms"], table["seeds"], table["text"], modules)


@dataclass(frozen=True)
class Planned:
    """One run of a study."""

    folder: Path
    run: Run | None
    """What to train if it has not begun; None for one that is known by its own folder alone."""
    plan: Plan | None = None


def record_plan(study: Path, plan: Plan) -> None:
    """Adds to the study's plans, once; a study may be enlarged by a later command, or by several at once."""
    study.mkdir(parents=True, exist_ok=True)
    with locked(study / LOCK):
        plans = read_plans(study) if (study / NAME).exists() else []
        entry = plan.as_table()
        if entry not in plans:
            write_text(study / NAME, json.dumps({"schema": 1, "plans": [*plans, entry]}, indent=1))
            seal_files(study, [study / NAME])


def read_plans(study: Path) -> list[dict[str, Any]]:
    """Errors: GspoError (exit code 6) when the file is not what was written."""
    plans: list[dict[str, Any]] = read_object(study / NAME)["plans"]
    return plans


def to_resume(path: Path) -> list[Planned]:
    """The runs that a path stands for: a run, or all planned runs of a study.

    Errors: GspoError when it is neither.
    """
    if (path / "run.json").is_file() and has_begun(path):
        if (path.parent / NAME).is_file():
            for entry in read_plans(path.parent):
                Plan.from_table(entry)  # for its modules
        return [Planned(path, None)]
    if (path.parent / NAME).is_file() and not (path / NAME).is_file():
        return [planned for planned in planned_runs(path.parent) if planned.folder.name == path.name] or _nothing(path)
    if (path / NAME).is_file():
        return planned_runs(path)
    return _nothing(path)


def with_plans(path: Path) -> list[Planned]:
    """The same with what each was asked for, by which another machine can train it; a run's is in its study.

    Errors: GspoError for a path that is neither, or a run outside of its study.
    """
    if (path / NAME).is_file():
        return planned_runs(path)
    inside = (path.parent / NAME).is_file() and planned_runs(path.parent)
    found = [planned for planned in inside or () if planned.folder.name == path.name]
    if not found:
        raise GspoError(
            f"no study in {path}, and no run of one",
            f"neither it nor the folder around it has a {NAME} that names it",
            "give a study's folder, or one of its runs; a run on its own goes on without --launcher ray",
        )
    return found


def planned_runs(study: Path) -> list[Planned]:
    """All of them in the order of their plans; a later plan of the same run replaces an earlier one."""
    found: dict[str, Planned] = {}
    for entry in read_plans(study):
        asked = Plan.from_table(entry)
        for run in plan_runs(asked.recipe, asked.arms, asked.seeds):
            found[run.name] = Planned(study / run.name, run, asked)
    return list(found.values())


def _nothing(path: Path) -> list[Planned]:
    raise GspoError(
        f"nothing to resume in {path}",
        "it is neither a run (run.json and a checkpoint) nor a study (study.json)",
        "give the folder that `gspo train` printed",
    )
