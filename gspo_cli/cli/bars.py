"""Bars for what takes a while beside training, on a terminal; and what all views share."""

from __future__ import annotations

import sys

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gspo_cli.cli import console


def is_live() -> bool:
    """Whether something may move on the screen: a terminal, neither `-q` nor `-v`."""
    return sys.stderr.isatty() and not console.settings["quiet"] and not console.settings["verbose"]


def number(value: float | None, form: str) -> str:
    """A measurement, or that there is none."""
    return "n/a" if value is None else format(value, form)


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Bar:
    """A bar that appears with the first step, so not at all where nothing is to be done, and goes when all is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bar: Progress | None = None

    def show(self, done: int, planned: int, note: str = "") -> None:
        """So much is done."""
        if self.bar is None:
            columns = (
                TextColumn(self.name),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}  {task.fields[note]}"),
            )
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console.err, transient=True)
            self.bar.add_task(self.name, total=planned, note="")
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=done, note=note)
        if done == planned:
            self.bar.stop()
            self.bar = None


class ColdStartBar(Bar):
    """The steps of a cold start; without a terminal, a line every hundred."""

    def __init__(self) -> None:
        super().__init__("cold start")

    def __call__(self, done: int, planned: int, loss: float) -> None:
        if is_live():
            self.show(done, planned, f"loss {loss:.3f}")
        elif done % 100 == 0 or done == planned:
            console.note(f"cold_start step={done}/{planned} loss={loss:.3f}")


class SamplingBar(Bar):
    """Samples drawn, of the engines that can say."""

    def __init__(self) -> None:
        super().__init__("sampling")

    def __call__(self, done: int, wanted: int) -> None:
        if is_live():
            self.show(done, wanted)
