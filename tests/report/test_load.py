"""Studies are found, logs are read strictly, and what does not apply is missing rather than 0."""

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import compare_studies
import pandas as pd
import pytest
from compare_studies import end
from program import Gspo, refusal
from report_runs import canonical, line, records, write_log, write_run, write_study

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs import log as load_module
from gspo_cli.report.runs import reader
from gspo_cli.report.runs.archive import write_archive
from gspo_cli.report.runs.curves import load_curves
from gspo_cli.report.runs.folders import find_study, read_study
from gspo_cli.report.runs.log import Log, Wanted, load_log, load_perf
from gspo_cli.runlog.checksums import write_run_checksums

WANTED: Wanted = {"rollout": ["reward/mean"], "step": ["clip/token_frac"], "update": ["clip/token_frac", "lr"]}


def load(study: Path, wanted: Wanted = WANTED) -> Log:
    (run,) = find_study(str(study), study).runs
    return load_log(run, wanted)


def rows(log: Log) -> list[tuple[int, str, int | None, str, float]]:
    frame = log.frame.astype({"mini_batch": object})
    picked = frame[["step", "kind", "mini_batch", "metric", "value"]].itertuples(index=False, name=None)
    return [(s, k, None if pd.isna(b) else b, m, v) for s, k, b, m, v in picked]


def test_values_as_written_and_nulls_without_a_row(tmp_path: Path) -> None:
    lines = [
        line(0, "eval", None, {"arithmetic/avg@4": 0.4}, {}),
        line(1, "rollout", None, {"reward/mean": 0.25, "reward/std": 0.5}, {"reward/mean": 8}),
        line(1, "update", 0, {"clip/token_frac": 0, "lr": 1e-4}, {"clip/token_frac": 70}),
        line(1, "update", 1, {"clip/token_frac": None, "lr": 2e-4}, {}),
        line(1, "step", None, {"clip/token_frac": 0.125}, {}),
    ]
    write_run(tmp_path, "gspo", 3, lines)
    log = load(tmp_path)
    assert rows(log) == [
        (1, "rollout", None, "reward/mean", 0.25),
        (1, "update", 0, "clip/token_frac", 0.0),
        (1, "update", 0, "lr", 1e-4),
        (1, "update", 1, "lr", 2e-4),
        (1, "step", None, "clip/token_frac", 0.125),
    ]
    assert log.frame["seq"].tolist() == [1, 2, 2, 3, 4]
    assert [c for c in log.frame["count"].tolist() if not math.isnan(c)] == [8, 70]


def test_non_finite_values_come_back_and_differ_from_null(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf, None, 0.5, -1e308]
    lines = [line(s, "step", None, {"clip/token_frac": v}, {}) for s, v in enumerate(values, 1)]
    write_run(tmp_path, "gspo", 0, lines)
    frame = load(tmp_path).frame
    assert frame["step"].tolist() == [1, 2, 3, 5, 6]
    assert math.isnan(frame["value"].iloc[0])
    assert frame["value"].tolist()[1:] == [math.inf, -math.inf, 0.5, -math.inf]  # the last overflows in any mean


def test_fast_and_strict_parser_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "grpo", 0, records("grpo", 0, 50))
    with monkeypatch.context() as patch:
        patch.setattr(reader.LogReader, "parse", lambda *_: pytest.fail("the fast parser was not used"))
        fast = load(tmp_path)
    monkeypatch.setattr(load_module, "read_fast", lambda *_: None)
    pd.testing.assert_frame_equal(fast.frame, load(tmp_path).frame)
    assert len(fast.frame) == 50 * (1 + 2 * 4 + 1)


def test_all_layers_of_a_metric_are_read_wherever_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "moe/slot_churn_step"
    lines = [
        line(1, "step", None, {name: 0.3, f"{name}/layer_02": 0.25, f"{name}/layer_x": 9.0}, {f"{name}/layer_02": 8}),
        line(2, "step", None, {f"{name}/layer_02": None, f"{name}/layer_10": math.nan, "other/layer_01": 9.0}, {}),
        line(2, "update", 0, {f"{name}/layer_02": 9.0}, {}),
    ]
    write_run(tmp_path, "gspo", 0, lines)
    monkeypatch.setattr(reader, "BLOCK", 1)  # a line a block
    log = load(tmp_path, {"step": [f"{name}/layer_"]})
    assert [(row[0], row[3]) for row in rows(log)] == [(1, f"{name}/layer_02"), (2, f"{name}/layer_10")]
    assert log.frame["value"][0] == 0.25 and log.frame["count"][0] == 8 and math.isnan(log.frame["value"][1])


def test_valid_json_in_another_form_is_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "gspo", 0, [])
    record = {"seq": 0, "prev": "é: NaN [", **line(1, "step", None, {"clip/token_frac": 0.5, "x:y": None}, {})}
    (folder / "metrics.jsonl").write_text(json.dumps(record, ensure_ascii=False) + " \n", encoding="utf-8")
    assert rows(load(tmp_path)) == [(1, "step", None, "clip/token_frac", 0.5)]


@pytest.mark.parametrize("torn", [b'{"seq":99,"step":', b"\0" * 3000, b"{}"])
def test_torn_tail_is_left_out_and_left_alone(tmp_path: Path, torn: bytes) -> None:
    folder = write_run(tmp_path, "grpo", 0, records("grpo", 0, 5))
    path = folder / "metrics.jsonl"
    whole = path.read_bytes()
    expected = load(tmp_path).frame
    path.write_bytes(whole + torn)
    log = load(tmp_path)
    pd.testing.assert_frame_equal(log.frame, expected)
    assert (log.torn_bytes, log.num_bytes) == (len(torn), len(whole))
    assert log.sha256 == hashlib.sha256(whole).hexdigest()
    assert path.read_bytes() == whole + torn


def refused(folder: Path, wanted: Wanted = WANTED) -> GspoError:
    """The error about a damaged log."""
    with pytest.raises(GspoError) as caught:
        load(folder, wanted)
    assert caught.value.code == ExitCode.STORAGE
    return caught.value


GOOD = {"seq": 2, "prev": "", **line(7, "step", None, {"clip/token_frac": 0.5, "loss": 0.1}, {})}
TEXT = canonical(GOOD)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (TEXT.replace("0.5", "NaN"), "NaN"),
        (TEXT.replace("0.1", "-Infinity"), "Infinity"),
        (TEXT.replace("0.1", "1e999"), "overflows"),
        (TEXT.replace('"loss"', '"clip/token_frac"'), "duplicate"),
        (TEXT.replace('"step":7', '"step":7,"seq":2'), "duplicate"),
        (TEXT[:-1], "delimiter"),
        # as many objects as lines, but not one on each
        (TEXT + TEXT + "\n", "Extra data"),
        ("[1]", "not a JSON object"),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "deep"),
        ('{"a":"' + "x" * (1 << 20) + '"}', "longer"),
        ("\ufeff" + TEXT, "Expecting value"),
        (TEXT.replace('"prev":""', '"prev":"\udcff"'), "utf-8"),
    ],
)
def test_a_line_that_is_not_strict_json_is_named(tmp_path: Path, bad: str, reason: str) -> None:
    folder = write_run(tmp_path, "grpo", 0, [])
    path = folder / "metrics.jsonl"
    first = [canonical({**GOOD, "step": step, "seq": step}) for step in (0, 1)]
    last = canonical({**GOOD, "step": 9, "seq": 3})
    path.write_bytes("".join(f"{text}\n" for text in [*first, bad, last]).encode(errors="surrogateescape"))
    error = refused(tmp_path, {"step": ["clip/token_frac", "loss"]})
    assert f"{path}, line 3," in error.message and reason in error.why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": None}, "has no `step`"),
        ({"metrics": {"clip/token_frac": "0.5"}}, "not a number"),
        ({"metrics": 3}, "not an object"),
        ({"kind": 1}, "not a text"),
    ],
)
def test_a_line_that_is_no_log_line_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    folder = write_run(tmp_path, "grpo", 0, [{**GOOD, **change}])
    error = refused(tmp_path)
    assert f"{folder / 'metrics.jsonl'}, line 1," in error.message and reason in error.why


def test_a_step_that_was_logged_twice_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "grpo", 0, [GOOD, {**GOOD, "step": 8}, GOOD])
    assert "step 7 has a second `step` line (seq 2)" in refused(tmp_path).why


def test_newest_study_by_time_not_by_name(tmp_path: Path) -> None:
    write_run(tmp_path / "z", "grpo", 0, [], created="2026-01-02T00:00:00+00:00")
    write_run(tmp_path / "a", "grpo", 0, [], created="2026-01-01T00:00:00Z")
    # later than z: 23:30 in UTC-2 is 01:30 of the next day
    write_run(tmp_path / "a", "grpo", 1, [], created="2026-01-01T23:30:00-02:00")
    write_run(tmp_path / "published", "grpo", 0, [], created="2027-01-01T00:00:00Z")
    assert find_study(None, tmp_path).folder == tmp_path / "a"


def test_study_by_path_by_name_and_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path / "root" / "demo", seeds=2, steps=1)
    write_run(tmp_path / "root" / "demo", "grpo_r2", 0, [], algorithm="grpo", replay="r2")
    (tmp_path / "root" / "demo" / "figures").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "root/demo", str(tmp_path / "root" / "demo")):
        study = find_study(name, Path("root"))
        assert [run.run_id for run in study.runs] == [
            "id-grpo-0", "id-grpo-1", "id-grpo_r2-0", "id-gspo-0", "id-gspo-1",
        ]  # fmt: skip
        assert (study.runs[2].algorithm, study.runs[2].replay, study.runs[3].replay) == ("grpo", "r2", "none")
    alone = find_study("demo/gspo-s1", Path("root"))
    assert [run.run_id for run in alone.runs] == ["id-gspo-1"] and alone.folder == Path("root/demo/gspo-s1")


def test_two_runs_of_one_arm_and_seed_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "grpo", 0, [])
    folder.rename(tmp_path / "copy")
    write_run(tmp_path, "grpo", 0, [])
    assert "two runs of arm 'grpo' with seed 0" in refusal(find_study, str(tmp_path), tmp_path)


@pytest.mark.parametrize(("name", "text"), [("run.json", '{"arm": "x"}'), ("config.json", '{"algo": 1}')])
def test_a_broken_description_is_a_storage_error(tmp_path: Path, name: str, text: str) -> None:
    folder = write_run(tmp_path, "grpo", 0, [])
    (folder / name).write_text(text)
    with pytest.raises(GspoError, match=name) as caught:
        find_study(str(tmp_path), tmp_path)
    assert caught.value.code == ExitCode.STORAGE


def test_perf_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "perf.jsonl"
    path.write_text('{"seq":0,"step":1,"kind":"rollout","seconds":1.5}\n{"seq":1,"step":1,"kind":"step"}\n{"seq')
    frame = load_perf(path)
    assert frame["kind"].tolist() == ["rollout", "step"]
    assert frame["seconds"].tolist()[0] == 1.5
    assert math.isnan(frame["seconds"].tolist()[1])


DAMAGES: dict[str, Callable[[list[str]], list[str]]] = {
    "cut": lambda lines: lines[:4] + lines[5:],
    "altered": lambda lines: [text.replace('"lr":2e-05', '"lr":3e-05') for text in lines],
    "swapped": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "other form": lambda lines: [*lines[:3], lines[3].replace(',"seq"', ', "seq"'), *lines[4:]],
}


def damage(log: Path, kind: str) -> None:
    log.write_text("".join(DAMAGES[kind](log.read_text().splitlines(keepends=True))))


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A study of four runs that have ended and are sealed."""
    for arm in ("grpo", "gspo"):
        for seed in (0, 1):
            run = compare_studies.write_run(tmp_path / "demo", arm, seed, [0.5] * 20)
            write_log(run / "metrics.jsonl", records(arm, seed, 20))
            (run / "perf.jsonl").write_text("")
            write_run_checksums(run)
    return tmp_path / "demo"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sealed", "not those that its run sealed (sha256)"),
        ("cut", "line 5 does not carry the hash"),
        ("altered", "line 3 does not carry the hash"),
        ("swapped", "line 4 does not carry the hash"),
        ("other form", "line 4 has another form"),
    ],
)
def test_a_damaged_log_of_a_run_that_has_ended_is_refused(ended: Path, gspo_here: Gspo, kind: str, why: str) -> None:
    run = ended / "gspo-s1"
    log = run / "metrics.jsonl"
    damage(log, "altered" if kind == "sealed" else kind)
    if kind != "sealed":
        (run / "sealed.json").unlink()
    for words in ("report compare", "report plots", "runs export", "runs export --to archive"):
        done = gspo_here(*words.split()[:2], ended, *words.split()[2:])
        assert done.code == ExitCode.STORAGE, done
        assert f"{log} was changed after it was written" in done.err and f"gspo runs verify {run}" in done.err
        assert why in done.err
    end(run, None)  # its run goes on
    (run / "sealed.json").unlink(missing_ok=True)
    load_log(read_study(run).runs[0], WANTED)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("perf.jsonl", b'{"kind":"rollout","step":21,"rollout_s":9}\n', "those that its run sealed"),
        ("events.jsonl", None, "does not begin with what its run sealed"),
        ("sealed.json", None, "the seal of its run"),
    ],
)
def test_so_are_other_times_events_and_seals(ended: Path, name: str, change: bytes | None, why: str) -> None:
    path = ended / "gspo-s1" / name
    path.write_bytes(path.read_bytes() + change if change else path.read_bytes().replace(b"1", b"2", 1))
    assert why in refusal(load_curves, read_study(ended).runs, {})


@pytest.mark.parametrize("updates", [True, False])
def test_an_archive_without_updates_is_read_and_an_altered_one_is_not(
    ended: Path, tmp_path: Path, updates: bool
) -> None:
    write_archive(ended, tmp_path / "demo.tar.xz", updates)
    study = find_study(str(tmp_path / "demo.tar.xz"), tmp_path / "other")
    log = study.runs[3].folder / "metrics.jsonl"
    for run in study.runs:
        load_log(run, WANTED)
    damage(log, "altered")
    with pytest.raises(GspoError) if updates else nullcontext():
        load_log(study.runs[3], WANTED)
