"""Scores from anywhere: a csv with one value per run, seed, task and step, read and checked whole."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular
from gspo_cli.stats.curves import area_mean, last_mean
from gspo_cli.stats.problems import Array

NEEDED, OPTIONAL = ("run", "seed", "value"), ("task", "step", "collapsed")
YES, NO = ("1", "true", "yes"), ("", "0", "false", "no")
FORMS = ("last", "last10", "area@steps")
"""How the values of several steps become one: the last, the mean over the last tenth, the area over its length."""
LEAST, MOST = 1e-9, 1e90
"""Bounds on the largest value of a file: below, differences count as equal; above, their cubes overflow."""
MOST_BYTES = 1 << 28
LAST_STEP = 1 << 53
"""The last whole number that a float holds exactly."""
HEADER = "name columns run, seed, task, step, value, collapsed; only run, seed and value are needed"

Curve = list[tuple[float, float]]
Cells = dict[str, dict[int, dict[str, Curve]]]
"""Run -> seed -> task -> (step, value), by step."""


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """The scores of a csv: every run has the same tasks in each of its seeds."""

    path: Path
    sha256: str
    tasks: list[str]
    """Sorted; a single empty name without the column."""
    steps: int
    """Most values of one run, seed and task."""
    scores: dict[str, dict[int, Array]]
    """Run (in the order of the file) -> seed -> score of each task [J]."""
    curves: dict[str, dict[int, tuple[Array, Array]]]
    """Run -> seed -> (steps, mean over tasks) where all its tasks have the same steps, and more than one."""
    collapsed: dict[str, set[int]] | None
    """Run -> the seeds in which it collapsed, as the column says; None without the column, and if it is empty."""
    last_steps: dict[str, dict[int, int]]
    """Run -> seed -> its last step; all 0 without the column."""


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
        cells, collapsed = _cells(path, text)
    except csv.Error as error:
        raise GspoError(f"cannot read {path}", str(error), "give a csv file; a quote that opens must close") from error
    tasks = sorted({task for by_seed in cells.values() for by_task in by_seed.values() for task in by_task})
    curves = [curve for by_seed in cells.values() for by_task in by_seed.values() for curve in by_task.values()]
    _check_size(path, max(abs(value) for curve in curves for _, value in curve))
    ranges = {task: _range([by_task[task] for by_seed in cells.values() for by_task in by_seed.values()
                            if task in by_task]) for task in tasks}  # fmt: skip
    for run, by_seed in cells.items():
        for seed, by_task in by_seed.items():
            if missing := sorted(set(tasks) - by_task.keys()):
                raise GspoError(
                    f"{path}: run {run}, seed {seed} has no value of task {missing[0]!r}",
                    f"a mean over other tasks is another number; the file has {len(tasks)} tasks",
                    "add the value, or leave the task out of the file",
                )
    scores = {
        run: {
            seed: np.array([_score(by_task[task], form, *ranges[task]) for task in tasks])
            for seed, by_task in by_seed.items()
        }
        for run, by_seed in cells.items()
    }
    last_steps = {
        run: {seed: int(max(curve[-1][0] for curve in by_task.values())) for seed, by_task in by_seed.items()}
        for run, by_seed in cells.items()
    }
    return ScoreFile(
        path, sha256(content).hexdigest(), tasks, max(map(len, curves)), scores, _mean_curves(cells), collapsed,
        last_steps,
    )  # fmt: skip


def _check_size(path: Path, largest: float) -> None:
    if largest == 0 or LEAST <= largest <= MOST:
        return
    raise GspoError(
        f"{path}: its largest value is {largest:.3g}",
        f"the statistics work with values from {LEAST:g} to {MOST:g}",
        "give the values in another unit",
    )


def _cells(path: Path, text: str) -> tuple[Cells, dict[str, set[int]] | None]:
    """The values, and the collapsed runs: those with a row that says so."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    if missing := [name for name in NEEDED if name not in names]:
        raise GspoError(
            f"{path} has no column {missing[0]!r}",
            f"its header has {', '.join(names) or 'nothing'}",
            f"{HEADER}; separate them by commas",
        )
    if twice := [name for name in (*NEEDED, *OPTIONAL) if names.count(name) > 1]:
        raise GspoError(f"{path} has several columns {twice[0]!r}", f"its header has {', '.join(names)}", "keep one")
    cells: Cells = {}
    said = False
    collapsed: dict[str, set[int]] = {}
    seen: set[tuple[str, int, str, int]] = set()
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        if any(cell and cell.strip() for cell in row.get(None) or ()):  # type: ignore[call-overload]
            raise GspoError(
                f"{where}: more cells than the header has columns",
                f"the header has {len(names)}; a decimal comma splits a number in two",
                'write 0.5, or quote a name that holds a comma: "a,b"',
            )
        values = {name: str(row.get(name) or "").strip() for name in (*NEEDED, *OPTIONAL)}
        if not values["run"]:
            raise GspoError(f"{where}: no run", "a run is the name of what is compared", HEADER)
        seed, step = _whole(where, "seed", values["seed"]), _whole(where, "step", values["step"] or "0")
        curve = cells.setdefault(values["run"], {}).setdefault(seed, {}).setdefault(values["task"], [])
        if (key := (values["run"], seed, values["task"], step)) in seen:
            raise GspoError(
                f"{where}: a second value of run {values['run']}, seed {seed}, task {values['task']!r}, step {step}",
                "each of them has one value",
                "remove one of the two rows, or number the steps",
            )
        seen.add(key)
        said = said or bool(values["collapsed"])
        if _flag(where, values["collapsed"]):
            collapsed.setdefault(values["run"], set()).add(seed)
        curve.append((float(step), _number(where, values["value"])))
    if not cells:
        raise GspoError(f"{path} has no rows", "there is nothing below its header", HEADER)
    for by_seed in cells.values():
        for by_task in by_seed.values():
            for curve in by_task.values():
                curve.sort()
    return cells, collapsed if said else None  # an empty column says nothing


def _whole(where: str, name: str, text: str) -> int:
    try:
        found = int(text)
    except ValueError as error:
        raise GspoError(f"{where}: {name} {text!r}", "it is a whole number", f"e.g. {name} 0") from error
    if abs(found) > LAST_STEP:
        raise GspoError(f"{where}: {name} {text[:40]}", f"it is at most {LAST_STEP}", f"number each {name} from 0")
    return found


def _flag(where: str, text: str) -> bool:
    if text.lower() in YES + NO:
        return text.lower() in YES
    raise GspoError(f"{where}: collapsed {text!r}", "a run collapsed (1) or did not (0)", "write 0 or 1")


def _number(where: str, text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # Python reads 1_000 as a number; few others do
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    raise GspoError(
        f"{where}: value {text!r}", "it is no finite number",
        "write a number; a run that failed has the value that its readers should count",
    )  # fmt: skip


def _mean_curves(cells: Cells) -> dict[str, dict[int, tuple[Array, Array]]]:
    found: dict[str, dict[int, tuple[Array, Array]]] = {}
    for run, by_seed in cells.items():
        for seed, by_task in by_seed.items():
            table = [np.array(curve) for curve in by_task.values()]
            steps = table[0][:, 0]
            if len(steps) > 1 and all(np.array_equal(one[:, 0], steps) for one in table):
                found.setdefault(run, {})[seed] = steps, np.mean([one[:, 1] for one in table], axis=0)
    return found


def _range(curves: list[Curve]) -> tuple[float, float]:
    """From the largest first to the largest last step: curves that begin late are areas over the same steps."""
    return max(curve[0][0] for curve in curves), max(curve[-1][0] for curve in curves)


def _score(curve: Curve, form: str, first: float, last: float) -> float:
    """One number for a curve of a task whose runs cover these steps; a curve that ends early keeps its last value."""
    steps, values = (np.array(column) for column in zip(*curve, strict=True))
    if form == "last" or len(curve) == 1:
        return float(values[-1])
    if form == "last10":
        return last_mean(steps, values, int(last))
    return area_mean(steps, values, first, last)
