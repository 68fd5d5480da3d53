"""A study's archive: small, the same bytes each time, and read by every report command in place of the study."""

import io
import json
import lzma
import random
import shutil
import tarfile
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compare_studies import cube
from program import refusal
from report_runs import write_log
from typer.testing import CliRunner, Result

from gspo_cli.cli import report, runs
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.archive import RUN_FILES, unpack, write_archive
from gspo_cli.runlog.checksums import refuse_damaged


def run(app: Any, *arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_an_archive_gives_the_same_comparison(tmp_path: Path) -> None:
    study = cube(tmp_path / "a" / "demo", seeds=3)
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
    study = cube(tmp_path / "a" / "demo", seeds=3)
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
    Path(archive).unlink()
    study.parent.rename(spaced := tmp_path / "my runs")
    printed = run(runs.app, "export", spaced / "demo", "--to", "archive").stderr
    assert f"gspo report compare '{spaced / 'demo.tar.xz'}' --out" in " ".join(printed.split())
    refused = run(runs.app, "export", spaced / "demo", "--no-updates")
    assert refused.exit_code == 2 and "only an archive" in refused.stderr


PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "when" / "logs" / "minibatches-1_token-0.tar.xz"


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="an installed package has no published results")
def test_the_last_line_is_the_one_that_the_run_ended_with(tmp_path: Path) -> None:
    log = unpack(PUBLISHED, tmp_path) / "gspo-s0" / "metrics.jsonl"
    refuse_damaged(log)
    *lines, last = log.read_bytes().splitlines(keepends=True)
    for end in (b"", last.replace(b"0.", b"0.9", 1)):
        log.write_bytes(b"".join([*lines, end]))
        said = refusal(refuse_damaged, log)
        assert "was changed after it was written" in said and "its last line" in said


Member = tuple[str, bytes]


def tar(members: list[Member], headers: dict[str, str] | None = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers, info.type, info.linkname = len(content), headers or {}, kind, "/etc/passwd"
            archive.addfile(info, io.BytesIO(content) if content else None)
    return file.getvalue()


def packed(*members: Member, headers: dict[str, str] | None = None) -> bytes:
    return lzma.compress(tar([*members], headers))


def refused(folder: Path, content: bytes) -> GspoError:
    """The error of an archive in a folder of its own, which leaves nothing behind."""
    (alone := folder / "alone").mkdir()
    (alone / "bad.tar.xz").write_bytes(content)
    with pytest.raises(GspoError) as error:
        unpack(alone / "bad.tar.xz", alone / "out")
    assert error.value.code == ExitCode.STORAGE and error.value.why and error.value.hint
    assert [path.name for path in alone.rglob("*")] == ["bad.tar.xz"]
    return error.value


Spoil = Callable[[Path], object]


def spoiled(folder: Path, spoil: Spoil) -> bytes:
    """The archive of a study whose run gspo-s0 was spoiled before."""
    study = cube(folder / "a" / "demo", seeds=1)
    spoil(study / "gspo-s0")
    files = [path for path in study.glob("*-s0/*") if path.name in RUN_FILES]
    return packed(*((str(path.relative_to(study.parent)), path.read_bytes()) for path in files))


def without(kind: bytes, after: int = 6) -> Spoil:
    """Takes the next line of that kind out of the log."""

    def spoil(run: Path) -> None:
        lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        cut = next(i for i, line in enumerate(lines) if i >= after and b'"kind":"%b"' % kind in line)
        (run / "metrics.jsonl").write_bytes(b"".join(lines[:cut] + lines[cut + 1 :]))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(without(b"rollout", after=0), "begins with line 2"), (without(b"rollout"), "does not carry the hash"),
     (without(b"step"), "does not carry the hash")],
)  # fmt: skip
def test_only_lines_of_updates_may_be_missing_in_an_archive(tmp_path: Path, spoil: Spoil, why: str) -> None:
    assert why in refused(tmp_path, spoiled(tmp_path, spoil)).why


@pytest.mark.parametrize(
    ("name", "content"),
    [("run.json", b"[]"), ("config.json", b"{}"), ("events.jsonl", b"\xff{{{\n"), ("metrics.jsonl", b'{"a": NaN}\n'),
     ("perf.jsonl", b"1\n")],
)  # fmt: skip
def test_a_study_that_is_damaged_leaves_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "x.tar.xz").write_bytes(spoiled(tmp_path, lambda run: (run / name).write_bytes(content)))
    done = run(report.app, "compare", tmp_path / "x.tar.xz", "--out", tmp_path / "out")
    assert done.exit_code == 6 and name in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over_another_study(tmp_path: Path) -> None:
    study = cube(tmp_path / "demo", seeds=1)
    archive = tmp_path / "x.tar.xz"
    write_archive(study, archive)
    assert "is not the study of" in refusal(unpack, archive, tmp_path)
    assert "exists" in refusal(write_archive, study, archive)
    assert "no runs" in refusal(write_archive, tmp_path / "demo" / "grpo-s0", tmp_path / "y.tar.xz")


STUDY = ("demo/study.json", b"{}")


@pytest.mark.parametrize(
    "name",
    ["demo/../../evil.json", "demo/grpo-s0/evil.py", "/etc/passwd", "demo", "../demo/study.json", "demo/./run.json",
     "..", "demo/eval/../step-1/summary.json", "demo/grpo-s0/eval/../step-1/summary.json", "de\x1bmo/study.json",
     ".tmp-x/study.json", "demo/grpo-s0/eval/x/step-\u0663/summary.json"]
    + [f"demo/../{file}" for file in RUN_FILES],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], [STUDY]])
def test_a_file_that_is_no_study_is_refused_whole(tmp_path: Path, name: str, before: list[Member]) -> None:
    refused(tmp_path, packed(*before, (name, b"{}")))


ZEROS = bytes(48 << 20)
WHOLE = packed(("demo/gspo-s0/recipe.toml", b"a = 1\n" * 500))


def header(kind: bytes, content: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def headed(*parts: bytes) -> bytes:
    return lzma.compress(b"".join(parts) + bytes(10240), preset=0)


def unreadable_header() -> bytes:
    members = [(f"demo/gspo-s{seed}/recipe.toml", b"a = 1\n") for seed in range(3)]
    whole = bytearray(tar(members))
    second = whole.index(members[1][0].encode())
    whole[second + 148 : second + 156] = b"\0\0\0\0\0\0\0x"  # its checksum
    return lzma.compress(bytes(whole))


def large_dictionary() -> bytes:
    content = bytearray(packed(STUDY))
    end = 12 + 4 * content[12]  # of the first block's header: its length, flags, filter, and the size of its dictionary
    assert content[14:16] == b"\x21\x01"
    content[16] = 36  # a gigabyte
    content[end : end + 4] = zlib.crc32(content[12:end]).to_bytes(4, "little")
    return bytes(content)


LOG = "demo/grpo-s0/metrics.jsonl"
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "no archive": (lambda: b"not an archive", ""),
    "no tar": (lambda: lzma.compress(b"x" * 5000), ""),
    "an empty tar": (lambda: lzma.compress(b""), ""),
    "a file twice": (lambda: packed((LOG, b"one"), (LOG, b"other")), "twice"),
    "two studies": (lambda: packed(STUDY, ("other/study.json", b"{}")), "two studies"),
    "no plan": (lambda: packed((STUDY[0], b'{"plans": 3}')), "plans"),
    "cut off": (lambda: packed((LOG, random.Random(1).randbytes(300_000)))[:200_000], "cut off"),
    "cut off in its checksum": (lambda: WHOLE[:-1], ""),
    "more than its end": (lambda: WHOLE + b"x", ""),
    "a flipped checksum": (lambda: WHOLE[:-20] + b"\x55" + WHOLE[-19:], ""),
    "a header that cannot be read": (unreadable_header, "goes on"),
    "a gigabyte to unpack": (large_dictionary, "emory"),
    "a full disk": (lambda: packed((LOG, ZEROS)), "unpacks to more"),
    "a long header": (lambda: headed(header(tarfile.XHDTYPE, ZEROS)), ""),
    "a long name": (lambda: headed(header(tarfile.GNUTYPE_LONGNAME, ZEROS)), ""),
    "a global header": (lambda: headed(header(tarfile.XGLTYPE, ZEROS)), ""),
    "a chain of names": (lambda: headed(header(tarfile.GNUTYPE_LONGNAME, b"demo/study.json\0") * 3000), ""),
    "a chain of headers": (lambda: headed(header(tarfile.XHDTYPE, b"16 path=demo/xy\n") * 3000), ""),
    "a sparse map": (lambda: headed(header(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
                                    header(tarfile.REGTYPE, b"99999999\n" + b"0\n" * (4 << 20))), ""),
    **{f"a header with {headers}": (lambda headers=headers: packed(STUDY, headers=headers), "")  # type: ignore[misc]
       for headers in ({"size": "-5"}, {"size": "9" * 30}, {"path": "/"},
                       {"GNU.sparse.map": "0,1", "GNU.sparse.size": "99999999"})},
    **{f"an entry of kind {kind!r}": (lambda kind=kind: lzma.compress(tar([(STUDY[0], b"")], None, kind)), "")  # type: ignore[misc]
       for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)},
}  # fmt: skip


@pytest.mark.parametrize(("made", "why"), BAD.values(), ids=BAD)
def test_what_is_no_archive_is_refused_within_limits(tmp_path: Path, made: Callable[[], bytes], why: str) -> None:
    content = made()
    tracemalloc.start()
    start = time.process_time()
    try:
        assert why in refused(tmp_path, content).why
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 20


def test_many_small_files_cannot_fill_the_disk_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.report.runs.archive.FEW_BYTES", 20_000)
    assert "unpacks to more" in refused(tmp_path, packed(*((f"demo/r{i}/run.json", b"") for i in range(1000)))).why
