"""A study in one small file: what its reports read (logs, configurations, provenance, answers), without weights.

The same study gives the same bytes. A report command that is given such a file unpacks it under its output root, once.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import tarfile
from pathlib import Path, PurePosixPath

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog.fs import remove_tree, rename, write_atomic, write_text

SUFFIX = ".tar.xz"
ORIGIN = "archive.json"
"""In an unpacked study: the hash of the archive."""
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
MEMBER = re.compile(
    rf"(?:{'|'.join(map(re.escape, STUDY_FILES))}"
    rf"|(?P<run>[A-Za-z0-9._-]+)/(?:{'|'.join(map(re.escape, RUN_FILES))}"
    rf"|eval/[A-Za-z0-9._-]+/step-\d+/(?:{'|'.join(map(re.escape, ANSWERS))})))"
)
"""The only names that an archive may hold, below the study's own."""
MOST_BYTES = 1 << 32
"""Unpacked; a file that grows further is no study."""


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


def unpack(archive: Path, root: Path) -> Path:
    """The folder of an archive's study under `root`; unpacked unless it is there already.

    Errors: GspoError for a file that is no archive of a study (exit code STORAGE), and where another study has its
    place.
    """
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    temporary = root / f".tmp-{sha256[:16]}"
    if temporary.is_dir():  # of an attempt that was killed
        remove_tree(temporary)
    try:
        study = _unpack(archive, sha256, temporary, root)
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError) as error:
        raise GspoError(
            f"{archive} is no archive of a study", str(error), "make one with `gspo runs export --to archive`",
            ExitCode.STORAGE,
        ) from error  # fmt: skip
    finally:
        if temporary.is_dir():
            remove_tree(temporary)
    return study


def _unpack(archive: Path, sha256: str, temporary: Path, root: Path) -> Path:
    """Unpacks into the temporary folder, then renames it. Errors: of the readers, and ValueError for a bad member."""
    study, total = None, 0
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for info in tar:
            name, _, member = info.name.partition("/")
            total += info.size
            if not info.isreg() or not MEMBER.fullmatch(member) or name in ("", ".", "..") or total > MOST_BYTES:
                raise ValueError(f"it holds {info.name!r}, which is no file of a study")
            if study not in (None, root / name):
                raise ValueError("it holds files of two studies")
            study = root / name
            if _is_there(study, sha256, archive):
                return study
            content = tar.extractfile(info)
            assert content is not None, info.name
            place = temporary / member
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.read())
    if study is None:
        raise ValueError("it is empty")
    write_text(temporary / ORIGIN, json.dumps({"file": archive.name, "sha256": sha256}) + "\n")
    rename(temporary, study)
    return study


def _is_there(study: Path, sha256: str, archive: Path) -> bool:
    """Whether the archive was unpacked before. Errors: GspoError if the folder holds something else."""
    if not study.exists():
        return False
    origin = study / ORIGIN
    if origin.is_file() and json.loads(origin.read_text()).get("sha256") == sha256:
        return True
    raise GspoError(
        f"{study} exists and is not the study of {archive}",
        "an archive is unpacked under the output root, and never over another study",
        "name another root: --out FOLDER",
    )
