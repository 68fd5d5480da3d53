"""The seeds that a study planned, from its `study.json`, against the seeds that it has."""

from collections.abc import Collection
from pathlib import Path

from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.folder import read_study_file
from gspo_cli.sanitize import sanitize

PLANS = "study.json"


def planned_seeds(study: Path, arms: tuple[str, ...]) -> list[int] | None:
    """The seeds that the first plan with each of the arms named; None if the study has no plan of all these arms.

    Later plans enlarge a study. Their seeds do not count as planned: whoever adds seeds may have looked before.
    Errors: GspoError (exit code STORAGE) for a file that is corrupt.
    """
    if not (study / PLANS).is_file():
        return None
    first: dict[str, list[int]] = {}
    try:
        for plan in read_study_file(study).plans:
            for arm in plan["arms"]:
                first.setdefault(str(arm), [int(seed) for seed in plan["seeds"]])
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(str(study / PLANS), f"it lists no plans: {error}") from error
    if not first.keys() >= set(arms):
        return None
    return list(dict.fromkeys(seed for arm in arms for seed in first[arm]))


def not_begun(study: Path, runs: Collection[tuple[str, int]]) -> str:
    """The planned arms and seeds of a study that are not among its `runs`; empty if all are."""
    plans = read_study_file(study).plans if (study / PLANS).is_file() else []
    planned = {(sanitize(str(arm)), int(seed)) for plan in plans for arm in plan["arms"] for seed in plan["seeds"]}
    return ", ".join(f"{arm} with seed {seed}" for arm, seed in sorted(planned - set(runs)))


def begun_runs(study: Path) -> list[str]:
    """The folders of all runs that were begun in the study, as far as it recorded them."""
    return read_study_file(study).begun if (study / PLANS).is_file() else []


def departure(planned: list[int] | None, present: list[int], invalid: list[int], looks: tuple[int, ...]) -> str:
    """How the seeds of a comparison differ from the plan; empty if they are the planned ones, or those of a look."""
    if planned is None:
        return "the planned seeds are not recorded"
    expected = planned
    if looks and len(present) < len(planned):
        if len(present) not in looks:
            return f"{len(present)} seeds are not one of the planned looks ({', '.join(map(str, looks))})"
        expected = planned[: len(present)]
    parts = []
    if missing := sorted(set(expected) - set(present) - set(invalid)):
        parts.append(f"planned seed{_plural(missing)} missing")
    if added := sorted(set(present) - set(planned)):
        parts.append(f"seed{_plural(added)} added after the first plan")
    if invalid:
        parts.append(f"seed{_plural(invalid)} invalidated")
    return "; ".join(parts)


def _plural(seeds: list[int]) -> str:
    return f"{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
