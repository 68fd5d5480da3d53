"""Scores from anywhere: a csv with one value per run, seed, task and step, read and checked whole."""

import csv
import io
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat, ValidationError

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular
from gspo_cli.stats.curves import area_mean, last_mean
from gspo_cli.stats.problems import Array

FORMS = ("last", "last10", "area@steps")
"""How the values of several steps become one: the last, the mean over the last tenth, the area over its length."""
LEAST, MOST = 1e-9, 1e90
"""Bounds on the largest value of a file: below, differences count as equal; above, their cubes overflow."""
MOST_BYTES = 1 << 28
LAST_STEP = 1 << 53
"""The last whole number that a float holds exactly."""
HEADER = "name each column once: run, seed, task, step, value, collapsed; only run, seed and value are needed"

Curve = tuple[Array, Array]
"""(steps, values), by step."""


def _plain_number(text: Any) -> Any:
    if isinstance(text, str) and "_" in text:  # Python reads 1_000 as a number; few others do
        raise ValueError("a number has no underscore")
    return text


Step = Annotated[int, BeforeValidator(_plain_number), Field(ge=-LAST_STEP, le=LAST_STEP)]


class Row(BaseModel):
    """One row; a column that is missing, or a cell that is empty in one that may be, has its default."""

    run: str
    seed: Step
    value: Annotated[FiniteFloat, BeforeValidator(_plain_number)]
    task: str = ""
    step: Step = 0
    collapsed: bool | None = None


FIX = {
    "run": "name what is compared",
    "seed": "write a whole number, e.g. 0",
    "value": "write a number such as 0.5; a run that failed has the value that its readers should count",
    "step": "number the steps from 0",
    "collapsed": "write 1 if the run collapsed, else 0",
}


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """The scores of a csv, or of evaluations: every run has the same tasks in each of its seeds."""

    path: Path
    sha256: str
    tasks: list[str]
    """Sorted; a single empty name without the column."""
    scores: dict[str, dict[int, Array]]
    """Run (in the order of the file) -> seed -> score of each task [J]."""
    curves: dict[str, dict[int, Curve]]
    """Run -> seed -> (steps, mean over tasks) where all its tasks have the same steps, and more than one."""
    collapsed: dict[str, set[int]] | None
    """Run -> the seeds in which it collapsed, as the column says; None without the column, and if it is empty."""
    last_steps: dict[str, dict[int, int]]
    """Run -> seed -> its last step; all 0 without the column."""
    number: str = "value"
    """What a score is called."""
    each: str = "task"
    """What a score is the mean over."""


def read_scores(path: Path, form: str = "last") -> ScoreFile:
    """Reads a csv with a header; other columns than the five are ignored.

    Errors: GspoError for a file that cannot be read, lacks or repeats a column, repeats a row, has a row longer than
    its header, or misses a task of a seed; for a value that is not a finite number, or values too small or too large.
    """
    if form not in FORMS:
        raise GspoError(f"--metric {form}", f"a file of scores is judged by {', '.join(FORMS)}", "e.g. --metric last10")
    try:
        require_regular(path)
        if (size := path.stat().st_size) > MOST_BYTES:
            raise OSError(f"it has {size} bytes, and a table of scores at most {MOST_BYTES}")
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise GspoError(f"cannot read {path}", str(error), "give a csv file in UTF-8") from error
    try:
        curves, collapsed = _curves(path, text)
    except csv.Error as error:
        raise GspoError(f"cannot read {path}", str(error), "give a csv file; a quote that opens must close") from error
    tasks = sorted({task for _, _, task in curves})
    largest = max(float(abs(values).max()) for _, values in curves.values())
    if largest != 0 and not LEAST <= largest <= MOST:
        raise GspoError(
            f"{path}: its largest value is {largest:.3g}",
            f"the statistics work with values from {LEAST:g} to {MOST:g}",
            "give the values in another unit",
        )
    # from the largest first to the largest last step: curves that begin late are areas over the same steps
    ends = {
        task: np.array([steps[[0, -1]] for (_, _, name), (steps, _) in curves.items() if name == task]).max(axis=0)
        for task in tasks
    }
    found = ScoreFile(path, sha256(content).hexdigest(), tasks, {}, {}, collapsed, {})
    for run, seed in dict.fromkeys((run, seed) for run, seed, _ in curves):
        if missing := [task for task in tasks if (run, seed, task) not in curves]:
            raise GspoError(
                f"{path}: run {run}, seed {seed} has no value of task {missing[0]!r}",
                f"a mean over other tasks is another number; the file has {len(tasks)} tasks",
                "add the value, or leave the task out of the file",
            )
        own = [curves[run, seed, task] for task in tasks]
        scores = [_score(*curve, form, *ends[task].tolist()) for task, curve in zip(tasks, own, strict=True)]
        found.scores.setdefault(run, {})[seed] = np.array(scores)
        found.last_steps.setdefault(run, {})[seed] = int(max(steps[-1] for steps, _ in own))
        steps = own[0][0]
        if len(steps) > 1 and all(np.array_equal(other, steps) for other, _ in own):
            found.curves.setdefault(run, {})[seed] = steps, np.mean([values for _, values in own], axis=0)
    return found


def _curves(path: Path, text: str) -> tuple[dict[tuple[str, int, str], Curve], dict[str, set[int]] | None]:
    """The curve of each (run, seed, task) in the file's order, and the collapsed runs: those with a row that says so.
    Their column may be empty as a whole, and then says nothing."""
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    for name, field in Row.model_fields.items():
        if names.count(name) > 1 or (field.is_required() and name not in names):
            raise GspoError(
                f"{path} has {'several columns' if name in names else 'no column'} {name!r}",
                f"its header has {', '.join(names) or 'nothing'}",
                f"{HEADER}; separate them by commas",
            )
    values: dict[tuple[str, int, str], dict[int, float]] = {}
    collapsed: dict[tuple[str, int], bool] = {}
    for cells in rows:
        where = f"{path}, line {rows.line_num}"
        row = _row(where, cells, len(names))
        curve = values.setdefault((row.run, row.seed, row.task), {})
        if row.step in curve:
            raise GspoError(
                f"{where}: a second value of run {row.run}, seed {row.seed}, task {row.task!r}, step {row.step}",
                "each of them has one value",
                "remove one of the two rows, or number the steps",
            )
        curve[row.step] = row.value
        if row.collapsed is not None:
            collapsed[row.run, row.seed] = row.collapsed or collapsed.get((row.run, row.seed), False)
    if not values:
        raise GspoError(f"{path} has no rows", "there is nothing below its header", HEADER)
    if unsaid := [(run, seed) for run, seed, _ in values if collapsed and (run, seed) not in collapsed]:
        raise GspoError(
            f"{path} says of some runs whether they collapsed, and not of run {unsaid[0][0]}, seed {unsaid[0][1]}",
            "an empty cell may mean either",
            "write 0 or 1 in column collapsed in a row of every seed, or leave the column out",
        )
    fallen: dict[str, set[int]] = {run: set() for run, _, _ in values}
    for (run, seed), fell in collapsed.items():
        fallen[run].update([seed] if fell else [])
    columns = {key: np.array(sorted(curve.items()), np.float64).T for key, curve in values.items()}
    return {key: (steps, own) for key, (steps, own) in columns.items()}, fallen if collapsed else None


def _row(where: str, cells: dict[Any, Any], num_columns: int) -> Row:
    if any(cell and cell.strip() for cell in cells.get(None) or ()):
        raise GspoError(
            f"{where}: more cells than the header has columns",
            f"the header has {num_columns}; a decimal comma splits a number in two",
            'write 0.5, or quote a name that holds a comma: "a,b"',
        )
    stripped = {name: str(cells.get(name) or "").strip() for name in Row.model_fields}
    if not stripped["step"] and "step" in cells:
        raise GspoError(f"{where}: no step", "the file has a column step", FIX["step"])
    try:
        return Row.model_validate({name: text for name, text in stripped.items() if text})
    except ValidationError as error:
        bad = error.errors(include_url=False)[0]
        name = str(bad["loc"][0])
        raise GspoError(
            f"{where}: {name} {stripped[name][:40]!r}", bad["msg"].removeprefix("Value error, "), FIX[name]
        ) from error


def _score(steps: Array, values: Array, form: str, first: float, last: float) -> float:
    """One number for a curve of a task whose runs cover these steps; a curve that ends early keeps its last value."""
    if form == "last" or len(steps) == 1:
        return float(values[-1])
    if form == "last10":
        return last_mean(steps, values, int(last))
    return area_mean(steps, values, first, last)
