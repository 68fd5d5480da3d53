"""A study's archive: small, the same bytes each time, and read by every report command in place of the study."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from compare_studies import cube
from typer.testing import CliRunner, Result

from gspo_cli.cli import report, runs
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.archive import unpack, write_archive


def run(app: Any, *arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_an_archive_gives_the_same_comparison(tmp_path: Path) -> None:
    study = cube(tmp_path / "a" / "demo")
    (study / "gspo-s0" / "checkpoints").mkdir()
    (study / "gspo-s0" / "checkpoints" / "weights").write_bytes(bytes(1_000_000))
    metric = ("--metric", "arithmetic/avg@4", "--json")
    there = run(report.app, "compare", study, *metric)
    done = run(runs.app, "export", study, "--to", "archive", "--json")
    assert done.exit_code == 0, done.stderr
    archive = Path(json.loads(done.stdout)["path"])
    assert archive == tmp_path / "a" / "demo.tar.xz" and archive.stat().st_size < 60_000
    first = archive.read_bytes()
    archive.unlink()
    assert write_archive(study, archive) == len(first) and archive.read_bytes() == first
    (moved := tmp_path / "b").mkdir()
    shutil.move(archive, moved)
    for _ in range(2):  # the second time it is there already
        here = run(report.app, "compare", moved / "demo.tar.xz", "--out", moved, *metric)
        assert here.exit_code == 0 and json.loads(here.stdout) == json.loads(there.stdout)
    assert run(report.app, "compare", "demo.tar.xz", "--out", moved, *metric).stdout == there.stdout
    assert not (moved / "demo" / "gspo-s0" / "checkpoints").exists() and not list(moved.glob(".tmp*"))


def test_without_single_updates_the_comparison_is_the_same(tmp_path: Path) -> None:
    study = cube(tmp_path / "a" / "demo")
    log = study / "gspo-s0" / "metrics.jsonl"
    last = json.loads(log.read_text().splitlines()[-1])
    log.write_text(log.read_text() + json.dumps(last | {"kind": "update", "mini_batch": 0, "metrics": {}}) + "\n")
    there = run(report.app, "compare", study, "--metric", "arithmetic/avg@4", "--json")
    done = run(runs.app, "export", study, "--to", "archive", "--no-updates", "--json")
    archive = json.loads(done.stdout)["path"]
    here = run(report.app, "compare", archive, "--out", tmp_path, "--metric", "arithmetic/avg@4", "--json")
    ours, theirs = json.loads(here.stdout), json.loads(there.stdout)
    assert (ours["effect"], ours["ci"], ours["verdict"]) == (theirs["effect"], theirs["ci"], theirs["verdict"])
    kept = (tmp_path / "demo" / "gspo-s0" / "metrics.jsonl").read_text()
    assert '"update"' not in kept and len(kept.splitlines()) == len(log.read_text().splitlines()) - 1
    refused = run(runs.app, "export", study, "--no-updates")
    assert refused.exit_code == 2 and "only an archive" in refused.stderr


PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "quickstart-logs.tar.xz"


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="an installed package has no published results")
def test_the_published_logs_are_compared(tmp_path: Path) -> None:
    done = run(report.app, "compare", PUBLISHED, "--out", tmp_path, "--treatment", "gspo", "--json")
    found = json.loads(done.stdout)
    assert (found["verdict"], found["declared"], found["n"]) == ("better", True, 8)
    assert round(100 * found["effect"], 2) == -3.29
    assert [one["fitted"] for one in found["learning_curves"]] == [8, 8]


def test_nothing_is_written_over_another_study(tmp_path: Path) -> None:
    study = cube(tmp_path / "demo", seeds=1)
    archive = tmp_path / "x.tar.xz"
    write_archive(study, archive)
    with pytest.raises(GspoError, match="is not the study of"):
        unpack(archive, tmp_path)
    with pytest.raises(GspoError, match="exists"):
        write_archive(study, archive)
    with pytest.raises(GspoError, match="no runs"):
        write_archive(tmp_path / "demo" / "grpo-s0", tmp_path / "y.tar.xz")


@pytest.mark.parametrize("name", ["demo/../../evil.json", "demo/grpo-s0/evil.py", "/etc/passwd", "demo", None])
def test_a_file_that_is_no_study_is_refused_whole(tmp_path: Path, name: str | None) -> None:
    archive = tmp_path / "bad.tar.xz"
    if name is None:
        archive.write_bytes(b"not an archive")
    else:
        with lzma.open(archive, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            for member in ("demo/study.json", name):
                info = tarfile.TarInfo(member)
                info.size = 2
                tar.addfile(info, io.BytesIO(b"{}"))
    with pytest.raises(GspoError) as error:
        unpack(archive, tmp_path / "out")
    assert error.value.code == ExitCode.STORAGE
    assert not list((tmp_path / "out").rglob("*.json")) and not (tmp_path / "evil.json").exists()
