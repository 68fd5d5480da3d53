"""Logs of TRL and verl as runs: what gets our names, what keeps its own, and that nothing is judged by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, strict_lines

from gspo_cli.runlog.import_logs import TRL, VERL, translate_metrics
from gspo_cli.runlog.schema import METRICS


def trl(path: Path, level: float) -> Path:
    """A `trainer_state.json` as the trainer saves it: steps, an evaluation and a closing summary."""
    history: list[dict[str, Any]] = [
        {"step": step, "epoch": 0.1, "loss": 0.01, "reward": level + 0.01 * step, "reward_std": 0.3, "grad_norm": 0.5,
         "learning_rate": 1e-6, "completions/mean_length": 100.0 + step, "completions/clipped_ratio": 0.125,
         "clip_ratio/region_mean": 0.02, "frac_reward_zero_std": 0.25, "num_tokens": 5000.0 * step}
        for step in (1, 2, 3, 4)
    ]  # fmt: skip
    history += [{"step": 4, "eval_loss": 0.5}, {"step": 4, "train_runtime": 9.0, "train_loss": 0.1}]
    path.write_text(json.dumps({"global_step": 4, "log_history": history}))
    return path


def verl(path: Path, level: float) -> Path:
    """verl's file logger: a line a step, the first a validation before training."""
    rows: list[dict[str, Any]] = [{"step": 0, "data": {"val-core/gsm8k/acc/mean@1": 0.1}}]
    rows += [
        {"step": step, "data": {
            "critic/score/mean": level, "critic/rewards/mean": level - 0.1, "response_length/mean": 80.0,
            "actor/pg_clipfrac": 0.01, "actor/grad_norm": float("nan") if step == 2 else 1.0, "timing_s/gen": 2.0,
            "timing_s/update_actor": 3.0, "training/global_step": step}}
        for step in (1, 2, 3)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_names_of_the_tables_exist_here() -> None:
    for table in (TRL, VERL):
        for line, name in table.values():
            assert line in METRICS[name].lines.split(", "), name


def test_only_what_means_the_same_gets_our_name() -> None:
    found = translate_metrics(
        "trl", {"reward": 0.5, "loss": 1.0, "clip_ratio/region_mean": 0.2, "step": 3, "note": "x"}
    )
    assert found == {"rollout": {"reward/mean": 0.5, "trl/loss": 1.0, "trl/clip_ratio/region_mean": 0.2}}
    found = translate_metrics("verl", {"critic/score/mean": 0.5, "critic/rewards/mean": 0.4, "actor/grad_norm": 2.0})
    assert found == {"rollout": {"reward/mean": 0.5, "verl/critic/rewards/mean": 0.4}, "step": {"grad/norm": 2.0}}


def test_imported_runs_are_drawn_described_and_verified(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in (0, 1):
        for algo, log in (("grpo", trl(tmp_path / "state.json", 0.4)), ("gspo", verl(tmp_path / "v.jsonl", 0.5))):
            put = ("--algo", algo, "--seed", str(seed), "--name", "theirs", "--out", str(tmp_path))
            done = gspo_here("runs", "import", str(log), *put)
            assert done.code == 0, done.err
    study = tmp_path / "theirs"
    lines = strict_lines(study / "grpo-s1" / "metrics.jsonl")
    assert [(r["step"], r["kind"]) for r in lines[:3]] == [(1, "rollout"), (1, "step"), (2, "rollout")]
    assert lines[0]["metrics"]["reward/mean"] == pytest.approx(0.41) and lines[1]["metrics"] == {"grad/norm": 0.5}
    assert "eval_loss" not in str(lines) and lines[-1]["step"] == 4
    own = strict_lines(study / "gspo-s0" / "metrics.jsonl")
    assert own[3]["nonfinite"] == {"grad/norm": "nan"}
    times = strict_lines(study / "gspo-s0" / "perf.jsonl")
    assert (times[0]["rollout_s"], times[0]["update_s"]) == (2.0, 3.0)
    assert gspo_here("runs", "verify", str(study)).code == 0
    assert gspo_here("report", "plots", str(study)).code == 0
    found = json.loads(gspo_here("report", "compare", str(study), "--json").out)
    assert found["verdict"] == "descriptive" and "p_t" not in found and not (study / "compare.json").exists()
    assert {arm["arm"]: round(arm["values"]["0"], 3) for arm in found["arms"]} == {"grpo": 0.425, "gspo": 0.5}
    text = gspo_here("report", "compare", str(study)).out
    assert "no arm is ranked" in text and "optimizer step in some runs, rollout batch" in text
    assert not any(word in text for word in ("better", "significant", "wins", "outperforms"))
    assert gspo_here("report", "compare", str(study), "--require", "better").code == 3
    done = gspo_here("report", "html", str(study))
    assert done.code == 0, done.err
    assert "no arm is ranked" in (study / "report.html").read_text()
    again = gspo_here("runs", "import", str(tmp_path / "v.jsonl"), *put)
    assert again.code == 2 and "exists" in again.err


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"log_history": []}', '{"step": 1}', "[1]", '{"log_history": [{"reward": 1}]}',
     *(f'{{"log_history": [{{"step": {step}, "reward": {reward}}}]}}'
       for step, reward in (("2.5", "1"), ("-7", "1"), ("true", "1"), ("1", "true"), ("1", '"good"'))),
     '{"log_history": [{"step": 1, "reward": 1, "reward": 2}]}'],
)  # fmt: skip
def test_what_is_no_log(tmp_path: Path, gspo_here: Gspo, text: str) -> None:
    for name in ("x.json", "x.jsonl"):
        (tmp_path / name).write_text(text)
        done = gspo_here(
            "runs", "import", str(tmp_path / name), "--algo", "grpo", "--name", "t", "--out", str(tmp_path)
        )
        assert done.code == 2 and done.err.count("\n") == 3, done.err
        assert not (tmp_path / "t").exists()
