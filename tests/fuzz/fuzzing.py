"""One case of the fuzz: a mutated file, read under a limit of time; what leaves the reader must be a GspoError."""

import random
import signal
import traceback
import warnings
from pathlib import Path
from types import FrameType

from readers import Reader, mutated

from gspo_cli.errors import GspoError

SECONDS = 60
"""Far more than any file here needs, also on a busy machine."""


class TooLong(BaseException):
    """A reader that does not end; no reader may catch it."""


def _end(_number: int, _frame: FrameType | None) -> None:
    raise TooLong


def fault_of(reader: Reader, seed: int, folder: Path) -> str:
    """What is wrong with how the reader takes the case of this number; empty if nothing is."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    content = mutated(reader.content, random.Random(seed))
    (folder / reader.file).write_bytes(content)
    earlier = signal.signal(signal.SIGALRM, _end)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(folder)
    except GspoError as error:
        return "" if error.message and error.why and error.hint else f"an error without its parts: {error!r}"
    except TooLong:
        return f"not ended after {SECONDS} s: {content[:300]!r}"
    except Exception:
        return f"{traceback.format_exc(limit=-4)}\n{content[:300]!r}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
    return ""
