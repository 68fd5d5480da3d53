"""What a study came to, at its end: a row an arm, the permitted sentence, where to go on."""

import json
from pathlib import Path

import pytest
from compare_studies import D1, STEPS, flat, write_run, write_study
from report_runs import write_log

from gspo_cli.cli.views.comparison import show_outcome
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


def test_the_end_of_a_study_has_the_sentence_and_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "my runs" / "demo")
    for run in study.glob("*-s*"):
        (run / "checkpoints" / "step-000020" / "model").mkdir(parents=True)
    show_outcome(study)
    text = capsys.readouterr().err
    assert "GSPO better than GRPO on reward/mean:area@steps" in " ".join(text.split())
    assert f"weights: {study}/*/checkpoints/step-000020/model" in text
    assert (
        f"next: gspo report html '{study}' (" in text
        and "`report compare`" in text
        and not (study / "compare.json").exists()
    )


def test_runs_that_cannot_be_compared_and_a_single_arm_end_without_a_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "demo", flat(D1), seeds=2)
    write_run(study, "grpo", 2, [0.5] * STEPS)
    show_outcome(study)
    assert "No comparison: 1 precondition fails. `gspo report compare` says which." in capsys.readouterr().err
    one = write_study(tmp_path / "one", seeds=2, arms=("sapo",))
    show_outcome(one)
    text = capsys.readouterr().err
    assert "sapo" in text and "grpo" not in text and "claim" not in text and "n/a" not in text
