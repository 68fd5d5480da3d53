"""`gspo report batch`: what it refuses, with an error in three parts and exit code 2; what it prints."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch_files import Stored, with_sample
from program import Gspo, save_tiny, tree

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.models.load import weights_hash
from gspo_cli.types import Group, RolloutBatch

Change = Callable[[RolloutBatch], RolloutBatch]


def refused(gspo_here: Gspo, *arguments: str | Path, code: int = 2) -> str:
    """The error of a command that must fail."""
    done = gspo_here("report", "batch", *arguments)
    assert done.code == code
    assert done.out == ""
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["error", "why", "do"]
    return done.err


def on_sample(**changes: object) -> Change:
    """The second sample of the third group with some fields changed; a callable gets the old value."""

    def change(batch: RolloutBatch) -> RolloutBatch:
        old = batch.groups[2].samples[1]
        new = {k: v(getattr(old, k)) if callable(v) else v for k, v in changes.items()}
        return with_sample(batch, 2, 1, replace(old, **new))  # type: ignore[arg-type]

    return change


def on_group(change: Callable[[Group], Group]) -> Change:
    return lambda batch: replace(batch, groups=(change(batch.groups[0]), *batch.groups[1:]))


def alone(group: Group) -> Group:
    return replace(group, samples=group.samples[:1], texts=group.texts[:1], scores=group.scores[:1])


def with_prompt(ids: tuple[int, ...]) -> Change:
    return on_group(lambda group: replace(group, prompt=replace(group.prompt, token_ids=ids)))


BAD_ROWS: dict[str, tuple[Change, str]] = {
    "no groups": (lambda batch: replace(batch, groups=()), "has no groups"),
    "a group of one": (on_group(alone), "has one sample"),
    "an empty response": (on_sample(token_ids=(), log_probs=()), "token_ids: Tuple should have at least 1 item"),
    "no log_probs": (on_sample(log_probs=None), "log_probs: Input should be a valid tuple"),
    "too few log_probs": (on_sample(log_probs=lambda p: p[:-1]), "log_probs for"),
    "nan": (on_sample(log_probs=lambda p: (math.nan, *p[1:])), "log_probs.0: Input should be a finite number"),
    "a probability above 1": (on_sample(log_probs=lambda p: (0.5, *p[1:])), "log_probs.0: Input should be less than"),
    "a token too high": (on_sample(token_ids=lambda t: (99, *t[1:])), "holds token id 99"),
    "a prompt token too high": (with_prompt((7, 1000)), "holds token id 1000"),
    "a sample twice": (on_sample(index=0), "holds a sample twice"),
    "an infinite reward": (
        on_group(lambda group: replace(group, scores=(replace(group.scores[0], value=math.inf), *group.scores[1:]))),
        "reward: Input should be a finite number",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_trained_on(gspo_here: Gspo, stored: Stored, tmp_path: Path, name: str) -> None:
    change, message = BAD_ROWS[name]
    file = stored.rewrite(tmp_path, change(stored.batch))
    assert message in refused(gspo_here, file, "--model", stored.start)
    assert not (tmp_path / "batch-report").exists()


def test_no_file_and_a_folder_with_two(gspo_here: Gspo, stored: Stored, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.parquet", tmp_path):
        assert f"no rollout batch at {path}" in refused(gspo_here, path, "--model", stored.start)
    assert "no model in" in refused(gspo_here, stored.file, "--model", tmp_path / "nothing")
    for step in (1, 2):
        shutil.copy(stored.file, tmp_path / f"step_{step:06d}.parquet")
    error = refused(gspo_here, tmp_path, "--model", stored.start)
    assert "2 rollout batches" in error and f"name one: {tmp_path / 'step_000001.parquet'}" in error


def with_column(name: str, first: object, last: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = pa.array([first] * (len(table) - 1) + [last])
        return table.set_column(table.schema.get_field_index(name), name, values)

    return change


BAD_TABLES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "columns missing": (lambda table: table.drop_columns(["log_probs", "reward"]), "log_probs: Field required"),
    "texts for tokens": (with_column("token_ids", "a", "a"), "token_ids: Input should be a valid tuple"),
    "two batches": (with_column("step", 1, 2), "mixes 2 rollout batches"),
    "weights not named": (
        lambda table: table.replace_schema_metadata({"gspo.temperature": "1"}), "does not name the weights",
    ),
    "another program's": (
        lambda table: table.replace_schema_metadata({"gspo.other": "1"}),
        "lacks gspo.model_sha256, gspo.tokenizer_sha256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables_that_are_no_batch(gspo_here: Gspo, stored: Stored, tmp_path: Path, name: str) -> None:
    change, message = BAD_TABLES[name]
    pq.write_table(change(pq.read_table(stored.file)), tmp_path / "x.parquet")
    assert message in refused(gspo_here, tmp_path / "x.parquet", "--model", stored.start)


@pytest.mark.parametrize("temperature", ["0.0", "-1", "nan", "warm"])
def test_a_temperature_without_ratios(gspo_here: Gspo, stored: Stored, tmp_path: Path, temperature: str) -> None:
    file = stored.rewrite(tmp_path, temperature=temperature)
    assert f"temperature {temperature}" in refused(gspo_here, file, "--model", stored.start)


def test_another_model_names_both(gspo_here: Gspo, stored: Stored) -> None:
    error = refused(gspo_here, stored.file, "--model", stored.later)
    assert stored.metadata["model_sha256"][:12] in error
    assert weights_hash(stored.later_model)[:12] in error


@pytest.mark.parametrize("option", ["--model", "--against"])
def test_another_tokenizer_names_both(gspo_here: Gspo, stored: Stored, tmp_path: Path, option: str) -> None:
    first = () if option == "--model" else ("--model", stored.start)
    error = refused(gspo_here, stored.file, *first, option, save_tiny(tmp_path / "bytes", tokenizer="bytes"))
    assert f"tokenizer {stored.metadata['tokenizer_sha256'][:12]}" in error


@pytest.mark.slow
def test_json_and_tables_of_one_report(gspo_here: Gspo, stored: Stored, tmp_path: Path) -> None:
    arguments = ("report", "batch", stored.file.parent, "--model", stored.start, "--against", stored.later, "--out")
    as_json = gspo_here(*arguments, tmp_path / "a", "--json")
    as_text = gspo_here(*arguments, tmp_path / "b")
    assert (as_json.code, as_json.err, as_text.code) == (0, "", 0)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(as_json.out, parse_constant=refuse)
    assert list(found["algorithms"]) == list(found["cosine"]) == list(ALGORITHMS)
    figures = {str(Path(p).relative_to(tmp_path / "a")) for paths in found["figures"].values() for p in paths}
    files = tree(tmp_path / "a")
    assert files == tree(tmp_path / "b")  # the same inputs give the same bytes
    assert set(files) == figures | {"batch.json"} and len(files) == 13
    assert all(f"\n{name} " in as_text.out for name in ALGORITHMS)
    assert as_text.err.splitlines() == found["notes"]
