"""Evaluating runs: their checkpoints, the figure over them, and the scores logged while training."""

import json
from pathlib import Path

import pytest
from program import Gspo, check_refused, objects, ok, strict_lines

FEW = ("--limit", "20", "--samples", "2")


@pytest.fixture(scope="module")
def evaluated(gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint and scores before training and after each of its two batches."""
    out = tmp_path_factory.mktemp("results")
    sets = ("eval.limit=20", "eval.samples=2", "rollout.store=0", "checkpoint.every=1", "checkpoint.keep=3")
    ok(gspo_forked("train", smoke, "--out", out, "--name", "n", *(f"--set={one}" for one in sets)))
    return out / "n" / "gspo-s0"


def test_every_checkpoint_repeats_what_training_logged_and_is_drawn(gspo_here: Gspo, evaluated: Path) -> None:
    log = (evaluated / "metrics.jsonl").read_bytes()
    done = ok(gspo_here("eval", "benchmarks", evaluated, "--all-checkpoints", *FEW, "--overwrite", "--json"))
    said = objects(done.out)
    folders = [evaluated / "eval" / "arithmetic" / f"step-{step:06d}" for step in (0, 1, 2)]
    assert [s["folder"] for s in said] == [str(folder) for folder in folders]
    assert len({s["model_sha256"] for s in said}) == 3
    logged = [line for line in strict_lines(evaluated / "metrics.jsonl") if line["kind"] == "eval"]
    assert [line["metrics"] for line in logged] == [{"arithmetic/avg@2": s["average"]} for s in said]
    assert [line["counts"] for line in logged] == [{"arithmetic/avg@2": 40}] * 3
    assert (evaluated / "metrics.jsonl").read_bytes() == log
    assert (evaluated / "figures" / "score-arithmetic-avg2.csv").is_file()
    assert "used again" in (again := ok(gspo_here("eval", "benchmarks", evaluated, "--all-checkpoints", *FEW))).err
    assert "logged arithmetic with" not in again.err
    hot = ok(gspo_here("eval", "benchmarks", evaluated, *FEW, "--temperature", "2", "--overwrite"))
    assert "logged arithmetic with the benchmark's own temperature: this is another measurement" in hot.err
    other = ok(gspo_here("eval", "benchmarks", evaluated, "--samples", "2", "--overwrite"))
    assert "gspo-s0 logged arithmetic with eval.limit = 20: this is another measurement" in other.err


def test_training_evaluates_on_data_of_ones_own(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    data = tmp_path / "aime.jsonl"
    data.write_text("".join(json.dumps({"problem": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(5)))
    train = ("train", smoke, "--out", tmp_path / "out", "--name", "s", "--steps", "1", "--set", "eval.samples=2")
    sets = ["--set", "eval.bench=['aime24', 'arithmetic']", "--set", "eval.limit=3", "--set", "rollout.store=0"]
    check_refused(gspo_here(*train, *sets), "cannot get the problems of aime24")
    assert not (tmp_path / "out").exists()
    short = ["--set", "eval.max_new_tokens=4"]
    ok(gspo_here(*train, *sets, *short, "--set", f"eval.data={{aime24 = '{data}'}}"))
    lines = [line for line in strict_lines(tmp_path / "out/s/gspo-s0/metrics.jsonl") if line["kind"] == "eval"]
    assert [set(line["metrics"]) for line in lines] == [{"aime24/avg@2", "arithmetic/avg@2"}] * 2
    assert lines[0]["counts"] == {"aime24/avg@2": 6, "arithmetic/avg@2": 6}
