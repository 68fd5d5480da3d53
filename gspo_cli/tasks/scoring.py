"""Score the responses of a rollout batch: every value checked, slow rewards shown, none waited for without end."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.tasks import Batched, Task
from gspo_cli.tasks.rewards import as_score, call
from gspo_cli.types import Problem, Score

FIRST_NOTE_S = 10.0
"""After so long a slow reward is shown, then each time that the time has doubled."""
_notes: list[Callable[[str], None]] = []


def show_slow_rewards(note: Callable[[str], None]) -> None:
    """Tell `note` about slow rewards from now on, in place of what was told before."""
    _notes[:] = [note]


def score(task: Task, responses: list[tuple[Problem, str]], deadline_s: float | None = None) -> list[Score]:
    """The rewards of many responses, all at once if the task can. Where it fails or gives NaN, the value is None with
    the reason: the response is left out of means and updates, not counted as wrong.

    `deadline_s` = the time for all of them.
    Errors: GspoError for what is no reward (text, infinity), and when the deadline passes.
    """
    source = f"of task {type(task).__name__}"
    with limited(deadline_s, len(responses)) as count:
        if isinstance(task, Batched):
            return [as_score(one, source) for one in task.rewards(responses)]
        return [call(partial(task.reward, *pair), source) for pair in count(responses)]


class DeadlinePassed(BaseException):
    """Ends a user's code; no `except Exception` in it may swallow this."""


Count = Callable[[list[tuple[Problem, str]]], Iterator[tuple[Problem, str]]]


@contextmanager
def limited(deadline_s: float | None, total: int) -> Iterator[Count]:
    """Within the context, time is short: notes at growing intervals, and an end at the deadline. Gives a function that
    counts the responses while it hands them out.

    A watching thread sends the main thread a signal, which ends Python code and system calls alike. Outside of the main
    thread, and in compiled code, the deadline counts only between two responses.
    Errors: GspoError when the deadline passes.
    """
    started, done, over = time.monotonic(), [0], threading.Event()
    in_main = threading.current_thread() is threading.main_thread()

    def count(responses: list[tuple[Problem, str]]) -> Iterator[tuple[Problem, str]]:
        for number, pair in enumerate(responses):
            done[0] = number
            if deadline_s is not None and time.monotonic() - started > deadline_s:
                raise DeadlinePassed
            yield pair

    def watch() -> None:
        next_note = FIRST_NOTE_S
        while True:
            passed = time.monotonic() - started
            until = next_note if deadline_s is None else min(next_note, deadline_s)
            if over.wait(max(0.0, until - passed)):
                return
            if deadline_s is not None and time.monotonic() - started >= deadline_s:
                if in_main:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
                return
            counted = f"{done[0]} of {total}" if done[0] else f"{total}"
            for note in _notes:
                note(f"scoring {counted} responses: {next_note:.0f} s so far")
            next_note *= 2

    def end(_number: int, _frame: FrameType | None) -> None:
        if not over.is_set():
            raise DeadlinePassed

    before = signal.signal(signal.SIGUSR2, end) if in_main and deadline_s is not None else None
    watcher = threading.Thread(target=watch, name="rewards", daemon=True)
    try:
        watcher.start()
        yield count
    except DeadlinePassed as error:
        raise GspoError(
            f"scoring took longer than {deadline_s:g} s: {done[0]} of {total} responses were done",
            "task.deadline_s limits the time of a rollout batch's rewards",
            "make the reward quicker, batched or async (docs/extending.md), or raise task.deadline_s",
            ExitCode.ENGINE,
        ) from error
    finally:
        over.set()
        with suppress(RuntimeError):  # a signal in the middle of `start`: it ends by itself, at its first look
            watcher.join()
        if before is not None:
            signal.signal(signal.SIGUSR2, before)
