"""What complete runs keep that nothing needs any more: the optimizer's state, and copies of the same weights."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from gspo_cli.runlog.checksums import CHECKSUMS, read_checksums, sha256_of
from gspo_cli.runlog.folder import cache_root
from gspo_cli.runlog.fs import refusals
from gspo_cli.runlog.lock import locked

OPTIMIZER = "checkpoints/step-*/optimizer*.safetensors"
WEIGHTS = "checkpoints/step-*/model/*.safetensors"


@dataclass(frozen=True)
class Superfluous:
    """A file of a complete run that can go, or become a hard link to the same bytes in another run."""

    run: Path
    file: Path
    num_bytes: int
    same_as: Path | None = None


def superfluous(complete: Iterable[Path], known: Iterable[Path] = ()) -> list[Superfluous]:
    """Of complete runs: every optimizer's state, and all but the first of equal files of weights, by their seals.

    `known` = files of other places that weights may equal.
    """
    found, first = list[Superfluous](), {(sha256_of(path), path.stat().st_dev): path for path in known}
    for run in complete:
        for name, entry in read_checksums(run).items():
            path = run / name
            if not path.is_file() or path.is_symlink() or path.stat().st_size != entry["bytes"]:
                continue
            if fnmatch(name, OPTIMIZER):
                found.append(Superfluous(run, path, entry["bytes"]))
            elif fnmatch(name, WEIGHTS):
                same = first.setdefault((entry["sha256"], path.stat().st_dev), path)
                if not same.samefile(path):
                    found.append(Superfluous(run, path, entry["bytes"], same))
    return found


def free_ended(run: Path, start: Path | None = None) -> None:
    """The same for a run that has just ended, which the caller has locked: against the others of its study, and against
    its start model if that is in the cache, where nobody else writes.

    Errors: GspoError (exit code 6) for a disk that refuses.
    """
    others = (seal.parent for seal in sorted(run.parent.glob(f"*/{CHECKSUMS}")) if seal.parent != run)
    known = start.glob("*.safetensors") if start and start.resolve().is_relative_to(cache_root().resolve()) else ()
    free((one for one in superfluous([*others, run], known) if one.run == run), lambda _: nullcontext())


def free(found: Iterable[Superfluous], lock: Callable[[Path], AbstractContextManager[object]] = locked) -> int:
    """Remove or link these files, and return the bytes that this frees. A file that is no longer what was sealed stays.

    Errors: GspoError for a run that is in use, and (exit code 6) for a disk that refuses.
    """
    freed = 0
    for one in found:
        with lock(one.run), refusals(one.file):
            if one.same_as is None:
                os.unlink(one.file)
            elif sha256_of(one.file) == sha256_of(one.same_as):
                temporary = one.file.with_name(f".tmp-{one.file.name}")
                temporary.unlink(missing_ok=True)
                os.link(one.same_as, temporary)
                os.replace(temporary, one.file)
            else:
                continue
            freed += one.num_bytes
    return freed
