"""Runs of other trainers as run folders: TRL's `trainer_state.json` and verl's metrics in JSON lines.

Only metrics that mean the same get our names; every other keeps its own behind `trl/` or `verl/`. Nothing is known of
such a run's start, data or budget, so it can be drawn and described, never judged.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import write_text
from gspo_cli.runlog.log import RunLog, canonical, now, short_hash
from gspo_cli.runlog.seal import seal_run, sha256_of
from gspo_cli.types import StepMetrics

TRL = {
    "reward": ("rollout", "reward/mean"),
    "completions/mean_length": ("rollout", "length/mean"),
    "completions/max_length": ("rollout", "length/max"),
    "completions/clipped_ratio": ("rollout", "length/truncated_frac"),
    "frac_reward_zero_std": ("rollout", "group/zero_std_frac"),
    "grad_norm": ("step", "grad/norm"),
}
"""TRL's name -> our line and name. Not here, because they are means of means or count otherwise: loss, entropy, kl,
clip_ratio/* (of responses where the ratio is the sequence's), reward_std (over groups), num_tokens (with prompts)."""
VERL = {
    "critic/score/mean": ("rollout", "reward/mean"),
    "response_length/mean": ("rollout", "length/mean"),
    "response_length/max": ("rollout", "length/max"),
    "actor/grad_norm": ("step", "grad/norm"),
}
"""verl's, likewise. Not here: critic/rewards/* (after the KL penalty), response_length/clip_ratio (responses as long as
the limit, ended or not), actor/pg_clipfrac and actor/entropy (means over micro-batches, by the loss's aggregation)."""
SECONDS = {"timing_s/gen": "rollout_s", "timing_s/old_log_prob": "old_policy_s", "timing_s/update_actor": "update_s"}
"""verl's times -> ours, for `area@seconds`."""

Values = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A foreign log, read."""

    kind: str
    steps: list[tuple[int, Values]]
    """Optimizer steps (TRL) or rollout batches (verl) with what was logged, in order."""


def read_foreign(path: Path) -> Source:
    """Reads a log; which trainer wrote it shows in its form.

    Errors: GspoError if it is neither.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            history = json.loads(text)["log_history"]
            rows = [(int(row["step"]), row) for row in history if "reward" in row]
            kind = "trl"
        else:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            rows, kind = [(int(line["step"]), dict(line["data"])) for line in lines], "verl"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GspoError(
            f"{path} is no log that can be imported", f"{type(error).__name__}: {error}",
            "give TRL's trainer_state.json, or verl's file of lines {\"step\": ..., \"data\": {...}}",
        ) from error  # fmt: skip
    merged: dict[int, Values] = {}
    for step, values in rows:
        merged[step] = merged.get(step, {}) | values
    steps = sorted((step, values) for step, values in merged.items() if step > 0)
    if not steps:
        raise GspoError(f"{path} holds no step of training", "no row has a reward or data", "give a run's whole log")
    return Source(kind, steps)


def import_run(path: Path, study: Path, algorithm: str, arm: str, seed: int) -> Path:
    """Writes a foreign log as a run of a study and returns its folder.

    Errors: GspoError for a log that cannot be read, or a folder that is taken.
    """
    source, run = read_foreign(path), study / f"{arm}-s{seed}"
    if run.exists():
        raise GspoError(f"{run} exists", "an imported run replaces nothing", "take another --seed, --arm or --name")
    config = {
        "name": study.name, "seed": seed, "algo": {"name": algorithm, "replay": "none"},
        "train": {"steps": source.steps[-1][0]},
    }  # fmt: skip
    run.mkdir(parents=True)
    text = canonical({key: value for key, value in config.items() if key != "name"})
    write_text(run / "config.json", json.dumps(config, indent=1))
    about = {
        "schema": 1, "run_id": uuid.uuid4().hex, "created": now(), "gspo": __version__, "study": study.name, "arm": arm,
        "seed": seed, "imported": {"from": source.kind, "file": path.name, "sha256": sha256_of(path)},
        "step_is": "optimizer step" if source.kind == "trl" else "rollout batch",
    }  # fmt: skip
    write_text(run / "run.json", json.dumps(about, indent=1))
    log = RunLog(run, short_hash(text))
    log.event("start", imported=source.kind)
    for step, values in source.steps:
        for kind, metrics in translated(source.kind, values).items():
            times = {ours: float(values[name]) for name, ours in SECONDS.items() if _is_number(values.get(name))}
            log.line(kind, step, StepMetrics(dict(metrics)), perf=times if kind == "rollout" else None)
        log.flush()
    log.event("end", status="completed")
    seal_run(run)
    return run


def translated(kind: str, values: Values) -> dict[str, dict[str, float]]:
    """Our lines with the metrics of one logged row; what has no equal keeps its name."""
    names = TRL if kind == "trl" else VERL
    lines: dict[str, dict[str, float]] = {"rollout": {}, "step": {}}
    for name, value in values.items():
        if _is_number(value) and name not in ("step", "epoch", *SECONDS):
            line, ours = names.get(name, ("rollout", f"{kind}/{name}"))
            lines[line][ours] = float(value)
    return {line: found for line, found in lines.items() if found}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
