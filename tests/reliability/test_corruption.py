"""A checkpoint with one changed bit or file is refused, said aloud, and the older one used; never loaded in silence."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from test_exact_resume import cut_after

from gspo_cli.config import CheckpointConfig
from gspo_cli.errors import GspoError
from gspo_cli.events import Emit, Event, Noted, ignore
from gspo_cli.runlog.checksums import read_checksums, write_run_checksums
from gspo_cli.training import run as training
from gspo_cli.training.state import checkpoint_folder
from gspo_cli.training.state.checkpoint_folder import Damaged, describe, verify

FLIPS = 200


@pytest.fixture(scope="module")
def whole(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a critic, so that every kind of file is there, that was killed before its end."""
    recipe = toy.recipe(start, algo={"name": "ppo"})
    run = toy.train(recipe, tmp_path_factory.mktemp("whole"))
    cut_after(run, 2)
    return run


@pytest.fixture
def newest(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of its newest checkpoint."""
    yield shutil.copytree(whole / "checkpoints" / "step-000002", tmp_path / "step-000002")


@pytest.fixture
def run(whole: Path, ram: Path) -> Path:
    """A copy of it all."""
    return Path(shutil.copytree(whole, ram / "study" / whole.name))


def resumed(run: Path, start: Path, whole: Path, emit: Emit = ignore) -> list[dict[str, Any]]:
    """Resumes the run, which ends with the log of the whole one. Returns the checkpoints that were refused."""
    training.resume(run, lambda _: start, {}, [], [], emit)
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    return toy.events(run, "checkpoint_rejected")


def files(checkpoint: Path) -> list[Path]:
    """All files, the manifest too."""
    return sorted(p for p in checkpoint.rglob("*") if p.is_file())


def test_the_copy_verifies(newest: Path) -> None:
    assert verify(newest).step == 2
    assert len(files(newest)) >= 9


def test_every_flipped_bit_is_refused(newest: Path) -> None:
    rng = random.Random(0)
    everything = files(newest)
    for number in range(FLIPS):
        path = everything[number % len(everything)]
        good = path.read_bytes()
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(Damaged):
            verify(newest)
        path.write_bytes(good)
    assert verify(newest).step == 2


def test_every_missing_file_is_refused(newest: Path) -> None:
    for path in files(newest):
        good = path.read_bytes()
        path.unlink()
        with pytest.raises(Damaged, match=path.name):
            verify(newest)
        path.write_bytes(good)


def added(checkpoint: Path) -> None:
    (checkpoint / "model" / "more.json").write_text("{}")


def linked(checkpoint: Path) -> None:
    path = checkpoint / "state.json"
    path.rename(checkpoint.parent / "elsewhere.json")
    path.symlink_to(checkpoint.parent / "elsewhere.json")


def longer(checkpoint: Path) -> None:
    with (checkpoint / "state.json").open("a") as file:
        file.write("\n")


def outside(checkpoint: Path) -> None:
    path = checkpoint / "MANIFEST.json"
    path.write_text(path.read_text().replace('"state.json"', '"../state.json"'))


def newer_schema(checkpoint: Path) -> None:
    path = checkpoint / "MANIFEST.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))


def of_another_step(checkpoint: Path) -> None:
    (checkpoint / "MANIFEST.json").write_text(describe(checkpoint, 3).text())


@pytest.mark.parametrize("damage", [added, linked, longer, outside, newer_schema, of_another_step])
def test_other_damage_is_refused(newest: Path, damage: Callable[[Path], None]) -> None:
    damage(newest)
    with pytest.raises(Damaged):
        verify(newest)


def test_the_older_one_is_used_and_that_is_said(whole: Path, start: Path, run: Path) -> None:
    longer(run / "checkpoints" / "step-000002")
    said: list[Event] = []
    (event,) = resumed(run, start, whole, said.append)
    assert any(isinstance(e, Noted) and "step-000002 was refused: state.json has" in e.text for e in said)
    assert event["checkpoint"] == "step-000002" and "state.json" in event["reason"]
    assert toy.events(run, "start")[-1]["resumed_from"] == 1
    # the damaged one was put aside, not overwritten, when its step was saved again
    assert (run / "checkpoints" / "step-000002.bad-2").is_dir() and toy.checkpoints(run) == [1, 2]
    assert toy.train(toy.recipe(start, algo={"name": "ppo"}), run.parent) == run


def test_none_left_is_an_error_and_no_new_beginning(start: Path, run: Path) -> None:
    for path in checkpoint_folder.list_checkpoints(run / "checkpoints"):
        longer(path)
    log = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(GspoError) as caught:
        toy.train(toy.recipe(start, algo={"name": "ppo"}), run.parent)
    assert caught.value.code == 6 and "2 were refused" in caught.value.why
    assert (run / "metrics.jsonl").read_bytes() == log
    assert len(toy.events(run, "checkpoint_rejected")) == 2


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ({"version": "1"}, "version"),
        ({"step": 1}, "step 1"),
        ({"updates": -4}, "updates"),
        ({"log": None}, "log"),
        ({"config_sha256": "1" * 64}, "another configuration"),
        ({"start_sha256": "1" * 64}, "start model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_state_that_none_saved_is_refused_though_the_manifest_fits(
    whole: Path, start: Path, run: Path, damage: dict[str, object], why: str
) -> None:
    checkpoint = run / "checkpoints" / "step-000002"
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | damage))
    (checkpoint / "MANIFEST.json").write_text(describe(checkpoint, 2).text())
    (event,) = resumed(run, start, whole)
    assert event["checkpoint"] == "step-000002" and why in event["reason"]


def test_generators_that_none_had_are_refused(whole: Path, start: Path, run: Path) -> None:
    checkpoint = run / "checkpoints" / "step-000002"
    generators = load_file(checkpoint / "rng.safetensors")
    save_file(generators | {"torch": torch.zeros_like(generators["torch"])}, checkpoint / "rng.safetensors")
    (checkpoint / "MANIFEST.json").write_text(describe(checkpoint, 2).text())
    with pytest.raises(GspoError, match="does not fit this run") as caught:
        resumed(run, start, whole)
    assert caught.value.code == 6


def test_events_that_are_no_text_do_not_end_a_resume(whole: Path, start: Path, run: Path) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(b"\xff{{{\n")
    training.resume(run, lambda _: start, {}, [], [], ignore)
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_pipe_is_not_waited_for(whole: Path, start: Path, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(GspoError, match=r"metrics\.jsonl") as caught:
        resumed(run, start, whole)
    assert caught.value.code == 6


def socket_at(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:  # a socket's path may not be long
        server.bind(path.name)


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir, socket_at])
@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json"])
def test_a_checkpoint_with_what_is_no_file_is_not_the_end_of_the_run(
    whole: Path, start: Path, run: Path, name: str, put: Callable[[Path], object]
) -> None:
    path = run / "checkpoints" / "step-000002" / name
    path.unlink()
    put(path)
    (event,) = resumed(run, start, whole)
    assert event["checkpoint"] == "step-000002" and name in event["reason"]


def test_one_checkpoint_alone_cannot_be_asked_for() -> None:
    with pytest.raises(ValidationError):
        CheckpointConfig(keep=1)


def fill(folder: Path) -> None:
    (folder / "file").write_text("text")


def test_saving_where_a_checkpoint_is_already(tmp_path: Path) -> None:
    good = checkpoint_folder.write(tmp_path, 3, 1, fill)
    before = (tmp_path / "step-000003" / "file").stat().st_ino
    assert checkpoint_folder.write(tmp_path, 3, 2, fill) == good
    assert (tmp_path / "step-000003" / "file").stat().st_ino == before  # kept, not replaced
    (tmp_path / "step-000003" / "file").write_text("tex!")
    checkpoint_folder.write(tmp_path, 3, 2, fill)
    assert verify(tmp_path / "step-000003") == good
    assert (tmp_path / "step-000003.bad-2" / "file").read_text() == "tex!"
    shutil.rmtree(tmp_path / "step-000003")
    (tmp_path / "step-000003").mkdir()  # a rename would replace an empty folder in silence
    checkpoint_folder.write(tmp_path, 3, 2, fill)
    assert verify(tmp_path / "step-000003") == good and (tmp_path / "step-000003.bad-2.1").is_dir()


def test_order_is_by_number_and_rotation_by_what_is_on_disk(tmp_path: Path) -> None:
    for step in (9, 10, 1_000_000, 999_999):
        checkpoint_folder.write(tmp_path, step, 1, fill)
    (tmp_path / "step-000011.bad-1").mkdir()
    names = [p.name for p in checkpoint_folder.list_checkpoints(tmp_path)]
    assert names == ["step-000009", "step-000010", "step-999999", "step-1000000"]
    checkpoint_folder.rotate(tmp_path, 2, {9})
    assert [p.name for p in checkpoint_folder.list_checkpoints(tmp_path)] == [names[0], *names[2:]]
    (tmp_path / ".del-step-000010").mkdir()
    (tmp_path / ".tmp-step-000012-1").mkdir()
    checkpoint_folder.sweep(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_seal_takes_the_hashes_of_a_checkpoint_from_its_manifest(tmp_path: Path) -> None:
    """Read again, a large model's would take minutes; and what has changed since it was saved would be sealed."""
    for step in (1, 2):
        checkpoint_folder.write(tmp_path / "checkpoints", step, 1, fill)
    (tmp_path / "checkpoints" / "step-000001" / "file").write_text("tex!")
    (tmp_path / "checkpoints" / "step-000002" / "MANIFEST.json").write_text('{"files": [1]}')
    write_run_checksums(tmp_path)
    seal, hashed = read_checksums(tmp_path), hashlib.sha256(b"text").hexdigest()
    assert [seal[f"checkpoints/step-00000{step}/file"]["sha256"] for step in (1, 2)] == [hashed, hashed]
    assert seal["checkpoints/step-000001/MANIFEST.json"]["bytes"] > 0
