"""The process that keeps one tracker up with a study: `--report-to` starts it, the end of its input ends it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.exporters.mirror import EXPORTERS, follow, place


def main() -> int:
    """Follows the study `argv[1]` for the tracker `argv[2]` until stdin ends, then writes what has come since.

    The parent holds the other end of stdin, so this process ends with it. Prints how to read the mirror, or the error.
    """
    study, tracker = Path(sys.argv[1]), sys.argv[2]
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        follow(study, tracker, pause=ended.wait, ended=ended.is_set)
    except GspoError as error:
        print(f"{error.message}: {error.why}", flush=True)
        return int(error.code)
    print(EXPORTERS[tracker].how_to_read(place(study, tracker)), flush=True)
    return 0
