"""Stored rollout batches: a changed byte is named, in a run that goes on, has ended, or was resumed."""

from pathlib import Path

import pytest
import toy
from test_exact_resume import cut_after

from gspo_cli.report.verify import verify
from gspo_cli.runlog.checksums import CHECKSUMS, sha256_of, write_run_checksums


def named(run: Path) -> list[str]:
    """The files of a run that verify blames."""
    return [str(Path(problem.file).relative_to(run)) for problem in verify(run).problems]


def test_each_is_hashed_in_the_events_and_its_change_is_named(start: Path, ram: Path) -> None:
    run = toy.train(toy.recipe(start, train={"steps": 4}, checkpoint={"every": 1, "keep": 5}), ram / "study")
    files = [f"rollouts/step_{step:06d}.parquet" for step in (1, 2, 3, 4)]
    assert [(e["file"], e["sha256"]) for e in toy.events(run, "rollout_stored")] == [
        (name, sha256_of(run / name)) for name in files
    ]
    cut_after(run, 2)
    (run / CHECKSUMS).unlink()
    assert named(run) == []
    for ended in (False, True):
        toy.flip(run / files[0])
        assert named(run) == files[:1]  # once, though the seal of an ended run names it too
        toy.flip(run / files[0])
        (run / files[1]).rename(run / "away")
        assert named(run) == files[1:2]
        (run / "away").rename(run / files[1])
        if not ended:
            run = toy.train(toy.recipe(start, train={"steps": 4}), run.parent)
    assert named(run) == []
    for name in (files[0], files[3], "dropped/attempt-1/step_000004.parquet"):
        toy.flip(run / name)
        write_run_checksums(run)  # a later attempt seals what it finds
        assert named(run) == [name]
        toy.flip(run / name)


def stored(run: Path) -> list[int]:
    """The rollout batches in the run's folder."""
    return sorted(int(path.stem.removeprefix("step_")) for path in (run / "rollouts").iterdir())


def test_the_first_and_the_newest_batch_are_kept_by_default(start: Path, ram: Path) -> None:
    settings = {"train": {"steps": 5}, "checkpoint": {"every": 1, "keep": 9}}
    recipe = toy.recipe(start, **settings, rollout={"store": 0})
    run = toy.train(recipe, ram / "study")
    assert stored(run) == [1, 5] and named(run) == []
    cut_after(run, 3)
    toy.train(recipe, ram / "study")
    assert stored(run) == [1, 5] and named(run) == []  # batch 3 passed when 4 came, before the cut and after it
    toy.flip(run / "rollouts" / "step_000005.parquet")
    assert named(run) == ["rollouts/step_000005.parquet"]

    every_second = toy.train(toy.recipe(start, **settings, rollout={"store": 2}), ram / "second")
    assert stored(every_second) == [1, 2, 4, 5]
    none = toy.train(toy.recipe(start, **settings, rollout={"store": 0, "keep_newest": False}), ram / "third")
    assert not (none / "rollouts").exists()


def test_a_kill_before_the_older_batch_is_removed_leaves_no_fault(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy.recipe(start, train={"steps": 3}, checkpoint={"every": 1}, rollout={"store": 0})

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gspo_cli.runlog.fs.remove", killed)
        toy.train(recipe, ram / "study")
    run = ram / "study" / "gspo-s0"
    assert stored(run) == [1, 2, 3] and named(run) == []
    toy.train(recipe, ram / "study")
    assert stored(run) == [1, 3] and named(run) == []


def test_a_batch_whose_writing_is_killed_has_no_name(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(_table: object, path: Path, **_: object) -> None:
        path.write_bytes(b"PAR1 half")
        raise KeyboardInterrupt

    monkeypatch.setattr("pyarrow.parquet.write_table", torn)
    with pytest.raises(KeyboardInterrupt):
        toy.train(toy.recipe(start), ram / "study")
    assert not list((ram / "study").rglob("*step_*.parquet"))
    assert toy.events(ram / "study" / "gspo-s0", "rollout_stored") == []
