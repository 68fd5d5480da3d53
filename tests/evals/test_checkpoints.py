"""Evaluating runs: their checkpoints, the figure over them, and the scores logged while training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from program import Gspo, strict_lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, smoke: Path) -> Path:
    """Two runs of one study that differ in length; the shorter one's weights are a checkpoint of the longer one."""
    from typer.testing import CliRunner

    from gspo_cli.cli.main import app

    out = tmp_path_factory.mktemp("results")
    for steps in (1, 2):
        sets = ["--set", "eval.limit=20", "--set", "rollout.store=0", "--set", "eval.samples=2"]
        result = CliRunner().invoke(
            app, ["train", str(smoke), "--out", str(out), "--name", f"n{steps}", "--steps", str(steps), *sets]
        )
        assert result.exit_code == 0, result.stderr
    one, run = out / "n1" / "gspo-s0", out / "n2" / "gspo-s0"
    shutil.copytree(one / "checkpoints" / "step-000001", run / "checkpoints" / "step-000001")
    return run


def test_the_last_checkpoint_repeats_what_training_logged(gspo_here: Gspo, trained: Path) -> None:
    log = (trained / "metrics.jsonl").read_bytes()
    done = gspo_here("eval", "benchmarks", trained, "--limit", "20", "--samples", "2", "--json", "--overwrite")
    said = json.loads(done.out)
    logged = [line for line in strict_lines(trained / "metrics.jsonl") if line["kind"] == "eval"][-1]
    assert logged["metrics"] == {"arithmetic/avg@2": said["average"]}
    assert logged["counts"] == {"arithmetic/avg@2": 40}
    assert (trained / "metrics.jsonl").read_bytes() == log
    assert Path(said["folder"]) == trained / "eval" / "arithmetic" / "step-000002"


def test_every_checkpoint_and_the_figure(gspo_here: Gspo, trained: Path) -> None:
    done = gspo_here(
        "eval", "benchmarks", trained, "--all-checkpoints", "--limit", "20", "--samples", "2", "--overwrite", "--json"
    )
    assert done.code == 0, done.err
    said = [json.loads(line) for line in done.out.splitlines()]
    assert [Path(s["folder"]).name for s in said] == ["step-000000", "step-000001", "step-000002"]
    assert len({s["model_sha256"] for s in said}) == 3
    logged = [line["metrics"] for line in strict_lines(trained / "metrics.jsonl") if line["kind"] == "eval"]
    assert [m["arithmetic/avg@2"] for m in logged] == [s["average"] for s in said]
    assert (trained / "figures" / "score-arithmetic-avg2.csv").is_file()
    table = gspo_here("eval", "benchmarks", trained, "--all-checkpoints", "--limit", "20", "--samples", "2")
    assert table.code == 0 and "used again" in table.err


def test_training_evaluates_on_data_of_ones_own(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    data = tmp_path / "aime.jsonl"
    data.write_text("".join(json.dumps({"problem": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(5)))
    train = ("train", smoke, "--out", tmp_path / "out", "--name", "s", "--steps", "1", "--set", "eval.samples=2")
    sets = ["--set", "eval.bench=['aime24', 'arithmetic']", "--set", "eval.limit=3", "--set", "rollout.store=0"]
    done = gspo_here(*train, *sets)
    assert done.code == 2 and "cannot get the problems of aime24" in done.err
    assert not (tmp_path / "out").exists()
    short = ["--set", "eval.max_new_tokens=4"]
    done = gspo_here(*train, *sets, *short, "--set", f"eval.data={{aime24 = '{data}'}}")
    assert done.code == 0, done.err
    lines = [line for line in strict_lines(tmp_path / "out/s/gspo-s0/metrics.jsonl") if line["kind"] == "eval"]
    assert [set(line["metrics"]) for line in lines] == [{"aime24/avg@2", "arithmetic/avg@2"}] * 2
    assert lines[0]["counts"] == {"aime24/avg@2": 6, "arithmetic/avg@2": 6}
