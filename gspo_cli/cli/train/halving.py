"""`gspo train --grid --halving`: an ordinary study of trials for each stage, side by side in one folder.

The same command, or `--resume`, goes on where it stopped. A wider grid under the same name trains what is new in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.cli import console
from gspo_cli.cli.train.execute import past_guard
from gspo_cli.cli.train.new_study import StudyRequest, read_request, show_choice, train_new_study
from gspo_cli.cli.train.resume import resume_at_once, resume_one_by_one
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
    from gspo_cli.distributed import Ranks

NAME = "halving.json"
"""In the folder of the stages: the request, and what each trial tries."""
PATHS = ("out", "tuned")


def train_halving(request: StudyRequest, ranks: Ranks) -> None:
    """Train all stages, or with `--dry-run` print the plan of the first.

    A run that a guard stops does not end the tuning; it keeps its last value.
    Errors: GspoError for a request that no stage could train; nothing has been written then.
    """
    from gspo_cli.recipe import refuse_twice
    from gspo_cli.runlog.checksums import add_checksums
    from gspo_cli.runlog.folder import make_writable, study_folder
    from gspo_cli.runlog.fs import write_text
    from gspo_cli.runlog.strict_json import read_object
    from gspo_cli.training.study.tuning import expand, parse_grid, parse_halving

    if not request.grid or request.tuned or request.sweep or request.steps:
        raise GspoError(
            "--halving needs --grid, without --tuned, --sweep and --steps",
            "it says how long each trial of the grid trains",
            "e.g. --grid algo.lr=5e-5,1e-4,2e-4,4e-4 --halving 30,60,120 --seeds 100-102",
        )
    recipe, arms, seeds = read_request(request)
    refuse_twice(recipe, ["train.steps"], "--halving")
    steps = parse_halving(str(request.halving), seeds)
    folder = Path(ranks.broadcast(lambda: str(study_folder(request.out, request.name, recipe.name))))
    _, labels, trials = expand(recipe, arms, parse_grid(request.grid))
    if request.dry_run:
        console.note(f"first of {len(steps)} stages; each keeps a third of an arm's trials, and adds a seed")
        return train_new_study(_stage_request(request, folder, 1, steps, seeds), ranks)
    own = {"schema": 1, "recipe": recipe.model_dump(mode="json"), "seeds": seeds, "steps": steps, "trials": trials}
    if (folder / NAME).is_file():
        before = read_object(folder / NAME)
        changed = [key for key in ("recipe", "seeds", "steps") if before[key] != own[key]]
        changed += [label for label, trial in before["trials"].items() if trial != trials.get(label)]
        if changed:
            raise GspoError(
                f"{folder} holds another tuning",
                f"it differs in {changed[0]}; only values at the end of the first --grid may be new",
                "choose another --name, or give the former command",
            )
    if ranks.is_main:
        text = {key: str(value) if key in PATHS and value else value for key, value in vars(request).items()}
        make_writable(folder)
        write_text(folder / NAME, json.dumps(own | {"request": text}, indent=1) + "\n")
        add_checksums(folder, [folder / NAME])
    _train_stages(request, folder, steps, seeds, labels, trials, recipe.report.metric, ranks)


def resume_halving(folder: Path, jobs: int, ranks: Ranks) -> None:
    """Go on with the tuning in a folder."""
    from gspo_cli.runlog.strict_json import read_object

    table = read_object(folder / NAME)["request"]
    table |= {key: Path(table[key]) for key in PATHS if table[key]} | {"trials": (), "jobs": jobs}
    train_halving(StudyRequest(**table | {"out": folder.parent, "name": folder.name}), ranks)


def _stage_request(
    request: StudyRequest, folder: Path, number: int, steps: list[int], seeds: list[int]
) -> StudyRequest:
    seeds_text = ",".join(map(str, seeds[:number]))
    return replace(
        request, out=folder, name=f"stage-{number}", steps=steps[number - 1], seed=None, seeds=seeds_text, halving=None
    )


def _train_stages(
    request: StudyRequest, folder: Path, steps: list[int], seeds: list[int], labels: list[str], trials: dict[str, Any],
    metric: str, ranks: Ranks,
) -> None:  # fmt: skip
    from gspo_cli.report.compare.scores import choose
    from gspo_cli.report.runs.folders import read_study
    from gspo_cli.runlog.folder import read_study_file
    from gspo_cli.training.study.tuning import join_stages, record_tuning, survivors

    stages = []
    for number in range(1, len(steps) + 1):
        stage, one = folder / f"stage-{number}", _stage_request(request, folder, number, steps, seeds)
        plans = read_study_file(stage).plans if (stage / "study.json").is_file() else []
        planned = {arm for plan in plans for arm in plan["arms"]}
        if planned:
            one_by_one = partial(resume_one_by_one, stage, {}, [], request.as_json, ranks)
            at_once = partial(resume_at_once, stage, request.jobs, {}, [], request.as_json)
            past_guard(at_once if request.jobs > 1 else one_by_one)
        if new := [label for label in labels if label not in planned]:
            past_guard(partial(train_new_study, replace(one, trials=tuple(new)), ranks))
        result = choose(read_study(stage), metric, {label: trials[label] for label in labels})
        for row in (row for arm in result.values() for row in arm["scores"]):
            row["batches"] = steps[number - 1]
        stages.append(result)
        if not (labels := survivors(result)):
            break
    if ranks.is_main:
        joined = {arm: result | {"study": folder.name} for arm, result in join_stages(stages).items()}
        tuning = record_tuning(folder, {"metric": metric, "halving": steps, "arms": joined})
        show_choice(folder, tuning, request.as_json)
