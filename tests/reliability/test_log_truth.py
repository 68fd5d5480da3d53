"""The log tells what happened: torn ends are mended, anything else that is not as it was written is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import toy
from program import strict_lines

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.log import (
    BrokenLine,
    Position,
    RunLog,
    canonical,
    check_chain,
    check_log,
    repair_tails,
    split_torn,
    truncate_log,
)
from gspo_cli.runlog.schema import metric
from gspo_cli.types import StepMetrics

START = "0" * 32


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    """Six lines."""
    log = RunLog(tmp_path, START)
    for step in (1, 2, 3):
        log.line("rollout", step, StepMetrics({"reward/mean": 0.1 * step, "reward/std": math.nan}, {"reward/mean": 8}))
        log.line("update", step, StepMetrics({"loss": -math.inf}), mini_batch=0)
        log.flush()
    log.event("start")
    return log


def lines(folder: Path) -> list[bytes]:
    return (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def position(folder: Path, count: int) -> Position:
    """After so many lines."""
    return check_chain(b"".join(lines(folder)[:count]), START)


def test_the_writer_agrees_with_the_check(log: RunLog, tmp_path: Path) -> None:
    found = position(tmp_path, 6)
    assert (found.num_bytes, found.num_lines, found.head) == (log.num_bytes, log.seq, log.head)


@pytest.mark.slow
@pytest.mark.usefixtures("log")
def test_cut_at_every_byte_of_the_last_two_lines(tmp_path: Path) -> None:
    whole = b"".join(lines(tmp_path))
    first = len(b"".join(lines(tmp_path)[:4]))
    path = tmp_path / "metrics.jsonl"
    for tail in (b"", b"\0" * 5000):
        for length in range(first, len(whole)):
            path.write_bytes(whole[:length] + tail)
            torn = repair_tails(tmp_path)
            kept = whole[: whole.rfind(b"\n", 0, length) + 1]
            assert path.read_bytes() == kept
            assert bool(torn) == (len(kept) < length or bool(tail))
            check_chain(kept, START)
    assert split_torn(whole) == (whole, b"")


Change = Callable[[list[bytes]], list[bytes]]
CHANGES: dict[str, Change] = {
    "edited": lambda text: [*text[:2], text[2].replace(b"0.2", b"0.3"), *text[3:]],
    "last edited": lambda text: [*text[:5], text[5].replace(b'"step":3', b'"step":4')],
    "bad middle": lambda text: [*text[:2], b"{half a line\n", *text[3:]],
    "repeated": lambda text: [*text[:3], text[2], *text[3:]],
    "gap": lambda text: [*text[:2], *text[3:]],
    "reordered": lambda text: [*text[:2], text[3], text[2], *text[4:]],
    "shorter": lambda text: text[:4],
    "seq again": lambda text: [*text[:3], text[3].replace(b'"seq":3', b'"seq":0'), *text[4:]],
    "NaN": lambda text: [*text[:2], text[2].replace(b"0.2", b"NaN"), *text[3:]],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.usefixtures("log")
def test_a_changed_log_is_refused(tmp_path: Path, change: Change) -> None:
    at, path = position(tmp_path, 6), tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(change(lines(tmp_path))))
    before = path.read_bytes()
    with pytest.raises(GspoError) as caught:
        check_log(path, START, at)
    assert caught.value.code is ExitCode.STORAGE
    assert path.read_bytes() == before


@pytest.mark.usefixtures("log")
def test_another_position_is_refused(tmp_path: Path) -> None:
    at = position(tmp_path, 4)
    within_a_line, other_head = Position(at.num_bytes - 1, 4, at.head), Position(at.num_bytes, 4, "1" * 32)
    for start, wanted in ((START, within_a_line), (START, other_head), ("1" * 32, at)):
        with pytest.raises(GspoError, match="does not belong to the checkpoint"):
            check_log(tmp_path / "metrics.jsonl", start, wanted)


@pytest.mark.usefixtures("log")
def test_a_broken_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenLine, match="line 3"):
        check_chain(b"".join(CHANGES["bad middle"](lines(tmp_path))), START)
    with pytest.raises(BrokenLine, match="line 6"):  # a whole line is never taken for a torn one, the last one neither
        check_chain(b"".join([*lines(tmp_path)[:5], b"{half a line\n"]), START)


def test_what_is_hashed_holds_no_nan() -> None:
    with pytest.raises(ValueError):
        canonical({"a": math.nan})


@pytest.mark.usefixtures("log")
def test_what_is_cut_off_is_kept(tmp_path: Path) -> None:
    text, at, path = lines(tmp_path), position(tmp_path, 4), tmp_path / "metrics.jsonl"
    aside = tmp_path / "dropped" / "attempt-1.jsonl"
    for _ in range(2):  # a crash in between repeats it
        dropped = check_log(path, START, at)
        done = truncate_log(path, at, dropped, aside)
        assert path.read_bytes() == b"".join(text[:4]) and aside.read_bytes() == b"".join(text[4:])
        path.write_bytes(b"".join(text))
    assert done is not None and done["lines"] == 2


@pytest.mark.usefixtures("log")
def test_going_on_writes_the_same_bytes(tmp_path: Path) -> None:
    whole, at = (tmp_path / "metrics.jsonl").read_bytes(), position(tmp_path, 4)
    truncate_log(tmp_path / "metrics.jsonl", at, whole[at.num_bytes :], tmp_path / "dropped" / "x")
    again = RunLog(tmp_path, START, attempt=2)
    again.resume(at.num_lines, at.num_bytes, at.head, whole[at.num_bytes :])
    again.line("rollout", 3, StepMetrics({"reward/mean": 0.1 * 3, "reward/std": math.nan}, {"reward/mean": 8}))
    again.line("update", 3, StepMetrics({"loss": -math.inf}), mini_batch=0)
    again.flush()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    perf = [json.loads(line) for line in (tmp_path / "perf.jsonl").read_text().splitlines()]
    assert [p["attempt"] for p in perf] == [1] * 6 + [2] * 2


def test_every_ratio_has_its_denominator_in_the_line(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, algo={"name": "ppo", "replay": "r2"}, guards={"unscored_frac": 0.5})
    lines = strict_lines(toy.train(recipe, ram / "study") / "metrics.jsonl")
    ratios = [(name, line) for line in lines for name, value in line["metrics"].items()
              if value is not None and metric(name).unit == "frac"]  # fmt: skip
    assert len(ratios) > 50 and all(line["counts"][name] >= 0 for name, line in ratios)
