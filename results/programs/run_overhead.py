#!/usr/bin/env python3
"""What a run spends beside its work: logs, metrics and display as a share of a rollout batch; and the figures after it.

    python results/programs/run_overhead.py --json OUT [--steps 60]

One quickstart run (GSPO, one thread, its evaluations included) with timers around the calls of the training loop. The
bare batch is sampling and scoring, laying out, old log-probabilities and updates; the overhead is everything else
(`record_batch` with the log, the view's line, the loop's own checks), less the expert probe, which is an instrument
with model passes of its own and stated apart. The metrics that are computed inside an update are stated apart as well.
Then `gspo report plots` draws that run, in a process of its own. Seconds of processor time (which other programs on the
machine lengthen little) and of the clock; medians over the batches after the first four, and their range.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import shown, spread, write
from workload import isolate

CLOCKS: dict[str, Callable[[], float]] = {"processor": time.process_time, "clock": time.perf_counter}
WARMUP = 4
LIMIT = 0.03
WORK = ("sample_batches", "advantages_of", "make_mini_batches", "record_old_policy", "update")
"""What a bare loop would call, too."""
INSIDE = ("ratio_metrics", "at_ratio_one", "health_metrics", "route_metrics", "skipped_rows")
"""Metrics computed within an update."""

Seconds = dict[str, dict[str, float]]
"""By clock, by function."""


class Timers:
    """Adds up the seconds of the functions it wraps, batch by batch."""

    def __init__(self) -> None:
        self.now: dict[str, defaultdict[str, float]] = {clock: defaultdict(float) for clock in CLOCKS}
        self.batches: list[Seconds] = []

    def wrap(self, owner: Any, name: str) -> None:
        """Times every call of `owner.name`."""
        inner, label = getattr(owner, name), "probe" if name in ("__init__", "churn") else name

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = {clock: read() for clock, read in CLOCKS.items()}
            try:
                return inner(*args, **kwargs)
            finally:
                for clock, read in CLOCKS.items():
                    self.now[clock][label] += read() - begin[clock]
                if name == "train_batch":
                    self.batches.append({clock: dict(seconds) for clock, seconds in self.now.items()})
                    for seconds in self.now.values():
                        seconds.clear()

        setattr(owner, name, timed)


def run_quickstart(folder: Path, steps: int) -> tuple[list[Seconds], dict[str, float]]:
    """The seconds of each batch, and of the whole run by clock."""
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.views.training import TrainView
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.runlog.log import RunLog
    from gspo_cli.training import loop
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.run import execute
    from gspo_cli.training.step import update
    from gspo_cli.training.study.arms import plan_runs
    from gspo_cli.training.study.plans import StudyPlan

    loaded = recipes.load("quickstart", {"train": {"steps": steps}}, [])
    prepare_torch(loaded.model.threads)
    start = start_model(loaded, lambda *_: None)
    prepare_torch(1)
    timers = Timers()
    for name in (*WORK, "record_batch", "train_batch"):
        timers.wrap(loop, name)
    for name in ("__init__", "churn"):
        timers.wrap(loop.Probe, name)
    for name in ("line", "flush", "event"):
        timers.wrap(RunLog, name)
    for name in INSIDE:
        timers.wrap(update, name)
    timers.wrap(TrainView, "_show_batch")
    (run,) = plan_runs(loaded, ["gspo"], [0])
    begin = {clock: read() for clock, read in CLOCKS.items()}
    with TrainView(steps, 1) as view:
        view.start_run(run.name)
        plan = StudyPlan(loaded, ["gspo"], [0], "")
        execute(run, start, folder, plan, sys.argv, view)
    return timers.batches, {clock: read() - begin[clock] for clock, read in CLOCKS.items()}


def draw(folder: Path) -> dict[str, float]:
    """Seconds of `gspo report plots` over the study, by clock."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "gspo_cli", "report", "plots", str(folder)], check=True, capture_output=True)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return {"processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "clock": end - begin}


def parts(seconds: dict[str, float]) -> dict[str, float]:
    """One batch's seconds, by what they were spent on."""
    bare = sum(seconds[name] for name in WORK)
    probe = seconds.get("probe", 0.0)
    return {
        "batch": seconds["train_batch"],
        "bare": bare,
        "overhead": seconds["train_batch"] - bare - probe,
        "of it record_batch": seconds["record_batch"],
        "of that the log": sum(seconds.get(name, 0.0) for name in ("line", "flush", "event")),
        "of it the view": seconds["_show_batch"],
        "probe": probe,
        "metrics in updates": sum(seconds[name] for name in INSIDE),
    }


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="rollout batches (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    args = parser.parse_args()
    isolate(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        batches, whole = run_quickstart(Path(folder) / "study", args.steps)
        plots = draw(Path(folder) / "study")
    found: dict[str, Any] = {}
    for clock in CLOCKS:
        rows = [parts(batch[clock]) for batch in batches[WARMUP:]]
        found[clock] = {
            "seconds": {name: spread([row[name] for row in rows]) for name in rows[0]},
            "share_of_batch": {name: spread([row[name] / row["batch"] for row in rows]) for name in rows[0]},
            "overhead_over_bare": spread([row["overhead"] / row["bare"] for row in rows]),
            "run": whole[clock],
            "plots": plots[clock],
            "plots_over_run": plots[clock] / whole[clock],
        }
        print(f"{clock}: {len(rows)} batches")
        for name, seconds in found[clock]["seconds"].items():
            print(f"  {name:20} {shown(seconds, '.4f')} s  {shown(found[clock]['share_of_batch'][name], '.2%')}")
        print(f"  overhead over bare   {shown(found[clock]['overhead_over_bare'], '.2%')}")
        print(f"  run {whole[clock]:.1f} s, plots {plots[clock]:.1f} s: {found[clock]['plots_over_run']:.1%}")
    write(args.json, {"command": " ".join(["python", *sys.argv]), "limit": LIMIT, "summary": found})
    share = found["processor"]["share_of_batch"]["overhead"]["median"]
    sys.exit(f"the overhead is {share:.1%} of a batch, more than {LIMIT:.0%}" if share >= LIMIT else 0)


if __name__ == "__main__":
    main()
