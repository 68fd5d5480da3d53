"""`gspo report fidelity`: how well each arm's off-policy gradient points where a large on-policy one points."""

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gspo_cli import __version__
from gspo_cli.config import Recipe, merge
from gspo_cli.errors import GspoError
from gspo_cli.instruments.fidelity.figure import TITLE, draw
from gspo_cli.instruments.fidelity.gradients import EXACT, Arm
from gspo_cli.instruments.fidelity.measure import Cell, Plan, measure_seed
from gspo_cli.instruments.fidelity.pool import pool, pooled, table
from gspo_cli.report.figures.save import save
from gspo_cli.report.figures.style import USUAL, Image
from gspo_cli.report.runs.synthetic import synthetic_settings
from gspo_cli.rollout.collect import PromptStream, collect
from gspo_cli.rollout.engine import full_distribution
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.seeds import derive_seed
from gspo_cli.training.setup import Setup, load_setup, make_learner
from gspo_cli.training.state.run_config import config_hash
from gspo_cli.training.study.arms import algorithm_of, plan_runs
from gspo_cli.types import RolloutBatch

FILE = "fidelity"
"""Name of the figure, its csv and its side file."""
ROWS = f"{FILE}-rows.json"
SAME = ("gspo", "model_sha256", "recipe", "updates_by", "batches", "reference", "responses", "baseline")
"""What must be equal in all files, besides the arms, updates and noises of their rows."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, besides the recipe."""

    arms: tuple[str, ...]
    clips: tuple[float, ...]
    """Further clip ranges of GSPO, the same on both sides."""
    updater: str
    """The arm that makes the updates."""
    seeds: tuple[int, ...]
    plan: Plan


def check_request(recipe: Recipe, request: Request) -> Recipe:
    """The recipe with the arms that the request adds.

    Errors: GspoError for a request that cannot be measured; nothing is loaded then.
    """
    plan = request.plan
    for wrong, message, why, hint in (
        (not request.seeds or not plan.updates or not plan.noises, "nothing to measure", "a list is empty",
         "give --updates, --noise and --seeds at least one value"),
        (min(plan.updates, default=0) < 0, "a negative number of updates", "updates are counted", "--updates 0,1,4"),
        (not all(math.isfinite(s) and s >= 0 for s in plan.noises), "noise that is no standard deviation",
         "it is a number of nats, 0 or more", "--noise 0,0.3,1"),
        (plan.batches < 1, "no batch to measure", "--batches counts the batches drawn before the updates",
         "--batches 4"),
        (plan.reference < 2, "a reference of fewer than two batches",
         "one batch cannot tell the gradient from its noise", "--reference 8 or more"),
    ):  # fmt: skip
        if wrong:
            raise GspoError(message, why, hint)
    arms = dict(recipe.arms)
    for arm in request.arms:
        name, algorithm = algorithm_of(recipe, arm)
        if algorithm.token_advantages is not None:
            raise GspoError(
                f"arm {arm} has a critic",
                "its advantages come from a critic that a start model does not have",
                "leave it out",
            )
        if not algorithm.HAS_RATIO:
            arms[arm] = {"name": name, "allow_stale": True} | arms.get(arm, {})
    ranges = {f"gspo-{clip:g}": {"name": "gspo", "clip": {"low": clip, "high": clip}} for clip in request.clips}
    changed, given = recipe.model_copy(update={"arms": arms | ranges}), recipe._command_line
    changed._command_line = merge(given, {"arms": ranges} if ranges else {})
    return changed


def names(request: Request) -> list[str]:
    """All arms that are measured, in order."""
    return list(dict.fromkeys([*request.arms, *(f"gspo-{clip:g}" for clip in request.clips)]))


def sample(setup: Setup, recipe: Recipe, number: int, version: int) -> RolloutBatch:
    """See `measure.Source`. Prompts of different numbers are different until an epoch ends."""
    rollout = recipe.rollout
    setup.engine.sync(setup.model, version)
    stream = PromptStream(setup.stream.problems, rollout.prompts, derive_seed(recipe.seed, "fidelity"))
    batch = collect(
        setup.engine, setup.tokenizer, setup.task, stream.batch(number), rollout.samples, full_distribution(rollout),
        (recipe.seed, f"fidelity {version}", number), version, recipe.task, rollout.stop,
    )  # fmt: skip
    setup.engine.rest()
    return batch


def report_fidelity(
    recipe: Recipe,
    start: Path,
    request: Request,
    out: Path,
    progress: Callable[[str], None],
    images: Collection[Image] = USUAL,
) -> dict[str, Any]:
    """Measures, writes csv and figure into `out`, and returns everything as one object that JSON can hold.

    Errors: GspoError for a request or recipe that cannot be measured, before anything is written.
    """
    recipe = check_request(recipe, request)
    measured = names(request)
    runs = plan_runs(recipe, list(dict.fromkeys([*measured, request.updater])), list(request.seeds))
    make_writable(out)
    setup = load_setup(runs[0].recipe, start)
    cells: list[Cell] = []
    try:
        for seed in request.seeds:
            mine = {run.arm: run for run in runs if run.recipe.seed == seed}
            updater = mine[request.updater]
            arms = [Arm(mine[name], make_learner(mine[name], setup.model)) for name in measured]
            learner = make_learner(updater, setup.model)
            source = partial(sample, setup, updater.recipe)
            cells += measure_seed(arms, updater, learner, source, request.plan, progress)
    finally:
        setup.engine.close()
    algorithms = {run.arm: run.recipe.algo.name for run in runs if run.arm in measured}
    baseline = recipe.report.baseline if recipe.report.baseline in measured else None
    found = table(cells, {arm: algorithms[arm] for arm in measured}, baseline)
    remarks = notes(found, recipe, request, baseline, setup)
    side = {
        "figure": FILE, "gspo": __version__, "model_sha256": setup.start_sha256, "recipe": recipe.name,
        "config_sha256": {run.arm: config_hash(run.recipe) for run in runs if run.recipe.seed == request.seeds[0]},
        "updates_by": request.updater, "seeds": list(request.seeds), "batches": request.plan.batches,
        "reference": request.plan.reference, "responses": recipe.rollout.prompts * recipe.rollout.samples,
        "notes": remarks,
    }  # fmt: skip
    return write(out, found, side, baseline, images)


def write(
    out: Path, found: pd.DataFrame, side: dict[str, Any], baseline: str | None, images: Collection[Image]
) -> dict[str, Any]:
    """Csv, side file and figure, and `ROWS`, from which measurements can be pooled; returns what that holds."""
    saved = save(out, FILE, TITLE, found, side, partial(draw, found, side["notes"]), images).paths
    result = side | {"baseline": baseline, "rows": records(found)}
    write_text(out / ROWS, json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return result | {"files": [str(path) for path in saved]}


def merge_fidelity(files: Sequence[Path], out: Path, images: Collection[Image] = USUAL) -> dict[str, Any]:
    """Several measurements of the same request, with different seeds, as one, without a model: from files that
    `report_fidelity` wrote (or their folders), csv, figure and rows as it writes them.

    Errors: GspoError for files of different requests or with a seed in common; nothing is written then.
    """
    paths = [file / ROWS if file.is_dir() else file for file in files]
    found = [read_object(path) for path in paths]
    first = found[0]
    for path, other in zip(paths, found, strict=True):
        if not isinstance(other.get("rows"), list) or any(key not in other for key in SAME):
            raise GspoError(f"{path} is no measurement", "it is not what `gspo report fidelity` writes", ROWS)
        different = [f"they differ in {key}: {first[key]} and {other[key]}" for key in SAME if other[key] != first[key]]
        if _cells(other) != _cells(first):
            different.append("they have other arms, updates or noises")
        if different:
            raise GspoError(
                f"{paths[0]} and {path} cannot be pooled",
                different[0],
                "pool measurements that differ in their seeds alone",
            )
    seeds = [seed for one in found for seed in one["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise GspoError(
            "a seed is in two files", f"their seeds are {', '.join(map(str, seeds))}", "name each measurement once"
        )
    rows = [row for one in found for row in one["rows"] if row["seed"] is not None]
    pooled_seeds = pool(sorted(rows, key=lambda row: row["seed"]))
    remarks = [text for text in first["notes"] if not text.startswith(("Intervals:", "A larger"))]
    remarks.append(
        f"Intervals: 95 %, Student's t over {len(seeds)} seeds, each with its own updates, batches and reference; "
        f"pooled from {len(found)} measurements."
    )
    side = {key: first[key] for key in first if key not in ("rows", "baseline")}
    return write(out, pooled_seeds, side | {"seeds": sorted(seeds), "notes": remarks}, first["baseline"], images)


def _cells(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys((row["updates"], row["noise"], row["arm"]) for row in found["rows"]))


def records(found: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON holds them: a gap is null."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in found.to_dict("records")
    ]


def notes(found: pd.DataFrame, recipe: Recipe, request: Request, baseline: str | None, setup: Setup) -> list[str]:
    """What a reader must know beside the numbers, a sentence or two each."""
    plan, size = request.plan, recipe.rollout.prompts * recipe.rollout.samples
    many = len(request.seeds) > 1
    rows = synthetic_settings({"task": {"terms": recipe.task.terms}})
    lines = [
        f"Recipe {recipe.name}, start model {setup.start_sha256[:12]}. {plan.batches} batches of {size} responses "
        f"before the updates, {plan.reference} fresh ones ({plan.reference * size} responses) as the reference at each "
        f"number of updates; updates by {request.updater}, {recipe.minibatches} to a batch, learning rate "
        f"{recipe.train.lr:g}." + (f" {rows}" if rows else ""),
        "Cosine to the arm's own on-policy gradient, the reference's noise removed. Dotted: what a fresh batch of "
        "the same size reaches.",
        f"Intervals: 95 %, Student's t over {len(request.seeds)} seeds, each with its own updates, batches and "
        "reference."
        if many
        else f"Intervals: 95 %, Student's t over the {plan.batches} batches of one seed; other updates and another "
        "reference would add to them.",
    ]
    if any(plan.noises):
        lines.append("Noise is synthetic: independent normal numbers added to the recorded old log-probabilities.")
    if baseline is not None:
        lines.append(f"gap = cosine minus that of {baseline} on the same batches.")
    unresolved = pooled(found)
    if count := int(unresolved["cosine"].isna().sum()):
        lines.append(
            f"{count} of {len(unresolved)} cells are empty: the reference does not tell the gradient from noise. "
            "A larger --reference resolves them."
        )
    if sum(p.numel() for p in setup.model.parameters() if p.requires_grad) > EXACT:
        lines.append("Gradients are compared as random sketches (about 1 % error of a cosine).")
    return lines


def text_rows(found: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The means over seeds as texts, a row a cell."""
    return [
        (
            str(row["updates"]), f"{row['noise']:g}", row["arm"], _interval(row, "cosine", "low", "high"),
            _number(row["ceiling"]), _interval(row, "gap", "gap_low", "gap_high"), _number(row["projection"]),
            _number(row["direction"]), _number(row["snr"]), _number(row["effective"]), _number(row["clipped"]),
        )
        for row in found
        if row["seed"] is None
    ]  # fmt: skip


COLUMNS = ("updates", "noise", "arm", "cosine", "ceiling", "gap", "projection", "direction", "snr", "n_eff", "clipped")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _interval(row: dict[str, Any], name: str, low: str, high: str) -> str:
    if row[name] is None:
        return "n/a"
    ends = "" if row[low] is None else f" [{row[low]:.2f}, {row[high]:.2f}]"
    return f"{row[name]:.2f}{ends}"
