"""Evaluate a model folder, hub name or run, and keep answers and summary."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gspo_cli.checkpoint.protocol import checkpoints
from gspo_cli.config import ModelConfig, RolloutConfig
from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.evals.runner import evaluate
from gspo_cli.models.load import load_policy, tokenizer_hash, weights_hash
from gspo_cli.models.torch_setup import prepare_torch
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.store import write_rollout
from gspo_cli.runlog.folder import newest_run
from gspo_cli.runlog.fs import write_text

DEADLINE_S = 24 * 3600.0


def evaluate_model(
    name: str | None, benchmark: Benchmark, samples: int, greedy: bool, seed: int, out: Path
) -> dict[str, Any]:
    """Runs one benchmark and returns its summary, which is also written beside the answers.

    A run's evaluation goes to `<run>/eval/<bench>/step-N/`, a bare model's to `<out>/eval-<name>/<bench>/`.
    """
    run = newest_run(out) if name is None else Path(name)
    if (run / "run.json").is_file():
        model_path = final_checkpoint(run)
        folder = run / "eval" / benchmark.name / model_path.parent.name
    else:
        model_path = Path(str(name))
        folder = out / f"eval-{re.sub(r'[^A-Za-z0-9._-]+', '-', str(name)).strip('-.')}" / benchmark.name
    prepare_torch(None)
    model, tokenizer = load_policy(ModelConfig(path=str(model_path)), model_path)
    engine = open_engine(RolloutConfig(deadline_s=DEADLINE_S), model, tokenizer)
    result = evaluate(benchmark, engine, tokenizer, samples, greedy, seed)
    hashes = {"model_sha256": weights_hash(model), "tokenizer_sha256": tokenizer_hash(tokenizer)}
    summary = {
        "benchmark": benchmark.name,
        "model": str(model_path),
        "samples": samples,
        "temperature": 0.0 if greedy else benchmark.sampling.temperature,
        "max_new_tokens": benchmark.sampling.max_new_tokens,
        "seed": seed,
        "num_problems": result.num_problems,
        "average": result.average,
        "standard_error": result.standard_error,
        "mean_tokens": result.mean_tokens,
        "truncated_frac": result.truncated_frac,
        "engine": engine.info.as_dict(),
        "folder": str(folder),
    } | hashes
    write_rollout(result.answers, folder / "answers.parquet", hashes)
    write_text(folder / "summary.json", json.dumps(summary, indent=1))
    return summary


def final_checkpoint(run: Path) -> Path:
    """The model folder of a run's last checkpoint.

    Errors: GspoError when the run has none (it did not reach its end).
    """
    found = [p / "model" for p in checkpoints(run / "checkpoints") if (p / "model").is_dir()]
    if not found:
        raise GspoError(
            f"{run} has no saved model", "a run saves its weights when it ends", "let it finish, or name a model folder"
        )
    return found[-1]
