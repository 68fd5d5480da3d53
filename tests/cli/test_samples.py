"""Sampled responses: kept by every run, printed by `gspo runs samples`, shown while training."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from program import Done, Gspo, check_refused, objects, ok

REWARDS = "task.rewards=[{name='task'}, {name='length', weight=0.5, tokens=[2, 8]}]"
SETS = ["--set", "eval.bench=[]", "--set", "rollout.store=0", "--set", "rollout.samples=8", "--set", REWARDS]


@pytest.fixture(scope="module")
def sampled(gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A run of two rollout batches that asked for its samples."""
    out = tmp_path_factory.mktemp("samples")
    done = ok(gspo_forked("train", smoke, "--out", out, "--name", "one", "--show-samples", *SETS))
    return out / "one" / "gspo-s0", done


def rows(done: Done) -> list[dict[str, object]]:
    """What `--json` printed."""
    return objects(ok(done).out)


def test_every_run_keeps_its_first_and_its_newest_batch(sampled: tuple[Path, Done], gspo_here: Gspo) -> None:
    run, done = sampled
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == ["step_000001.parquet", "step_000002.parquet"]
    assert "responses of rollout batch 1 to: " in done.err and "  reward " in done.err
    newest = rows(gspo_here("runs", "samples", run, "--limit", "99", "--json"))
    assert {row["step"] for row in newest} == {2} and len(newest) == 4 * 8
    assert {"prompt", "text", "reward", "parts", "finish", "reason", "tokens"} <= newest[0].keys()


def test_samples_are_filtered(sampled: tuple[Path, Done], gspo_here: Gspo) -> None:
    run, _ = sampled
    everything = rows(gspo_here("runs", "samples", run, "--step", "all", "--limit", "999", "--json"))
    for options, wanted in (
        (["--reward", "0.5.."], lambda row: row["reward"] >= 0.5),
        (["--reward", "..0"], lambda row: row["reward"] <= 0),
        (["--reward", "0"], lambda row: row["reward"] == 0),
        (["--reward", "0", "--part", "length"], lambda row: row["parts"]["length"] == 0),
        (["--cut-off"], lambda row: row["finish"] == "length"),
        (["--whole"], lambda row: row["finish"] == "stop"),
        (["--grep", str(everything[0]["text"])], lambda row: str(everything[0]["text"]) in row["prompt"] + row["text"]),
    ):
        found = rows(gspo_here("runs", "samples", run, "--step", "all", "--limit", "999", "--json", *options))
        assert found == [row for row in everything if wanted(row)], options
    for option, part, key in (
        ("--lowest", [], lambda row: row["reward"]), ("--highest", [], lambda row: -row["reward"]),
        ("--lowest", ["--part", "length"], lambda row: row["parts"]["length"]),
    ):  # fmt: skip
        found = rows(gspo_here("runs", "samples", run, "--step", "all", "--limit", "5", "--json", option, *part))
        assert found == sorted(everything, key=key)[:5] and len({key(row) for row in everything}) > 1, option
    assert all(row["reward"] == row["parts"]["task"] + 0.5 * row["parts"]["length"] for row in everything)
    assert gspo_here("runs", "samples", run, "--step", "first", "--limit", "2").out.count("--- sample") == 2
    for options, word in ((["--reward", "2..1"], "no range"), (["--reward", "nan.."], "no range"),
                          (["--step", "7"], "is not stored"),
                          (["--lowest", "--part", "lenght"], "its parts are length, task")):  # fmt: skip
        check_refused(gspo_here("runs", "samples", run, *options), word)


def test_a_prompt_is_printed_as_the_model_saw_it(sampled: tuple[Path, Done], gspo_here: Gspo, tmp_path: Path) -> None:
    run = shutil.copytree(sampled[0], tmp_path / "one" / "gspo-s0")
    stored = run / "rollouts" / "step_000002.parquet"
    ids = json.loads((next(run.glob("checkpoints/*/model/tokenizer.json"))).read_text())["model"]["vocab"]
    seen = [ids[sign] for sign in "7+1="]
    table = pq.read_table(stored).drop(["parts"])  # as a run with a single reward stores it
    at = table.schema.get_field_index("prompt_ids")
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array([seen] * len(table), pa.list_(pa.int32()))), stored
    )
    found = rows(gspo_here("runs", "samples", run, "--json"))
    assert {row["prompt"] for row in found} == {"7+1="}
    shutil.rmtree(run / "checkpoints")
    found = rows(gspo_here("runs", "samples", run, "--json"))
    assert {row["prompt"] for row in found} <= set(table["prompt"].to_pylist())
