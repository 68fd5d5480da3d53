"""Same seed, same bytes, whatever Python's hash seed; and the golden run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import golden
import pyarrow.parquet as pq
import pytest
import toy
from program import strict_lines

from gspo_cli.seeds import derive_seed


@pytest.mark.slow
def test_the_same_bytes_for_any_hash_seed(start: Path, ram: Path) -> None:
    program = (
        "import sys, toy; from pathlib import Path; start, study = map(Path, sys.argv[1:])\n"
        "toy.train(toy.recipe(start, train={'steps': 4}), study)"
    )
    path = os.pathsep.join([str(Path(toy.__file__).parent), *sys.path])
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # this process's is random, if none was set
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(start), str(ram / "other")],
        env=os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": path},
    )
    toy.train(toy.recipe(start, train={"steps": 4}), ram / "own")
    assert process.wait(timeout=110) == 0
    own, others = ((ram / name / "gspo-s0" / "metrics.jsonl").read_bytes() for name in ("own", "other"))
    assert own == others


def test_another_seed_is_another_run(start: Path, ram: Path) -> None:
    logs = [
        strict_lines(toy.train(toy.recipe(start).model_copy(update={"seed": s}), ram / str(s)) / "metrics.jsonl")
        for s in (0, 1)
    ]
    assert logs[0][0]["metrics"] != logs[1][0]["metrics"]


def rows(run: Path, step: int) -> dict[str, list[Any]]:
    """A stored rollout batch."""
    return dict(pq.read_table(run / "rollouts" / f"step_{step:06d}.parquet").to_pydict())


def test_each_sample_has_a_seed_of_its_own_whatever_the_algorithm(start: Path, ram: Path) -> None:
    runs = [toy.train(toy.recipe(start, algo={"name": name}), ram / name) for name in ("grpo", "gspo")]
    for step in (1, 2):
        first, second = (rows(run, step) for run in runs)
        keys = zip(first["problem_id"], first["sample"], strict=True)
        assert first["seed"] == [derive_seed(0, "sample", step, *key) for key in keys] == second["seed"]
        assert len(set(first["seed"])) == 8
    assert rows(runs[0], 1)["token_ids"] == rows(runs[1], 1)["token_ids"]  # equal weights, equal draws


def test_the_golden_run(ram: Path) -> None:
    made = strict_lines(golden.make(ram / "study"))
    logs = golden.known_logs()
    assert logs
    for known, is_exact in logs.items():
        if is_exact:
            golden.assert_equal(strict_lines(known), made)
        else:
            golden.compare(strict_lines(known), made, 1)


def test_the_golden_comparison_sees_a_difference() -> None:
    known = strict_lines(next(iter(golden.known_logs())))
    assert len({line["step"] for line in known}) == 20
    changed = json.loads(json.dumps(known))
    changed[1]["metrics"]["loss"] += 1e-3
    with pytest.raises(AssertionError, match="loss"):
        golden.compare(known, changed, 1)


@pytest.mark.parametrize("name", ["mismatch/floor_of_band", "mismatch/floor"])
def test_the_golden_comparison_takes_bands_for_what_they_are(name: str) -> None:
    known = strict_lines(next(iter(golden.known_logs())))
    rounded = json.loads(json.dumps(known))
    rounded[0]["metrics"] |= {"mismatch/floor": 5e-8, "mismatch/floor_of_band": 5e-8 / golden.EDGE}  # another processor
    golden.compare(known, rounded, 1)
    rounded[0]["metrics"][name] += 1e-3
    with pytest.raises(AssertionError, match=name):
        golden.compare(known, rounded, 1)
