"""An evaluation that is killed and resumed gives the answers and the summary of one that was not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from program import Done, Gspo, check_refused

from gspo_cli.config import TinyModel
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.builtin.engine import TransformersEngine

CRASH = Path(__file__).with_name("crash.py")
FEW = ["--limit", "9", "--samples", "3", "--max-tokens", "8", "--set", "model.threads=1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    for part in build_tiny(TinyModel(kind="qwen3", hidden=16, layers=1), seed=1):
        part.save_pretrained(folder)
    return folder


def arguments(model: Path, out: str | Path) -> list[str]:
    return ["eval", "benchmarks", str(model), "--bench", "arithmetic", *FEW, "--out", str(out)]


def crash(points: list[int], command: list[str]) -> dict[int, list[int]]:
    """Point -> the exit statuses of its three attempts."""
    done = subprocess.run(
        [sys.executable, str(CRASH), "5", ",".join(map(str, points)), *command],
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("statuses ")]
    return {int(n): list(map(int, statuses)) for n, *statuses in lines}


def folder(model: Path, out: Path) -> Path:
    return out / f"eval-{str(model).replace('/', '-').strip('-')}" / "arithmetic"


def outcome(out: Path, model: Path) -> tuple[list[dict[str, Any]], str]:
    """The answers, each key once, and the summary's text without its times."""
    place = folder(model, out)
    rows = pq.read_table(place / "answers.parquet").to_pylist()
    assert len({(row["problem_id"], row["sample"]) for row in rows}) == len(rows)
    assert not (place / "parts").exists()
    summary = json.loads((place / "summary.json").read_text())
    assert summary.pop("times")["total_s"] > 0
    return rows, json.dumps(summary)


NEVER = 999


@pytest.mark.slow
def test_killed_at_every_file_operation_twice_over(model: Path, tmp_path: Path) -> None:
    # 6 parts of about 4 operations, the table, the summary, the removal of the parts
    found = crash([NEVER, *range(1, 45)], arguments(model, tmp_path / "at-{n}"))
    assert found.pop(NEVER) == [0, 0, 0]
    expected = outcome(tmp_path / f"at-{NEVER}", model)
    assert len(expected[0]) == 27
    for n, statuses in found.items():
        assert statuses[2] == 0 and outcome(tmp_path / f"at-{n}", model) == expected, n
    killed = [n for n, statuses in found.items() if statuses[0]]
    assert killed == list(range(1, len(killed) + 1)) and 25 < len(killed) < 44
    assert {found[n][0] for n in killed} == {-signal.SIGKILL}


Run = Callable[..., Done]
Interrupted = Callable[[Path], Path]


@pytest.fixture
def run(gspo_here: Gspo, model: Path) -> Run:
    """The evaluation, into a folder."""
    return lambda out, *more: gspo_here(*arguments(model, out), *more)


@pytest.fixture
def interrupted(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """An evaluation whose engine fails after two of six parts; the parts' folder."""
    monkeypatch.setattr("gspo_cli.evals.runner.PORTION", 5)
    real = TransformersEngine.generate

    def interrupt(out: Path) -> Path:
        calls = count()

        def failing(self: TransformersEngine, *args: Any) -> Any:
            if next(calls) == 2:
                raise RuntimeError("the machine ran out of memory")
            return real(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(TransformersEngine, "generate", failing)
            done = run(out)
        assert done.code == 1 and "ran out of memory" in done.err
        parts = folder(model, out) / "parts"
        assert len(list(parts.iterdir())) == 2
        return parts

    return interrupt


def test_both_ways_out_of_an_unfinished_evaluation(
    run: Run, interrupted: Interrupted, model: Path, tmp_path: Path
) -> None:
    interrupted(tmp_path / "a")
    check_refused(run(tmp_path / "a"), "10 of 27 answers are stored")
    assert run(tmp_path / "a", "--resume").code == 0
    interrupted(tmp_path / "b")
    assert run(tmp_path / "b", "--overwrite").code == 0
    assert outcome(tmp_path / "a", model) == outcome(tmp_path / "b", model)


def test_only_what_is_missing_is_drawn(
    run: Run, interrupted: Interrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path)
    real, drawn = TransformersEngine.generate, []

    def counting(self: TransformersEngine, prompts: Any, sampling: Any, seeds: Any) -> Any:
        drawn.extend(seeds)
        return real(self, prompts, sampling, seeds)

    monkeypatch.setattr(TransformersEngine, "generate", counting)
    assert run(tmp_path, "--resume").code == 0
    assert len(drawn) == len(set(drawn)) == 17
    drawn.clear()
    assert "used again" in run(tmp_path).err and drawn == []


def test_other_settings_are_refused_by_name(run: Run, interrupted: Interrupted, tmp_path: Path) -> None:
    parts = interrupted(tmp_path)
    before = sorted(p.name for p in parts.iterdir())
    for more, field in (
        (["--seed", "5"], "seed: 0 stored, 5 wanted"),
        (["--temperature", "0.5"], "sampling.temperature: 1.0 stored, 0.5 wanted"),
        (["--limit", "8"], "problems.n: 9 stored, 8 wanted"),
        (["--set", "model.dtype=bfloat16"], "model_sha256"),
    ):
        check_refused(run(tmp_path, "--resume", *more), field)
        assert sorted(p.name for p in parts.iterdir()) == before


def test_a_torn_part_is_drawn_again(run: Run, interrupted: Interrupted, model: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole")
    parts = interrupted(tmp_path / "torn")
    torn = parts / "part-00001.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    (parts / ".tmp-part-00002.parquet").write_bytes(b"half")
    done = run(tmp_path / "torn", "--resume")
    assert done.code == 0 and "part-00001.parquet" in done.err and "drawn again" in done.err
    events = (folder(model, tmp_path / "torn") / "events.jsonl").read_text()
    assert '"event":"part_rejected"' in events
    assert outcome(tmp_path / "torn", model)[0] == outcome(tmp_path / "whole", model)[0]


def test_a_damaged_table_is_an_error_and_is_left_alone(run: Run, model: Path, tmp_path: Path) -> None:
    assert run(tmp_path).code == 0
    table = folder(model, tmp_path) / "answers.parquet"
    table.write_bytes(b"PAR1" + table.read_bytes()[9:-9])
    before = table.read_bytes()
    check_refused(run(tmp_path), "cannot read the stored answers", "--overwrite")
    assert table.read_bytes() == before
    assert run(tmp_path, "--overwrite").code == 0


def test_a_new_grader_draws_nothing(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path).code == 0
    monkeypatch.setattr("gspo_cli.evals.benchmarks.embedded.VERSION", 2)
    monkeypatch.setattr("gspo_cli.rollout.builtin.engine.sample", None)  # nothing may be drawn
    assert run(tmp_path).code == 0
    summary = json.loads((folder(model, tmp_path) / "summary.json").read_text())
    assert summary["grader"]["version"] == 2 and summary["num_answers"] == 27


def test_two_processes_cannot_evaluate_in_one_folder(run: Run, model: Path, tmp_path: Path) -> None:
    import fcntl

    place = folder(model, tmp_path)
    place.mkdir(parents=True)
    with (place / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run(tmp_path)
    assert done.code == 2 and "another process" in done.err
    assert os.listdir(place) == [".lock"]


def test_overwrite_deletes_nothing_that_is_not_an_evaluation(run: Run, model: Path, tmp_path: Path) -> None:
    place = folder(model, tmp_path)
    place.mkdir(parents=True)
    (place / "thesis.tex").write_text("years of work")
    check_refused(run(tmp_path, "--overwrite"), "thesis.tex")
    assert (place / "thesis.tex").read_text() == "years of work"
