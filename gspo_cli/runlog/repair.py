"""What a resume does to the logs before it writes: mends torn ends, checks the chain, cuts at the checkpoint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog import fs
from gspo_cli.runlog.chain import Broken, Position, follow, split_torn

LOGS = ("metrics.jsonl", "perf.jsonl", "events.jsonl")


def mend_tails(folder: Path) -> list[dict[str, Any]]:
    """Cuts a torn end off each log, and says what was cut.

    Errors: GspoError (exit code 6) when the disk refuses.
    """
    mended = []
    for path in [folder / name for name in LOGS]:
        whole, torn = split_torn(path.read_bytes()) if path.exists() else (b"", b"")
        if torn:
            try:
                fs.truncate(path, len(whole))
            except OSError as error:
                raise fs.storage_error(path, error) from error
            mended.append({"file": path.name, "bytes": len(torn), "sha256": hashlib.sha256(torn).hexdigest()})
    return mended


def sweep_files(folder: Path) -> None:
    """Removes files that a crash left unfinished; checkpoints have a sweep of their own."""
    for path in sorted(folder.rglob(".tmp-*")):
        if path.is_file() or path.is_symlink():
            os.unlink(path)


def check_to(path: Path, start: str, position: Position) -> bytes:
    """The lines after a checkpoint's position in the log, those before it having been checked one by one.

    Errors: GspoError (exit code 6) for a log that is shorter than the position, or differs from what was written.
    """
    data = path.read_bytes() if path.exists() else b""
    kept, dropped = data[: position.num_bytes], data[position.num_bytes :]
    if len(kept) < position.num_bytes:
        why = f"it has {len(data)} bytes, and the checkpoint was made after {position.num_bytes}"
    elif kept and not kept.endswith(b"\n"):
        why = f"byte {position.num_bytes}, where the checkpoint was made, is not the end of a line"
    else:
        try:
            found = follow(kept, start)
        except Broken as error:
            why = str(error)
        else:
            if found == position:
                return dropped
            why = "its lines up to there are a chain of their own, with another end than the checkpoint's"
    raise GspoError(
        f"{path} is not the log that the checkpoint belongs to",
        why,
        "restore the file from a copy; nothing was changed",
        ExitCode.STORAGE,
    )


def cut(path: Path, position: Position, dropped: bytes, aside: Path) -> dict[str, Any] | None:
    """Keeps what was dropped in the file `aside`, then cuts the log; what was done, or None if there was nothing.

    A crash in between leaves both, and the next resume does the same again.
    """
    if not dropped:
        return None
    with fs.write_atomic(aside) as temporary:
        temporary.write_bytes(dropped)
    try:
        fs.truncate(path, position.num_bytes)
    except OSError as error:
        raise fs.storage_error(path, error) from error
    return {
        "file": path.name, "bytes": len(dropped), "lines": dropped.count(b"\n"), "kept_as": aside.name,
        "sha256": hashlib.sha256(dropped).hexdigest(),
    }  # fmt: skip


def put_aside(rollouts: Path, step: int, aside: Path) -> list[str]:
    """Moves stored rollout batches of later steps into the folder `aside`; their names."""
    moved = []
    for path in sorted(rollouts.glob("step_*.parquet")):
        if int(path.stem.removeprefix("step_")) > step:
            aside.mkdir(parents=True, exist_ok=True)
            target = aside / path.name
            if os.path.lexists(target):
                os.unlink(target)
            fs.rename(path, target)
            moved.append(path.name)
    return moved
