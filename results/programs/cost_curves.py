#!/usr/bin/env python3
"""Cost of a rollout batch against samples, response length, model width and number of experts.

    python results/programs/cost_curves.py --json OUT --figures FOLDER [--repeats 5]

A rollout batch is the project's own: sampling, scoring, old log-probabilities, four updates, probe, metrics and log, as
in `gspo train`. The start point (8 prompts, 8 samples each, 32 tokens a response, width 64, 2 layers, 8 experts, top 2)
is varied in one way at a time. Responses have exactly the length that is asked for: no token ends one. The values of a
curve are measured in turn, there and back, after one batch of warm-up each; a curve's points are medians over the
repeats. A curve is held against its own first point: a slope of 1 in the logarithms is linear. Measured are seconds of
processor time on one thread, which other programs on the machine lengthen little.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import interleave, shown, spread, write
from workload import isolate

START = {"samples": 8, "length": 32, "width": 64, "experts": 8}
PROMPTS = 8


class Curve(NamedTuple):
    """One setting, varied."""

    label: str
    values: tuple[int, ...]


CURVES = {
    "samples": Curve("samples per prompt", (4, 8, 16, 32, 64)),
    "length": Curve("response length (tokens)", (16, 32, 64, 128)),
    "width": Curve("model width", (64, 128, 192, 256)),
    "experts": Curve("experts", (4, 8, 16, 32)),
}


def prepare(settings: dict[str, int], folder: Path) -> Callable[[], None]:
    """What runs one rollout batch of a fresh run with these settings."""
    from gspo_cli.config import Recipe, TinyModel
    from gspo_cli.models.load import load_policy
    from gspo_cli.models.tiny import build_tiny
    from gspo_cli.rollout.builtin.engine import TransformersEngine
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.runlog.log import RunLog
    from gspo_cli.tasks.arithmetic import Arithmetic
    from gspo_cli.training.loop import train_batch
    from gspo_cli.training.session import Session
    from gspo_cli.training.setup import make_learner
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.types import Problem, Score

    class Task:
        """Rewards that differ within nearly every group, so that every response is trained on."""

        def problems(self, split: str) -> list[Problem]:
            return Arithmetic().problems(split)

        def reward(self, _problem: Problem, text: str) -> Score:
            return Score(zlib.crc32(text.encode()) / 2**32, "")

    folder.mkdir()
    tiny = TinyModel(hidden=settings["width"], layers=2, experts=settings["experts"])
    for part in build_tiny(tiny, seed=0):
        part.save_pretrained(folder / "model")
    rollout = {
        "prompts": PROMPTS,
        "samples": settings["samples"],
        "max_new_tokens": settings["length"],
        "keep_newest": False,
    }
    recipe = Recipe.model_validate(
        {
            "name": "benchmark",
            "model": {"path": str(folder / "model"), "threads": 1},
            "rollout": rollout,
            "train": {"steps": 1000, "minibatches": 4, "lr": 1e-4},
            "algo": {"name": "gspo"},
        }
    )
    (run,) = plan_runs(recipe, ["gspo"], [0])
    model, tokenizer = load_policy(run.recipe.model, folder / "model")
    engine = TransformersEngine(model, frozenset(), 1.0, 600.0)
    task = Task()
    stream = PromptStream(task.problems("train"), PROMPTS, 0)
    session = Session(run, make_learner(run, model), engine, tokenizer, task, stream, RunLog(folder, ""))
    step = 0

    def batch() -> None:
        nonlocal step
        step += 1
        train_batch(session, step)

    return batch


def measure(name: str, repeats: int, folder: Path) -> dict[str, Any]:
    """The seconds of every value of one curve, and the slope through their medians."""
    values = CURVES[name].values
    batches = {v: prepare(START | {name: v}, folder / f"{name}-{v}") for v in values}
    seconds: dict[int, list[float]] = {v: [] for v in values}
    for batch in batches.values():
        batch()
    for repeat in range(repeats):
        for value in interleave(values, repeat):
            begin = time.process_time()
            batches[value]()
            seconds[value].append(time.process_time() - begin)
    points = {v: spread(s) for v, s in seconds.items()}
    medians = [points[v]["median"] for v in values]
    return {
        "label": CURVES[name].label,
        "slope": slope(values, medians),
        "steepest": max(slope(values[i : i + 2], medians[i : i + 2]) for i in range(len(values) - 1)),
        "ratio_last_to_first": spread([b / a for a, b in zip(seconds[values[0]], seconds[values[-1]], strict=True)]),
        "seconds": points,
    }


def slope(xs: tuple[int, ...], ys: list[float]) -> float:
    """Of the straight line through the logarithms, by least squares."""
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    return sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / sum((a - mean_u) ** 2 for a in u)


def draw(name: str, curve: dict[str, Any], folder: Path) -> None:
    """One curve as svg and png, both axes logarithmic, with its slope and a line of slope 1 to hold it against."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter, NullLocator

    from gspo_cli.report.figures.style import applied, colour

    xs, points = list(curve["seconds"]), list(curve["seconds"].values())
    ys = [p["median"] for p in points]
    low, high = ([p[end] for p in points] for end in ("min", "max"))
    bars = [[y - a for y, a in zip(ys, low, strict=True)], [b - y for y, b in zip(ys, high, strict=True)]]
    with applied():
        figure, axes = plt.subplots(figsize=(3.2, 2.4), layout="constrained")
        axes.errorbar(xs, ys, bars, color=colour("grpo"), marker="o", markersize=4, linewidth=1.2, capsize=2,
                      label=f"measured, slope {curve['slope']:.2f}")  # fmt: skip
        axes.plot(xs, [ys[0] * x / xs[0] for x in xs], color=colour("gspo"), linestyle="--", linewidth=1,
                  label="linear (slope 1)")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(xs, [str(x) for x in xs])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_xlabel(curve["label"])
        axes.set_ylabel("rollout batch (CPU s)")
        axes.legend(loc="upper left")
        for ending in ("svg", "png"):
            figure.savefig(folder / f"cost_{name}.{ending}", metadata={"Date": None} if ending == "svg" else None)
        plt.close(figure)


def main() -> None:
    """Measures, prints, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", default=",".join(CURVES), help="comma-separated (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="batches of each value (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="where the figures are written")
    args = parser.parse_args()
    isolate(threads=1)
    from gspo_cli.models.device import prepare_torch

    prepare_torch(threads=1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.curves.split(","):
            found[name] = measure(name, args.repeats, Path(folder))
            cells = ", ".join(f"{value}: {shown(s)}" for value, s in found[name]["seconds"].items())
            print(f"{name:8} slope {found[name]['slope']:.2f} (at most {found[name]['steepest']:.2f})  {cells} s")
            sys.stdout.flush()
    if args.figures:
        args.figures.mkdir(parents=True, exist_ok=True)
        for name, curve in found.items():
            draw(name, curve, args.figures)
    start = START | {"prompts": PROMPTS, "layers": 2, "top_k": 2, "threads": 1}
    write(args.json, {"command": " ".join(["python", *sys.argv]), "start": start, "curves": found})


if __name__ == "__main__":
    main()
