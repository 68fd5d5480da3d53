"""Responses of a study's arms to the same prompts at the same steps, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gspo_cli.report.folders import Run, Study
from gspo_cli.report.harmless import shown
from gspo_cli.report.jsonl import corrupt

PROMPTS, RESPONSES = 3, 2
"""Shown at each step: the first prompts of the batch, and responses to each."""
COLUMNS = ["problem_id", "prompt", "answer", "sample", "text", "reward"]

Prompt = dict[str, Any]


def side_by_side(study: Study) -> tuple[list[dict[str, Any]], str]:
    """(steps with prompts with every arm's responses, why there are none).

    The first, middle and last step that all arms have stored, of the smallest seed that they share.
    Errors: GspoError (exit code STORAGE) naming a stored batch that cannot be read.
    """
    arms = sorted({run.arm for run in study.runs})
    stored = {(run.arm, run.seed): _steps(run.folder) for run in study.runs}
    for seed in sorted({run.seed for run in study.runs}):
        runs = {run.arm: run for run in study.runs if run.seed == seed}
        steps = sorted(set.intersection(*(set(stored.get((arm, seed), ())) for arm in arms)))
        if steps:
            chosen = dict.fromkeys([steps[0], steps[len(steps) // 2], steps[-1]])
            return [{"step": step, "seed": seed, "arms": arms, "prompts": _prompts(runs, step)} for step in chosen], ""
    return [], "no rollout batch of all arms is stored; train with --set rollout.store=20 to keep every 20th"


def _steps(run: Path) -> list[int]:
    names = (p.stem.removeprefix("step_") for p in (run / "rollouts").glob("step_*.parquet"))
    return sorted(int(name) for name in names if name.isdecimal())


def _prompts(runs: dict[str, Run], step: int) -> list[Prompt]:
    tables = {arm: _read(run.folder / "rollouts" / f"step_{step:06d}.parquet") for arm, run in runs.items()}
    ids = [dict.fromkeys(table["problem_id"].to_pylist()) for table in tables.values()]
    common = [name for name in ids[0] if all(name in other for other in ids)]
    return [_prompt(name, tables) for name in common[:PROMPTS]]


def _prompt(name: str, tables: dict[str, pa.Table]) -> Prompt:
    by_arm = {arm: table.filter(pc.equal(table["problem_id"], name)).to_pylist() for arm, table in tables.items()}
    first = next(iter(by_arm.values()))[0]
    return {
        "prompt": shown(str(first["prompt"])),
        "answer": shown(str(first["answer"])),
        "responses": {arm: list(_responses(rows)) for arm, rows in by_arm.items()},
    }


def _responses(rows: Iterable[Prompt]) -> Iterable[dict[str, str]]:
    for row in sorted(rows, key=lambda row: row["sample"])[:RESPONSES]:
        reward = "not scored" if row["reward"] is None else f"reward {row['reward']:g}"
        yield {"text": shown(str(row["text"])), "reward": reward}


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, columns=COLUMNS)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise corrupt(str(path), error) from error
