"""Whole studies with made-up runs, as `gspo report compare` reads them: logs, times, provenance, ends, answers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from program import Gspo
from report_runs import canonical, line, write_log

Table = dict[str, Any]
Rewards = Callable[[str, int], Sequence[float | None]]

D1 = (0.03, 0.02, 0.04, 0.01, 0.05, 0.02)
"""Six differences with a worked example."""
STEPS = 20
ARMS = ("grpo", "gspo", "luspo", "sapo", "grpo_r2", "gspo_r2", "gspo_sampler", "grpo_double", "gspo_double")
TUNED = {"trials": 4, "seeds": [100, 101]}
"""The same for every arm, as a fair study has it."""


def config(arm: str, seed: int, steps: int = STEPS) -> Table:
    """A resolved recipe."""
    return {
        "name": "demo", "seed": seed, "model": {"path": "tiny", "dtype": "float32"}, "cold_start": None,
        "task": {"name": "arithmetic", "reward": None, "path": None, "revision": None},
        "rollout": {"prompts": 32, "samples": 16, "max_new_tokens": 64, "temperature": 1.0},
        "train": {"steps": steps, "minibatches": 4, "lr": 1e-4},
        "algo": {"name": arm.split("_")[0], "minibatches": None, "lr": None, "clip": {"low": len(arm) / 100}},
        "arms": {}, "eval": {"bench": [], "every": 0},
        "report": {"metric": "reward/mean:area@steps", "baseline": "grpo", "treatment": "gspo", "margin": 2.0,
                   "tuning": dict.fromkeys(ARMS, TUNED)},
    }  # fmt: skip


def provenance(study: str, arm: str, seed: int) -> Table:
    """A `run.json`."""
    return {
        "run_id": f"id-{arm}-{seed}", "created": "2026-01-01T00:00:00Z", "arm": arm, "seed": seed, "study": study,
        "argv": ["/bin/gspo", "train", "quickstart", "--algo", "grpo,gspo", "--seeds=0-5", "--set", "train.lr=2e-4"],
        "gspo": "0.1.0", "code": {"commit": "abc", "dirty": False, "diff_sha256": None}, "plugins": {},
        "packages": {"torch": "2.13.0", "numpy": "2.4.6"}, "python": "3.11.7", "cpu": "CPU", "device": "cpu",
        "threads": 2, "engine": {"name": "transformers", "versions": {"torch": "2.13.0"}},
        "determinism": {"deterministic_algorithms": True}, "model_sha256": "m" * 64, "tokenizer_sha256": "t" * 64,
        "data_sha256": "d" * 64, "planned_steps": STEPS,
    }  # fmt: skip


def flat(differences: Sequence[float], steps: int = STEPS) -> Rewards:
    """A constant reward in every run: seed by seed `differences` above the baseline."""

    def rewards(arm: str, seed: int) -> list[float]:
        return [0.5 + 0.01 * seed + (0.0 if arm == "grpo" else differences[seed])] * steps

    return rewards


def write_run(
    study: Path, arm: str, seed: int, rewards: Sequence[float | None], tokens: int = 1000, seconds: float = 2.0,
    at_step: Table | None = None,
) -> Path:  # fmt: skip
    """One run that completed if it has as many rewards as the plan has steps; `at_step`: metrics of its step lines."""
    folder = study / f"{arm}-s{seed}"
    folder.mkdir(parents=True)
    put(folder / "config.json", config(arm, seed))
    put(folder / "run.json", provenance(study.name, arm, seed))
    (folder / "recipe.toml").write_text('name = "demo"\n')
    lines, times = [], []
    for step, reward in enumerate(rewards, start=1):
        # the seed's own spread keeps two runs with equal rewards from being taken for copies
        metrics = {
            "reward/mean": reward, "compute/gen_tokens": tokens * step, "compute/queries": 32 * step,
            "reward/std": 0.4 + seed / 1000 + sum(map(ord, arm)) / 1e6, "reward/group_std": 0.3,
        }  # fmt: skip
        lines.append(line(step, "rollout", None, metrics, {}))
        clip = (0.01 if arm == "grpo" else 0.4) * (1 + seed / 10)
        lines.append(line(step, "step", None, at_step or {"clip/token_frac": clip}, {"clip/token_frac": 2000}))
        times += [{"kind": "rollout", "step": step, "rollout_s": seconds / 2, "update_s": seconds / 2, "batch_s": 9.0},
                  {"kind": "step", "step": step}]  # fmt: skip
    write_log(folder / "metrics.jsonl", lines)
    (folder / "perf.jsonl").write_text("".join(canonical(t) + "\n" for t in times))
    end(folder, "completed")
    return folder


def end(folder: Path, status: str | None, **details: Any) -> None:
    """Writes how the run ended; None = it did not."""
    events = [{"event": "start", "pid": 1}]
    if status is not None:
        events.append({"event": "end", "status": status, **details})
    (folder / "events.jsonl").write_text("".join(canonical(event) + "\n" for event in events))


def write_study(
    study: Path, rewards: Rewards | None = None, seeds: int = 6, arms: Sequence[str] = ("grpo", "gspo")
) -> Path:
    """Arms x seeds; D1 between the arms if nothing else is given."""
    rewards = rewards or flat(D1)
    for arm in arms:
        for seed in range(seeds):
            write_run(study, arm, seed, rewards(arm, seed))
    write_plan(study, arms, range(seeds))
    return study


def write_plan(study: Path, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Adds a plan to the study's `study.json`, as `gspo train` records it."""
    path = study / "study.json"
    plans = json.loads(path.read_text())["plans"] if path.exists() else []
    put(path, {"schema": 1, "plans": [*plans, {"arms": list(arms), "seeds": list(seeds)}]})


def change(path: Path, changes: Table) -> None:
    """Sets dotted keys of a JSON file; None removes one."""
    table = json.loads(path.read_text())
    for dotted, value in changes.items():
        *tables, key = dotted.split(".")
        inner = table
        for name in tables:
            inner = inner[name]
        inner.pop(key, None)
        if value is not None:
            inner[key] = value
    put(path, table)


def configure(study: Path, changes: Table, runs: str = "*-s*", file: str = "config.json") -> None:
    """Sets dotted keys of the configurations of a study's runs, or of another file that each has."""
    for path in study.glob(f"{runs}/{file}"):
        change(path, changes)


def put(path: Path, table: Table) -> None:
    """Writes one JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table))


def write_answers(
    run: Path, right_J: Sequence[float | None], k: int, bench: str = "arithmetic", step: int = STEPS,
    more: Table | None = None,
) -> None:  # fmt: skip
    """Answers with so many right ones a problem; None = the grader failed on the first of them."""
    folder = run / "eval" / bench / f"step-{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"problem_id": f"p{j:02d}", "sample": i, "text": f"{run.name} {i}",
         "verdict": ("grader_error" if i == 0 else "correct") if right is None else ("wrong", "correct")[i < right]}
        for j, right in enumerate(right_J) for i in range(k)
    ]  # fmt: skip
    np.random.default_rng(len(rows)).shuffle(rows)
    schema = pa.schema(
        [("problem_id", pa.string()), ("sample", pa.int32()), ("text", pa.string()), ("verdict", pa.string())]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "answers.parquet")
    summary = {"benchmark": bench, "samples": k, "temperature": 1.0, "seed": 0, "model": str(run), "average": 0.5,
               "verdicts": {"correct": int(sum(r or 0 for r in right_J))}, "times": {"total_s": len(run.name)},
               "grader": {"name": "exact", "workers": 2, "calibration_ms": 0.1 * sum(map(ord, run.name))}}  # fmt: skip
    put(folder / "summary.json", summary | (more or {}))


def cube(study: Path, seeds: int = 6) -> Path:
    """The worked cube: 6 seeds, 5 problems, 4 samples."""
    rows = {
        "grpo": ["13412", "23321", "23421", "22311", "12412", "02412"],
        "gspo": ["32313", "43424", "34333", "44324", "44334", "02432"],
    }
    write_study(study, seeds=seeds)
    for arm, counts in rows.items():
        for seed in range(seeds):
            write_answers(study / f"{arm}-s{seed}", [int(c) for c in counts[seed]], k=4)
    return study


def not_json(constant: str) -> NoReturn:
    """For `json.loads`, which takes NaN and Infinity."""
    raise AssertionError(f"{constant} is not JSON")


def compared(gspo_here: Gspo, study: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """What `gspo report compare --json` prints, one object on stdout alone."""
    done = gspo_here("report", "compare", str(study), "--json", *options)
    assert done.code == code, done.err
    assert done.err == "" and done.out.count("\n") == 1
    found: dict[str, Any] = json.loads(done.out, parse_constant=not_json)
    return found
