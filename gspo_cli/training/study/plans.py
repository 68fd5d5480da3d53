"""`study.json`: what a study trains, so that an interrupted study can be finished."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.plugins import add_search_folder
from gspo_cli.runlog.checksums import add_checksums
from gspo_cli.runlog.folder import StudyFile, read_study_file
from gspo_cli.runlog.fs import write_text
from gspo_cli.training.study.arms import Run, plan_runs

NAME = "study.json"
LOCK = "study.lock"


@dataclass(frozen=True)
class StudyPlan:
    """What one `gspo train` command trains."""

    recipe: Recipe
    arms: list[str]
    seeds: list[int]
    text: str
    """The recipe file."""
    modules: tuple[str, ...] = ()
    """Folders of the user's modules that the recipe names."""

    def as_table(self) -> dict[str, Any]:
        """As JSON, with only the keys that were set: a default must not override an algorithm's preset."""
        recipe = self.recipe.model_dump(mode="json", exclude_unset=True)
        table = {"recipe": recipe, "arms": self.arms, "seeds": self.seeds, "text": self.text}
        given = {key: self.recipe._command_line[key] for key in ("algo", "arms") if key in self.recipe._command_line}
        more = {"command_line": given, "modules": list(self.modules)}
        return table | {key: value for key, value in more.items() if value}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> StudyPlan:
        """The reverse of `as_table`; makes the plan's modules importable. Errors: GspoError (exit code 6)."""
        try:
            modules = tuple(map(str, table.get("modules", ())))
            recipe = Recipe.model_validate(table["recipe"])
            recipe._command_line = dict(table.get("command_line", {}))
            plan = cls(recipe, list(table["arms"]), [int(n) for n in table["seeds"]], str(table["text"]), modules)
        except (LookupError, TypeError, ValueError) as error:
            raise GspoError(
                f"a plan in {NAME} is damaged", f"{type(error).__name__}: {error}", "restore the file from a copy",
                ExitCode.STORAGE,
            ) from error  # fmt: skip
        for folder in reversed(modules):
            add_search_folder(Path(folder))
        return plan


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    folder: Path
    run: Run | None
    """What to train if it has not begun; None for a run that is known by its own folder alone."""
    plan: StudyPlan | None = None


def record_plan(study: Path, plan: StudyPlan, begun: str | None = None) -> None:
    """Adds a plan to the study, once; later commands, or several at once, may enlarge a study.

    `begun` = the folder of a run that begins now: the list of these shows later whether a run was removed.
    """
    from gspo_cli.training.cold_start import locked  # loads torch, which a sweep's checks do without

    study.mkdir(parents=True, exist_ok=True)
    with locked(study / LOCK):
        before = read_study_file(study) if (study / NAME).exists() else StudyFile(plans=[])
        entry = plan.as_table()
        plans = before.plans if entry in before.plans else [*before.plans, entry]
        runs = before.begun if begun is None or begun in before.begun else [*before.begun, begun]
        if StudyFile(plans=plans, begun=runs) != before:
            table = {"schema": 1, "plans": plans} | ({"begun": runs} if runs else {})
            write_text(study / NAME, json.dumps(table, indent=1))
            add_checksums(study, [study / NAME])


def runs_to_resume(path: Path) -> list[PlannedRun]:
    """The runs that a path names: one run, or all planned runs of a study. Errors: GspoError when it names neither."""
    from gspo_cli.training.state.resume import has_begun

    if (path / "run.json").is_file() and has_begun(path):
        if (path.parent / NAME).is_file():
            for entry in read_study_file(path.parent).plans:
                StudyPlan.from_table(entry)  # for its modules
        return [PlannedRun(path, None)]
    if found := _planned_at(path):
        return found
    raise nothing_to_resume(path)


def nothing_to_resume(path: Path) -> GspoError:
    """The error for a path that names neither a run nor a study."""
    return GspoError(
        f"nothing to resume in {path}",
        "it is neither a run (run.json and a checkpoint) nor a study (study.json)",
        "give the folder that `gspo train` printed",
    )


def runs_with_plans(path: Path) -> list[PlannedRun]:
    """The same with the plan of each run, from which another machine can train it.

    Errors: GspoError when the path is neither a study nor a run inside its study.
    """
    if found := _planned_at(path):
        return found
    raise GspoError(
        f"no study in {path}, and no run of one",
        f"neither it nor the folder around it has a {NAME} that names it",
        "give a study's folder or one of its runs; without --launcher ray and --jobs, a single run can be resumed",
    )


def _planned_at(path: Path) -> list[PlannedRun]:
    """The runs of a study in the order of its plans, or the one of them whose folder this is; a later plan of the same
    run replaces an earlier one."""
    study = path if (path / NAME).is_file() else path.parent
    found: dict[Path, PlannedRun] = {}
    for entry in read_study_file(study).plans if (study / NAME).is_file() else ():
        plan = StudyPlan.from_table(entry)
        for run in plan_runs(plan.recipe, plan.arms, plan.seeds):
            found[study / run.name] = PlannedRun(study / run.name, run, plan)
    return [planned for folder, planned in found.items() if path in (study, folder)]
