"""What `gspo runs prune` frees, and what it must leave: unfinished runs, weights, and a study that verifies."""

import json
import os
import shutil
from pathlib import Path

import pytest
from program import Gspo, check_refused, ok, tree


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """A copy of two complete runs from one start model."""
    return Path(shutil.copytree(trained, tmp_path / "demo"))


def test_without_yes_nothing_changes(study: Path, gspo_here: Gspo) -> None:
    before = tree(study)
    done = gspo_here("runs", "prune", study)
    assert done.code == 0 and "would be freed by --yes" in done.out
    found = json.loads(gspo_here("runs", "prune", study, "--json").out)
    assert found["bytes"] > 0 and not found["freed"]
    assert tree(study).keys() == before.keys()


def test_the_optimizer_goes_copies_become_links_and_the_study_verifies(study: Path, gspo_here: Gspo) -> None:
    before = tree(study)
    promised = json.loads(gspo_here("runs", "prune", study, "--json").out)["bytes"]
    assert json.loads(gspo_here("runs", "prune", study, "--yes", "--json").out)["bytes"] == promised
    after = tree(study)
    gone = before.keys() - after.keys()
    assert gone and all("/optimizer" in name for name in gone)
    assert promised > sum(len(before[name]) for name in gone)  # the copies
    assert all(after[name] == before[name] for name in after if not name.endswith("run.lock"))
    one, other = (study / run / "checkpoints/step-000000/model/model.safetensors" for run in ("grpo-s0", "gspo-s0"))
    assert one.samefile(other)
    assert gspo_here("runs", "verify", study).code == 0
    assert json.loads(gspo_here("runs", "prune", study, "--json").out)["bytes"] == 0
    ok(gspo_here("eval", "benchmarks", study / "gspo-s0", "--limit", "2", "--samples", "1", "--overwrite"))


def test_unfinished_runs_keep_all(study: Path, gspo_here: Gspo) -> None:
    for run in ("grpo-s0", "gspo-s0"):
        events = study / run / "events.jsonl"
        lines = events.read_text().splitlines(keepends=True)
        events.write_text("".join(line for line in lines if '"event":"end"' not in line))
    before = tree(study)
    done = gspo_here("runs", "prune", study, "--yes")
    assert done.code == 0 and "2 unfinished runs not touched" in done.err
    assert tree(study) == before


def test_a_damaged_copy_is_not_spread(study: Path, gspo_here: Gspo) -> None:
    copy = study / "gspo-s0/checkpoints/step-000000/model/model.safetensors"
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(bytes(data))
    assert gspo_here("runs", "prune", study, "--yes").code == 0
    original = study / "grpo-s0/checkpoints/step-000000/model/model.safetensors"
    assert copy.read_bytes() == bytes(data) != original.read_bytes()
    assert gspo_here("runs", "verify", study).code == 3


@pytest.mark.slow
def test_complete_runs_keep_no_optimizer_by_default(smoke: Path, gspo_here: Gspo, tmp_path: Path) -> None:
    words = ("--out", tmp_path, "--name", "lean", "--set", "checkpoint.keep_optimizer=false")
    ok(gspo_here("train", smoke, "--algo", "grpo,gspo", *words))
    study = tmp_path / "lean"
    assert not [name for name in tree(study) if "/optimizer" in name]
    [start] = {(study / run / "checkpoints/step-000000/model/model.safetensors").stat().st_ino
               for run in ("grpo-s0", "gspo-s0")}  # fmt: skip
    cached = Path(os.environ["GSPO_CACHE"]).rglob("model.safetensors")
    assert start in {path.stat().st_ino for path in cached}
    assert json.loads(gspo_here("runs", "prune", study, "--json").out)["bytes"] == 0
    assert gspo_here("runs", "verify", study).code == 0
    before = tree(study)
    again = gspo_here("train", "--resume", study)
    assert again.code == 0 and "run lean" not in again.err
    more = gspo_here("train", "--resume", study / "gspo-s0", "--steps", "3", "--allow-change", "train.steps")
    check_refused(more, "checkpoint.keep_optimizer=true")
    kept = {name: data for name, data in tree(study).items() if not name.endswith("run.lock")}
    assert kept == {name: data for name, data in before.items() if not name.endswith("run.lock")}
