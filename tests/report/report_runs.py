"""Run folders with made-up logs of realistic shape, for the tests of the report."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gspo_cli.report.figures.plots import FIGURES

Record = dict[str, Any]

CLIP = {"grpo": 0.01, "gspo": 0.4}
CHURN = {"grpo": 0.006, "gspo": 0.004}
LAYERS = (0, 2, 3)
"""Numbers of the MoE layers; layer 1 is dense."""
TOKENS_A_STEP = 8000


def canonical(record: Record) -> str:
    """A log line as the writer writes it."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)


def records(
    algorithm: str, seed: int, steps: int, mini_batches: int = 4, dense: bool = False, replay: bool = False
) -> Iterator[Record]:
    """The lines of one run: rising reward, clipping that grows with the mini-batch and is null for sapo, churn that
    grows with the layer."""
    rng = np.random.default_rng([seed, *algorithm.encode()])
    tokens = 0
    for step in range(1, steps + 1):
        warm = min(step / 5, 1.0)
        tokens += int(TOKENS_A_STEP * (1 + 0.4 * step / steps + 0.05 * rng.normal()))
        rise = 0.25 * (1 - math.exp(-3 * step / steps)) * (1.0 if algorithm == "gspo" else 0.8)
        reward = 0.4 + rise + 0.01 * seed + 0.02 * rng.normal()
        metrics: Record = {"reward/mean": reward, "compute/gen_tokens": tokens}
        yield line(step, "rollout", None, with_others("rollout", metrics), {"reward/mean": 512})
        clips = []
        for index in range(mini_batches):
            noise = math.exp(0.3 * rng.normal())
            clips.append(None if algorithm not in CLIP else CLIP[algorithm] * warm * noise * index / mini_batches)
            if step == 1 and algorithm == "grpo":
                clips[-1] = 0.0
            churn = None if dense else CHURN.get(algorithm, 0.005) * warm * (index + 1) * noise
            metrics = {"clip/token_frac": clips[-1], "moe/slot_churn_probe": churn, "lr": 1e-4 * warm}
            yield line(step, "update", index, with_others("update", metrics), {"clip/token_frac": 2000})
        pooled = None if clips[0] is None else sum(c for c in clips if c is not None) / mini_batches
        layers = CHURN.get(algorithm, 0.005) * warm * np.exp(0.25 * rng.normal(size=len(LAYERS)) + np.array(LAYERS) / 4)
        metrics = {"clip/token_frac": pooled, "moe/slot_churn_step": None if dense else float(layers.mean())}
        metrics["replay/natural_agree_frac"] = 1 - 3 * float(layers.mean()) if replay else None
        if not dense:
            metrics |= {f"moe/slot_churn_step/layer_{n:02d}": float(v) for n, v in zip(LAYERS, layers, strict=True)}
        yield line(step, "step", None, with_others("step", metrics), {})


def with_others(kind: str, metrics: Record) -> Record:
    """The metrics, and a value for what else a figure reads from such lines: a new figure needs no entry here."""
    read = {name for figure in FIGURES.values() for of, name in figure.wanted if of == kind and name[-1] != "_"}
    return dict.fromkeys(sorted(read), 0.5) | metrics


def line(step: int, kind: str, mini_batch: int | None, metrics: Record, counts: Record) -> Record:
    """One record without `seq` and `prev`; non-finite values are moved to `nonfinite`."""
    bad = {name: str(value) for name, value in metrics.items() if value is not None and not math.isfinite(value)}
    finite = {name: None if name in bad else value for name, value in metrics.items()}
    return {"step": step, "kind": kind, "mini_batch": mini_batch, "metrics": finite, "counts": counts, "nonfinite": bad}


def write_log(path: Path, lines: Iterator[Record] | list[Record]) -> None:
    """Writes the records as a chained log."""
    previous, texts = "0" * 32, []
    for seq, record in enumerate(lines):
        texts.append(canonical({**record, "seq": seq, "prev": previous}))
        previous = hashlib.sha256(texts[-1].encode()).hexdigest()[:32]
    path.write_text("".join(text + "\n" for text in texts))


def rewrite_log(path: Path, old: str, new: str) -> None:
    """Another log, chained anew, with these words replaced."""
    write_log(path, [json.loads(text.replace(old, new)) for text in path.read_text().splitlines()])


def write_run(
    study: Path, arm: str, seed: int, lines: Iterator[Record] | list[Record], algorithm: str | None = None,
    created: str = "2026-01-01T00:00:00Z", replay: str | None = None,
) -> Path:  # fmt: skip
    """A run folder with the files that a report reads."""
    folder = study / f"{arm}-s{seed}"
    folder.mkdir(parents=True)
    about = {"run_id": f"id-{arm}-{seed}", "created": created, "arm": arm, "seed": seed, "study": study.name}
    (folder / "run.json").write_text(json.dumps(about))
    algo = {"name": algorithm or arm} | ({"replay": replay} if replay else {})
    config = {"name": study.name, "seed": seed, "algo": algo, "train": {"steps": 20}}
    (folder / "config.json").write_text(json.dumps(config))
    write_log(folder / "metrics.jsonl", lines)
    return folder


def write_study(study: Path, arms: tuple[str, ...] = ("grpo", "gspo"), seeds: int = 3, steps: int = 20) -> Path:
    """A study of plain arms."""
    for arm in arms:
        for seed in range(seeds):
            write_run(study, arm, seed, records(arm, seed, steps))
    return study
