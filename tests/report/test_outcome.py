"""What a study came to, at its end: a row an arm, the permitted sentence, where to go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_studies import STEPS, write_run
from report_runs import write_log

from gspo_cli.report.compare.outcome import outcomes
from gspo_cli.report.runs.folders import read_study


def with_scores(run: Path, *scores: float) -> None:
    """Evaluations before training and in its course."""
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    blank = {"kind": "eval", "mini_batch": None, "counts": {}, "nonfinite": {}}
    lines += [blank | {"step": 10 * i, "metrics": {"arithmetic/avg@4": score}} for i, score in enumerate(scores)]
    write_log(run / "metrics.jsonl", lines)


def test_start_end_and_time_of_an_arm(tmp_path: Path) -> None:
    # rewards 1/20, 2/20, ...: the first three have the mean 0.1, the last tenth (19 and 20) 0.975; the second run is
    # 0.2 above, so the means are 0.2 and 1.075. 20 batches of 2 and 4 s: 60 s in the mean.
    for seed in (0, 1):
        rewards = [step / STEPS + 0.2 * seed for step in range(1, STEPS + 1)]
        run = write_run(tmp_path, "grpo", seed, rewards, seconds=2.0 + 2 * seed)
        with_scores(run, 0.25, 0.75, 0.5 + 0.1 * seed)
    (one,) = outcomes(read_study(tmp_path))
    assert (one.arm, one.seeds, one.seconds) == ("grpo", 2, pytest.approx(60))
    assert one.changes == {"reward/mean": pytest.approx((0.2, 1.075)), "arithmetic/avg@4": pytest.approx((0.25, 0.55))}
