"""A study in one small file: what its reports read (logs, configurations, provenance, answers), without weights.

The same study gives the same bytes. A report command that is given such a file unpacks it under its output root, once.
"""

import io
import json
import lzma
import re
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.reader import LogReader
from gspo_cli.runlog.checksums import ORIGIN, refuse_damaged, sha256_of
from gspo_cli.runlog.folder import read_study_file
from gspo_cli.runlog.fs import remove_tree, rename, write_atomic, write_text
from gspo_cli.runlog.strict_json import read_object

SUFFIX = ".tar.xz"
STUDY_FILES = ("study.json", "tuning.json")
RUN_FILES = (
    "run.json",
    "config.json",
    "recipe.toml",
    "metrics.jsonl",
    "events.jsonl",
    "perf.jsonl",
    "invalidated.json",
)
ANSWERS = ("summary.json", "answers.parquet")
_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
MEMBER = re.compile(
    rf"(?:{'|'.join(map(re.escape, STUDY_FILES))}"
    rf"|{_PART}/(?:{'|'.join(map(re.escape, RUN_FILES))}"
    rf"|eval/{_PART}/step-[0-9]+/(?:{'|'.join(map(re.escape, ANSWERS))})))"
)
"""The only names that an archive may hold, below the study's own."""
MOST_BYTES, FEW_BYTES, MOST_TIMES = 1 << 32, 1 << 24, 100
"""Unpacked, and what any archive may unpack to; a larger one, to so many times its size. Logs shrink to a tenth."""
MOST_HEADER = 1 << 16
"""Bytes between two files: a header, the padding before it, and what is read ahead. Whoever wrote the archive chooses
how long a name is, or a chain of headers."""
MOST_MEMORY = 1 << 26
"""Bytes for the decompressor. An archive says how much it wants; ours want 9 MiB."""


def write_archive(study: Path, target: Path, updates: bool = True) -> int:
    """Writes the study's archive, and returns its size in bytes.

    `updates=False` leaves out the log's lines of single updates; comparisons and maps read those of whole batches.
    Errors: GspoError for a folder without runs, and for a file that exists.
    """
    runs = sorted(path.parent for path in study.glob("*/run.json"))
    if not runs:
        raise GspoError(f"no runs in {study}", "an archive holds a study, with its runs in folders", "name a study")
    if target.exists():
        raise GspoError(f"{target} exists", "an archive never overwrites a file", "remove it, or move it away")
    files = [study / name for name in STUDY_FILES]
    for run in runs:
        if (log := run / "metrics.jsonl").is_file():
            refuse_damaged(log)
        files += [run / name for name in RUN_FILES]
        files += sorted(path for name in ANSWERS for path in run.glob(f"eval/*/step-*/{name}"))
    with (
        write_atomic(target) as temporary,
        lzma.open(temporary, "wb", preset=6) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in (path for path in files if path.is_file()):
            content = path.read_bytes()
            if path.name == "metrics.jsonl" and not updates:
                lines = content.splitlines(keepends=True)
                content = b"".join(line for line in lines if json.loads(line)["kind"] != "update")
            info = tarfile.TarInfo(str(PurePosixPath(study.resolve().name, *path.relative_to(study).parts)))
            info.size, info.mode = len(content), 0o644  # no time, no owner: the same study gives the same bytes
            tar.addfile(info, io.BytesIO(content))
    return target.stat().st_size


def unpack(archive: Path, root: Path, check: Callable[[Path], object] = lambda _: None) -> Path:
    """The folder of an archive's study under `root`; unpacked unless it is there already. What `check`, which is given
    the study before it has its place, refuses leaves nothing behind.

    Errors: GspoError for a file that is no archive of a study (exit code STORAGE), and where another study has its
    place; those of `check`.
    """
    sha256 = sha256_of(archive)
    temporary, was_there = root / f".tmp-{sha256[:16]}", root.exists()
    if temporary.is_symlink():
        raise GspoError(f"{temporary} is a link", "an archive is unpacked there first", "remove it")
    if temporary.is_dir():  # of an attempt that was killed
        remove_tree(temporary)
    try:
        study = _unpack(archive, sha256, temporary, root, check)
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError) as error:
        raise GspoError(
            f"{archive} is no archive of a study", str(error), "make one with `gspo runs export --to archive`",
            ExitCode.STORAGE,
        ) from error  # fmt: skip
    finally:
        if temporary.is_dir():
            remove_tree(temporary)
        if not was_there and root.is_dir() and not any(root.iterdir()):
            root.rmdir()
    return study


class _Unpacked(io.RawIOBase):
    """What an archive holds, as a stream that ends with an error where it is longer than the next step needs."""

    def __init__(self, packed: BinaryIO) -> None:
        self.packed, self.left = packed, MOST_HEADER
        self.position, self.newest = 0, b""
        self.decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_MEMORY)

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes. Errors: ValueError once `left` is used up, EOFError for an archive that is cut off."""
        data = b""
        while not data and not self.decompressor.eof:
            packed = self.packed.read(size) if self.decompressor.needs_input else b""
            if self.decompressor.needs_input and not packed:
                raise EOFError("it is cut off")
            data = self.decompressor.decompress(packed, size)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("its headers, or a file in it, are longer than they may be")
        self.position, self.newest = self.position + len(data), (self.newest + data)[-MOST_HEADER:]
        return data

    def require_end(self, offset: int) -> None:
        """Errors: ValueError unless only padding follows from `offset` on, EOFError or LZMAError where the end with its
        checksum is cut off or wrong. `tarfile` takes a header that it cannot read for the end."""
        rest = self.newest[max(0, offset + len(self.newest) - self.position) :]
        while data := self.read(tarfile.RECORDSIZE):
            rest += data
        if rest.strip(b"\0") or self.decompressor.unused_data or self.packed.read(1):
            raise ValueError("it goes on after its last file")


def _unpack(archive: Path, sha256: str, temporary: Path, root: Path, check: Callable[[Path], object]) -> Path:
    """Unpacks into the temporary folder, then renames it. Errors: of the readers, and ValueError for a bad member."""
    study, room = None, min(MOST_BYTES, max(FEW_BYTES, MOST_TIMES * archive.stat().st_size))
    with archive.open("rb") as packed, tarfile.open(fileobj=(stream := _Unpacked(packed)), mode="r|") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4; names are checked below, too
        while info := tar.next():
            name, _, member = info.name.partition("/")
            is_name = name.isprintable() and not name.startswith(".") and MEMBER.fullmatch(member)
            if not name or not is_name or not info.isreg() or info.issparse():
                raise ValueError(f"it holds {info.name[:200]!r}, which is no file of a study")
            room -= tarfile.BLOCKSIZE + info.size
            if info.size < 0 or room < 0:
                raise ValueError("it unpacks to more than a study of its size")
            if study not in (None, root / name):
                raise ValueError("it holds files of two studies")
            study = root / name
            if (temporary / info.name).exists():
                raise ValueError(f"it holds {info.name!r} twice")
            if _is_there(study, sha256, archive):
                return study
            stream.left = info.size + MOST_HEADER
            tar.extract(info, temporary, set_attrs=False)
            stream.left = MOST_HEADER
        stream.require_end(tar.offset)
    if study is None:
        raise ValueError("it is empty")
    if (temporary / study.name / "study.json").is_file():
        read_study_file(temporary / study.name)
    write_text(temporary / study.name / ORIGIN, json.dumps({"file": archive.name, "sha256": sha256}) + "\n")
    _check_content(temporary / study.name)
    check(temporary / study.name)
    rename(temporary / study.name, study)
    return study


def _check_content(study: Path) -> None:
    """Errors: GspoError (exit code STORAGE) for a file that holds no strict JSON, or a log that was changed."""
    for path in sorted(study.rglob("*.json")):
        read_object(path)
    for path in sorted(study.rglob("*.jsonl")):
        reader = LogReader(path)
        for block in reader.blocks():
            reader.parse(block)
        reader.refuse_damaged()


def _is_there(study: Path, sha256: str, archive: Path) -> bool:
    """Whether the archive was unpacked before. Errors: GspoError if the folder holds something else."""
    if not study.exists():
        return False
    origin = study / ORIGIN
    if origin.is_file() and read_object(origin).get("sha256") == sha256:
        return True
    raise GspoError(
        f"{study} exists and is not the study of {archive}",
        "an archive is unpacked under the output root, and never over another study",
        "name another root: --out FOLDER",
    )
