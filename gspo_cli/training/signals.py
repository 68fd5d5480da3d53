"""The first SIGINT, SIGTERM or SIGHUP asks a run to save and stop; a second one ends the process at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from gspo_cli.errors import ExitCode
from gspo_cli.ranks import ALONE, Ranks

CODES = {
    signal.SIGHUP: ExitCode.SIGHUP,
    signal.SIGINT: ExitCode.SIGINT,
    signal.SIGTERM: ExitCode.SIGTERM,
}


class Interruption(BaseException):
    """Abandons work that changes nothing: sampling and evaluating."""


class Signals:
    """While the context lasts, the first signal is noted instead of obeyed.

    Its own handler is removed with it, so that a second one is obeyed by the system even inside a long call into C,
    where no Python handler would run. A signal that was ignored before (`nohup`) stays ignored.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.received: signal.Signals | None = None
        self._may_abandon = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in CODES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        if self._may_abandon:
            raise Interruption

    def agreed(self) -> signal.Signals | None:
        """The signal that any rank has got so far, the same answer on all of them: they stop after the same rollout
        batch. One that comes later, to whichever rank, is for the next time."""
        got = self.ranks.everywhere(lambda: self.received and int(self.received))
        return next((signal.Signals(number) for number in got if number), None)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Within the context a signal raises Interruption where it is; with several ranks none does, since the others
        wait for this one's answer."""
        if self.ranks.size > 1:
            yield
            return
        self._may_abandon = True
        try:
            if self.received:
                raise Interruption
            yield
        finally:
            self._may_abandon = False
