"""How a training run looks while it runs: a live table on a terminal, else one line a step."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.bars import clock, is_live, number

ROWS = 12  # rollout batches shown at a time
COLUMNS = {
    "reward": ("reward/mean", ".3f"),
    "length": ("length/mean", ".1f"),
    "clip": ("clip/token_frac", ".4f"),
    "entropy": ("entropy/mean", ".3f"),
    "churn": ("moe/slot_churn_step", ".4f"),
    "grad": ("grad/norm", ".2f"),
}
MATTERS_MOST = ("reward", "clip", "left", "length", "tok/s", "entropy", "churn", "grad")
"""What a narrow terminal keeps."""


class TrainView:
    """Shows the runs of a study one after the other."""

    def __init__(self, steps: int, num_runs: int) -> None:
        self.steps, self.num_runs = steps, num_runs
        self.run, self.runs_done = "", 0
        self.started, self.steps_done = time.monotonic(), 0
        self.rows: list[list[str]] = []
        quiet = console.settings["quiet"]
        self.live = Live(console=console.err, refresh_per_second=4, transient=True) if is_live() else None
        self.plain = not quiet and self.live is None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def start_run(self, name: str, steps: int | None = None) -> None:
        """A new run begins, with so many rollout batches if they differ from the study's."""
        self.run, self.rows = name, []
        self.steps = self.steps if steps is None else steps
        if self.live:
            self.live.update(self._table())

    def end_run(self, summary: str) -> None:
        """A run is over; its last line stays on the screen."""
        self.runs_done += 1
        console.note(summary)

    def preflight(self, values: dict[str, float], warnings: list[str]) -> None:
        """What was checked before the first update."""
        if "floor" in values:
            v = {name: f"{value:.2g}" for name, value in values.items()}
            band = f", {values['floor'] / values['band']:.2g} of the clip range ({v['band']})" if "band" in v else ""
            console.note(
                f"preflight {self.run}: engine against trainer without any update: {v['floor']} nats a response{band}, "
                f"{v['token_floor']} a token, KL {v['kl_k1']} (k1), {v['kl_k3']} (k3); trainer against itself "
                f"{v['self_floor']}",
                prose=True,
            )
        for warning in warnings:
            console.note(f"warning: {warning}", prose=True)

    def step(self, step: int, values: dict[str, float | None]) -> None:
        """One rollout batch is done."""
        self.steps_done += 1
        tokens = (values["length/mean"] or 0) * (values["compute/responses"] or 0) / step
        tokens_per_s = tokens / (values["batch_s"] or 1)
        cells = {name: number(values.get(key), form) for name, (key, form) in COLUMNS.items()}
        cells |= {"tok/s": f"{tokens_per_s:.0f}", "left": clock(self._left())}
        if self.plain:
            pairs = " ".join(f"{k}={v}" for k, v in cells.items())
            console.note(f"run={self.run} step={step}/{self.steps} {pairs}")
        if values.get("update/applied") == 0 and values.get("group/zero_std_frac") == 1:
            console.note(
                f"warning: no update from rollout batch {step} of {self.run}: all responses to a prompt got the same "
                "reward, so there is nothing to learn from",
                prose=True,
            )
        self.rows = [*self.rows[-ROWS + 1 :], [f"{step}/{self.steps}", *cells.values()]]
        if self.live:
            self.live.update(self._table())

    def _left(self) -> float:
        planned = self.steps * self.num_runs
        return (time.monotonic() - self.started) / max(self.steps_done, 1) * (planned - self.steps_done)

    def _table(self) -> Table:
        """The last steps, with as many columns as the terminal has room for."""
        names = [*COLUMNS, "tok/s", "left"]
        room = max(1, (console.err.width - 10) // 10)
        shown = [name for name in names if name in MATTERS_MOST[:room]]
        title = f"{self.run}  (run {self.runs_done + 1} of {self.num_runs})"
        table = console.table("step", *shown, title=title)
        for column in table.columns:
            column.justify, column.no_wrap = "right", True
        for row in self.rows:
            table.add_row(row[0], *(row[1 + names.index(name)] for name in shown))
        return table
