"""Collapse seen while a run trains: by the rule the recipe fixed, once, as an event with its step."""

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_cli import recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.log import RunLog
from gspo_cli.training.guards import CollapseWatch
from gspo_cli.types import StepMetrics


def watch(folder: Path, stop: bool = False, steps: int = 20) -> tuple[CollapseWatch, list[str]]:
    sets = [f"train.steps={steps}", f"train.stop_on_collapse={str(stop).lower()}"]
    said: list[str] = []
    return CollapseWatch(
        recipe.load("quickstart", {}, sets), RunLog(folder, "0"), lambda event: said.append(event.text)
    ), said


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reward(mean: float) -> dict[str, float | None]:
    """A batch of the quickstart's 32 prompts with 16 responses each: its standard error is 0.05."""
    return {"reward/mean": mean, "reward/std": 0.4, "reward/group_std": 0.3}


def test_a_collapse_is_an_event_with_its_step_and_told_once(tmp_path: Path) -> None:
    seen, said = watch(tmp_path)
    # windows of 2 of 20 planned batches: best 0.6; (0.5 + 0.4) / 2 lies 0.15 below it, 0.2 is half a deviation
    for step, mean in enumerate([0.6, 0.6, 0.5, 0.4, 0.1, 0.1, 0.7, 0.7, 0.0, 0.0], start=1):
        seen.observe(step, reward(mean))
    (event,) = events(tmp_path)
    assert (event["event"], event["step"], event["reward"]) == ("collapsed", 5, pytest.approx(0.25))
    assert len(said) == 1 and "collapsed" in said[0]


def test_stopping_is_a_guard(tmp_path: Path) -> None:
    seen, _ = watch(tmp_path, stop=True)
    for step in (1, 2, 3):
        seen.observe(step, reward(0.9))
    seen.observe(4, reward(0.6))  # (0.9 + 0.6) / 2 lies 0.15 below 0.9
    with pytest.raises(GspoError) as stopped:
        seen.observe(5, reward(0.6))
    assert stopped.value.code == ExitCode.GUARD and "rollout batch 5" in stopped.value.message


def test_signs_are_warnings(tmp_path: Path) -> None:
    seen, said = watch(tmp_path, stop=True)
    for step in range(1, 8):
        seen.observe(step, {"reward/mean": 0.5, "entropy/mean": 1.0, "kl/sampler_trainer_k3": 1e-4})
    seen.observe(8, {"reward/mean": 0.5, "entropy/mean": 0.09, "kl/sampler_trainer_k3": 2e-3})
    seen.observe(9, {"reward/mean": 0.5, "entropy/mean": 0.01, "kl/sampler_trainer_k3": None})
    found = [(e["event"], e["metric"], e["step"]) for e in events(tmp_path)]
    assert found == [("sign_of_collapse", name, 8) for name in ("entropy/mean", "kl/sampler_trainer_k3")]
    assert len(said) == 2


def test_a_run_taken_up_again_remembers(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "0")
    for step, mean in enumerate([0.9, 0.9, 0.9, 0.6], start=1):
        log.line("rollout", step, StepMetrics(reward(mean)))
        log.line("step", step, StepMetrics({"entropy/mean": 1.0}))
    log.flush()
    seen, said = watch(tmp_path)
    seen.observe(5, reward(0.6) | {"entropy/mean": 0.05})
    assert [event["event"] for event in events(tmp_path)] == ["sign_of_collapse", "collapsed"] and len(said) == 2
    again, said = watch(tmp_path)
    assert again.history.last == pytest.approx(0.75) and said == []
