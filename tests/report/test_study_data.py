"""`load_study`: a study as frames, equal to what stands in its logs."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from program import refusal
from report_runs import line, records, write_run, write_study

from gspo_cli import load_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("root") / "small", seeds=2, steps=3)


def test_the_library_is_light_until_it_is_used() -> None:
    program = (
        "import sys, gspo_cli; assert gspo_cli.load_study\n"
        "print([name for name in ('pandas', 'torch', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_steps_are_rows_and_metrics_columns(study: Path) -> None:
    data = load_study(study)
    assert [(run.arm, run.seed) for run in data.runs] == [("grpo", 0), ("grpo", 1), ("gspo", 0), ("gspo", 1)]
    steps = data.steps
    assert list(steps.columns[:4]) == ["arm", "algorithm", "seed", "step"]
    assert len(steps) == 4 * 3 and not steps.duplicated(["arm", "seed", "step"]).any()
    assert "lr" not in steps  # an `update` line's
    for run in data.runs:
        mine = steps[(steps["arm"] == run.arm) & (steps["seed"] == run.seed)].set_index("step")
        for text in (run.folder / "metrics.jsonl").read_text().splitlines():
            record = json.loads(text)
            if record["kind"] == "update":
                continue
            for name, value in record["metrics"].items():
                found = mine.loc[record["step"], name]
                assert math.isnan(found) if value is None else found == value, (run.folder.name, name)


def test_updates_have_their_mini_batches(study: Path) -> None:
    updates = load_study(study).updates
    assert len(updates) == 4 * 3 * 4
    assert all(list(found) == [0, 1, 2, 3] for _, found in updates.groupby(["arm", "seed", "step"])["mini_batch"])
    assert "lr" in updates and "reward/mean" not in updates
    assert not [name for name in updates if "/layer_" in name]


def test_evaluations_non_finite_values_and_foreign_names(tmp_path: Path) -> None:
    lines = [
        line(0, "eval", None, {"aime24/avg@8": 0.25}, {}),
        line(1, "rollout", None, {"reward/mean": math.inf, "trl/loss": 3.0, "lag/mean": None}, {}),
        line(1, "step", None, {"clip/token_frac": 0.5, "unknown": 1.0}, {}),
    ]
    write_run(tmp_path / "s", "grpo", 0, lines)
    steps = load_study(tmp_path / "s").steps
    assert steps["step"].tolist() == [0, 1]
    assert steps["aime24/avg@8"].tolist()[0] == 0.25 and pd.isna(steps["aime24/avg@8"][1])
    assert steps["reward/mean"][1] == math.inf and steps["trl/loss"][1] == 3.0
    assert steps["lag/mean"].isna().all()
    assert "unknown" not in steps


def test_arms_that_log_different_metrics_stand_in_one_frame(tmp_path: Path) -> None:
    write_run(tmp_path / "s", "gspo", 0, records("gspo", 0, 2))
    write_run(tmp_path / "s", "mine", 0, records("gspo", 0, 2, dense=True), algorithm="gspo")
    steps = load_study(tmp_path / "s").steps
    assert steps[steps["arm"] == "mine"]["moe/slot_churn_step/layer_02"].isna().all()
    assert steps[steps["arm"] == "gspo"]["moe/slot_churn_step/layer_02"].notna().all()
    assert set(steps["algorithm"]) == {"gspo"}


def test_stored_responses(study: Path) -> None:
    for seed, rewards in ((0, [0.0, 1.0]), (1, [1.0, 1.0])):
        folder = study / f"grpo-s{seed}" / "rollouts"
        folder.mkdir()
        for step in (1, 2):
            frame = pd.DataFrame({"step": step, "seed": [7, 8], "text": ["a", "b"], "reward": rewards})
            frame.to_parquet(folder / f"step_{step:06d}.parquet")
    data = load_study(study)
    everything = data.rollouts()
    assert len(everything) == 8 and list(everything.columns[:4]) == ["arm", "algorithm", "seed", "step"]
    assert everything.groupby("seed")["reward"].mean().tolist() == [0.5, 1.0]
    assert everything["sample_seed"].tolist() == [7, 8] * 4
    one = data.rollouts("grpo", seed=1, step=2)
    assert one["step"].tolist() == [2, 2] and one["seed"].tolist() == [1, 1]
    assert data.rollouts("gspo").empty

    (study / "grpo-s0" / "rollouts" / "step_000002.parquet").write_bytes(b"PAR1 not so")
    assert "step_000002" in refusal(data.rollouts, "grpo", seed=0)
