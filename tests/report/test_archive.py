"""A study's archive: small, the same bytes each time, and read by every report command in place of the study."""

from __future__ import annotations

import io
import json
import lzma
import random
import shutil
import tarfile
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from compare_studies import cube
from report_runs import write_log
from typer.testing import CliRunner, Result

from gspo_cli.cli import report, runs
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.archive import RUN_FILES, unpack, write_archive
from gspo_cli.runlog.checksums import refuse_damaged


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
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    write_log(log, [*lines, lines[-1] | {"kind": "update", "mini_batch": 0, "metrics": {}}])
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
def test_the_last_line_is_the_one_that_the_run_ended_with(tmp_path: Path) -> None:
    log = unpack(PUBLISHED, tmp_path) / "gspo-s0" / "metrics.jsonl"
    refuse_damaged(log)
    *lines, last = log.read_bytes().splitlines(keepends=True)
    for end in (b"", last.replace(b"0.", b"0.9", 1)):
        log.write_bytes(b"".join([*lines, end]))
        with pytest.raises(GspoError, match="was changed after it was written") as refused:
            refuse_damaged(log)
        assert "its last line" in refused.value.why


def test_a_log_without_its_first_line_is_refused(tmp_path: Path) -> None:
    study = cube(tmp_path / "a" / "demo", seeds=1)
    log = study / "gspo-s0" / "metrics.jsonl"
    log.write_bytes(log.read_bytes().partition(b"\n")[2])
    files = [path for path in study.glob("*-s0/*") if path.name in RUN_FILES]
    content = [(str(path.relative_to(study.parent)), path.read_bytes()) for path in files]
    (tmp_path / "cut").mkdir()
    assert "begins with line 2" in refused(packed(tmp_path / "cut" / "x.tar.xz", content)).why


@pytest.mark.parametrize("kind", ["rollout", "step"])
def test_only_lines_of_updates_may_be_missing_in_an_archive(tmp_path: Path, kind: str) -> None:
    study = cube(tmp_path / "a" / "demo", seeds=1)
    log = study / "gspo-s0" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if i > 5 and b'"kind":"%b"' % kind.encode() in line)
    log.write_bytes(b"".join(lines[:cut] + lines[cut + 1 :]))
    files = [path for path in study.glob("*-s0/*") if path.name in RUN_FILES]
    content = [(str(path.relative_to(study.parent)), path.read_bytes()) for path in files]
    (tmp_path / "cut").mkdir()
    assert "does not carry the hash" in refused(packed(tmp_path / "cut" / "x.tar.xz", content)).why


@pytest.mark.parametrize(
    ("name", "content"),
    [("run.json", b"[]"), ("config.json", b"{}"), ("events.jsonl", b"\xff{{{\n"), ("metrics.jsonl", b'{"a": NaN}\n'),
     ("perf.jsonl", b"1\n")],
)  # fmt: skip
def test_a_study_that_is_damaged_leaves_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    study = cube(tmp_path / "a" / "demo", seeds=1)
    (study / "gspo-s0" / name).write_bytes(content)
    files = [path for path in study.glob("*-s0/*") if path.name in RUN_FILES]
    archive = packed(tmp_path / "x.tar.xz", [(str(p.relative_to(study.parent)), p.read_bytes()) for p in files])
    done = run(report.app, "compare", archive, "--out", tmp_path / "out")
    assert done.exit_code == 6 and name in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


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


def packed(archive: Path, members: list[tuple[str, bytes]], headers: dict[str, str] | None = None) -> Path:
    with lzma.open(archive, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), headers or {}
            tar.addfile(info, io.BytesIO(content))
    return archive


def refused(archive: Path) -> GspoError:
    """The error of an archive in a folder of its own, which leaves nothing behind."""
    out = archive.parent / "out"
    before = set(archive.parent.rglob("*"))
    with pytest.raises(GspoError) as error:
        unpack(archive, out)
    assert error.value.code == ExitCode.STORAGE and error.value.why and error.value.hint
    assert set(archive.parent.rglob("*")) == before
    return error.value


@pytest.mark.parametrize(
    "name",
    ["demo/../../evil.json", "demo/grpo-s0/evil.py", "/etc/passwd", "demo", "../demo/study.json", "demo/./run.json",
     "..", "demo/eval/../step-1/summary.json", "demo/grpo-s0/eval/../step-1/summary.json", "de\x1bmo/study.json",
     ".tmp-x/study.json", "demo/grpo-s0/eval/x/step-\u0663/summary.json"]
    + [f"demo/../{file}" for file in RUN_FILES],
)  # fmt: skip
def test_a_file_that_is_no_study_is_refused_whole(tmp_path: Path, name: str) -> None:
    refused(packed(tmp_path / "bad.tar.xz", [("demo/study.json", b"{}"), (name, b"{}")]))
    refused_alone = tmp_path / "alone"
    refused_alone.mkdir()
    refused(packed(refused_alone / "bad.tar.xz", [(name, b"{}")]))


@pytest.mark.parametrize("content", [b"not an archive", b"", lzma.compress(b"x" * 5000), lzma.compress(b"")])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.tar.xz").write_bytes(content)
    refused(tmp_path / "bad.tar.xz")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("demo/grpo-s0/metrics.jsonl", b"one"), ("demo/grpo-s0/metrics.jsonl", b"other")], "twice"),
        ([("demo/study.json", b"{}"), ("other/study.json", b"{}")], "two studies"),
        ([("demo/study.json", b'{"plans": 3}')], "plans"),
    ],
)
def test_what_is_no_whole_study_is_refused(tmp_path: Path, members: list[tuple[str, bytes]], why: str) -> None:
    assert why in refused(packed(tmp_path / "bad.tar.xz", members)).why


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = packed(tmp_path / "bad.tar.xz", [("demo/run/metrics.jsonl", random.Random(1).randbytes(300_000))])
    whole.write_bytes(whole.read_bytes()[:200_000])
    assert "cut off" in refused(whole).why


@pytest.mark.parametrize("kept", [slice(-1), slice(-12)])
def test_the_checksum_at_its_end_counts(tmp_path: Path, kept: slice) -> None:
    whole = packed(tmp_path / "whole.tar.xz", [("demo/gspo-s0/recipe.toml", b"a = 1\n" * 500)]).read_bytes()
    for name, content in {
        "cut": whole[kept],
        "more": whole + b"x",
        "flip": whole[:-20] + b"\x55" + whole[-19:],
    }.items():
        (archive := tmp_path / f"{name}.tar.xz").write_bytes(content)
        refused(archive)


def test_a_header_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    members = [(f"demo/gspo-s{seed}/recipe.toml", b"a = 1\n") for seed in range(3)]
    whole = bytearray(lzma.decompress(packed(tmp_path / "whole.tar.xz", members).read_bytes()))
    second = whole.index(members[1][0].encode())
    whole[second + 148 : second + 156] = b"\0\0\0\0\0\0\0x"  # its checksum
    (archive := tmp_path / "cut.tar.xz").write_bytes(lzma.compress(bytes(whole)))
    assert "goes on" in refused(archive).why


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with lzma.open(tmp_path / "bad.tar.xz", "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo("demo/study.json")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    refused(tmp_path / "bad.tar.xz")


def within(megabytes: int, seconds: int, archive: Path) -> GspoError:
    """The error of an archive, which takes no more memory and time than that."""
    tracemalloc.start()
    start = time.process_time()
    try:
        error = refused(archive)
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < seconds
    return error


ZEROS = bytes(48 << 20)


def test_a_small_archive_cannot_fill_the_disk(tmp_path: Path) -> None:
    archive = packed(tmp_path / "bad.tar.xz", [("demo/run/metrics.jsonl", ZEROS)])
    assert archive.stat().st_size < 50_000
    assert "unpacks to more" in within(30, 20, archive).why


def test_nor_with_many_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.report.runs.archive.FEW_BYTES", 20_000)
    archive = packed(tmp_path / "bad.tar.xz", [(f"demo/r{i}/run.json", b"") for i in range(1000)])
    assert "unpacks to more" in refused(archive).why


def header(kind: bytes, content: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


@pytest.mark.parametrize(
    "content",
    {
        "a long header": header(tarfile.XHDTYPE, ZEROS),
        "a long name": header(tarfile.GNUTYPE_LONGNAME, ZEROS),
        "a global header": header(tarfile.XGLTYPE, ZEROS),
        "a chain of names": header(tarfile.GNUTYPE_LONGNAME, b"demo/study.json\0") * 3000,
        "a chain of headers": header(tarfile.XHDTYPE, b"16 path=demo/xy\n") * 3000,
        "a sparse map": header(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n")
        + header(tarfile.REGTYPE, b"99999999\n" + b"0\n" * (4 << 20)),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_headers_are_read_within_limits(tmp_path: Path, content: tuple[str, bytes]) -> None:
    (tmp_path / "bad.tar.xz").write_bytes(lzma.compress(content[1] + bytes(10240), preset=0))
    within(30, 20, tmp_path / "bad.tar.xz")


@pytest.mark.parametrize(
    "headers",
    [{"size": "-5"}, {"size": "9" * 30}, {"GNU.sparse.map": "0,1", "GNU.sparse.size": "99999999"}, {"path": "/"}],
)
def test_headers_that_say_something_else(tmp_path: Path, headers: dict[str, str]) -> None:
    refused(packed(tmp_path / "bad.tar.xz", [("demo/study.json", b"{}")], headers))


def test_an_archive_cannot_ask_for_much_memory_to_be_unpacked(tmp_path: Path) -> None:
    archive = packed(tmp_path / "bad.tar.xz", [("demo/study.json", b"{}")])
    content = bytearray(archive.read_bytes())
    end = 12 + 4 * content[12]  # of the first block's header: its length, flags, filter, and the size of its dictionary
    assert content[14:16] == b"\x21\x01"
    content[16] = 36  # a gigabyte
    content[end : end + 4] = zlib.crc32(content[12:end]).to_bytes(4, "little")
    archive.write_bytes(content)
    assert "emory" in refused(archive).why
