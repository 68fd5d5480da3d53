"""Live views of training: a table of steps for one run at a time, and a table of runs for several at once."""

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from gspo_cli import events
from gspo_cli.cli import console
from gspo_cli.cli.console import Shown, clock, is_live, note, number
from gspo_cli.cli.views.samples import LINES_EVERY_S, ROOM, SampleView
from gspo_cli.errors import ExitCode
from gspo_cli.events import EvaluationProgress, Event, SamplingProgress

LINE_INTERVAL_S = 30.0
"""Without a terminal: the minimum time between two lines about the same batch."""
PHASES = {
    "start": "loading the model", "rollout": "sampling", "score": "scoring", "prepare": "preparing",
    "probe": "probing", "old_policy": "old policy", "update": "updating", "sync": "handing over weights",
    "evaluate": "evaluating", "save": "saving", "write": "waiting for the disk",
}  # fmt: skip
"""What a phase is called on the screen."""
AFTER = ("evaluate", "save", "write")
"""Phases that belong to the batch just finished, not to the next one."""
TIMES = {"sampling": "rollout_s", "scoring": "score_s", "old policy": "old_policy_s", "update": "update_s",
         "sync": "sync_s"}  # fmt: skip
"""The phases of a batch whose seconds are shown. Scoring is part of `rollout_s`."""


class Drawing:
    """One sampling, its speed, and how long it may still take."""

    def __init__(self) -> None:
        self.last: SamplingProgress | None = None
        self.began = time.monotonic()

    def update(self, progress: SamplingProgress) -> None:
        """Take in how far the engine is; fewer tokens than before mean a new request."""
        if self.last is not None and progress.tokens < self.last.tokens:
            self.began = time.monotonic()
        self.last = progress

    def text(self) -> str:
        """`12/64 responses, 480 tok/s, at most 1:20 left`; empty before the first report."""
        if self.last is None:
            return ""
        seconds, share = time.monotonic() - self.began, self.last.share
        rate = self.last.tokens / seconds if seconds > 0 else 0.0
        left = f", at most {clock(seconds / share * (1 - share))} left" if 0 < share < 1 else ""
        digits = 0 if rate >= 10 else 1
        return f"{self.last.done}/{self.last.wanted} responses, {rate:.{digits}f} tok/s{left}"


class Activity:
    """The phase that a run is in."""

    def __init__(self) -> None:
        self.phase, self.since = "start", time.monotonic()
        self.batch: int | None = None
        self.drawing = Drawing()
        self.evaluation = EvaluationProgress(0, 0)
        self.last_batch = ""
        self.stopping = ""
        """What to say after a signal."""
        self.last_line = time.monotonic()

    def take(self, event: Event) -> bool:
        """Take in an event. Returns whether it is about what the run does now."""
        match event:
            case events.PhaseBegun(phase):
                if phase in ("rollout", "evaluate"):
                    self.drawing, self.evaluation = Drawing(), EvaluationProgress(0, 0)
                self.phase, self.since = phase, time.monotonic()
            case SamplingProgress():
                self.drawing.update(event)
            case EvaluationProgress():  # an evaluation begins, or its next request to the engine does
                self.evaluation, self.drawing = event, Drawing()
            case _:
                return False
        return True

    def progress(self) -> str:
        """How far the sampling or the evaluation is; empty in other phases, and before the first report."""
        if self.phase == "rollout":
            return self.drawing.text()
        if self.phase != "evaluate" or not self.evaluation.wanted:
            return ""
        drawn = self.drawing.last.done if self.drawing.last else 0
        return f"{self.evaluation.done + drawn}/{self.evaluation.wanted} answers"

    def finish_batch(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take in the times of a finished rollout batch."""
        self.batch, self.last_batch = step, batch_times(values)

    def text(self) -> str:
        """`batch 3: sampling 0:42, 12/64 responses, 480 tok/s, at most 1:20 left; memory 2.1 GB`."""
        where = "" if self.batch is None else f"batch {self.batch + (self.phase not in AFTER)}: "
        parts = [f"{where}{PHASES.get(self.phase, self.phase)} {clock(time.monotonic() - self.since)}"]
        if progress := self.progress():
            parts.append(progress)
        return ", ".join(parts) + f"; memory {memory_gb():.1f} GB"

    def line_is_due(self) -> bool:
        """Whether the time for another plain line has come."""
        now = time.monotonic()
        due = now - max(self.last_line, self.since) >= LINE_INTERVAL_S
        self.last_line = now if due else self.last_line
        return due


def batch_times(values: Mapping[str, float | None]) -> str:
    """`last batch 81.2 s: sampling 60.1, scoring 0.4, update 18.0, other 2.7`."""
    whole = values.get("batch_s")
    if whole is None:
        return ""
    seconds = {name: values.get(key) or 0.0 for name, key in TIMES.items()}
    seconds["sampling"] -= seconds["scoring"]
    seconds["other"] = max(0.0, whole - sum(seconds.values()))
    return f"last batch {whole:.1f} s: " + ", ".join(f"{name} {s:.1f}" for name, s in seconds.items() if s >= 0.05)


def memory_gb() -> float:
    """Memory of this process in units of 10^9 bytes: on the GPU if it uses one, else resident."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


class Bar(Shown):
    """A bar on a terminal with a note behind it, and then these columns; without a terminal, a line now and then."""

    def __init__(self, name: str, *columns: ProgressColumn) -> None:
        self.last_line = time.monotonic()
        if is_live():
            text = TextColumn("{task.fields[note]}", markup=False)
            columns = (TextColumn(name, markup=False), BarColumn(), text, *columns)
            self.live = Progress(*columns, console=console.err, transient=True)
            self.live.add_task(name, total=None, note="loading the model")

    def draw(self, completed: float, total: float, text: str) -> None:
        """Move the bar."""
        self.live.update(self.live.task_ids[0], total=total, completed=completed, note=text)

    def line_is_due(self) -> bool:
        """Whether the time for another plain line has come."""
        due = time.monotonic() - self.last_line >= LINE_INTERVAL_S
        self.last_line = time.monotonic() if due else self.last_line
        return due


class ColdStartBar(Bar):
    """The steps of a cold start: a bar on a terminal, else a line every hundred steps."""

    def __init__(self) -> None:
        super().__init__("cold start", TimeRemainingColumn())

    def __call__(self, done: int, total: int, loss: float) -> None:
        if self.live:
            self.live.start()  # at the first step, since most cold starts are in the cache
            self.draw(done, total, f"{done}/{total}  loss {loss:.3f}")
            if done == total:
                self.live.stop()
        elif done % 100 == 0 or done == total:
            note(f"cold_start step={done}/{total} loss={loss:.3f}")


class SamplingBar(Bar):
    """How far a sampling is, from the first token on: a bar on a terminal, else a line every half minute."""

    def __init__(self) -> None:
        super().__init__("sampling")
        self.drawing = Drawing()

    def __call__(self, progress: SamplingProgress) -> None:
        self.drawing.update(progress)
        if self.live:
            self.draw(progress.share, 1.0, self.drawing.text())
        elif self.line_is_due():
            note(f"sampling: {self.drawing.text()}")


ROWS = 12
"""Rollout batches shown at a time."""
MIN_ROWS = 10
"""Lines that the table needs at least, its head and the line beneath it included."""
STOPPING_TEXT = "stopping: the run saves and ends, after this batch's updates if they have begun; Ctrl-C again kills it"
SIGNAL = "groups with signal"
"""Not a metric: 1 - group/zero_std_frac, the share of groups whose rewards differ."""
RUN_COLUMNS = {
    "reward": ("reward/mean", ".3f"),
    "signal": (SIGNAL, ".0%"),
    "cut off": ("length/truncated_frac", ".0%"),
    "length": ("length/mean", ".1f"),
    "clip": ("clip/token_frac", ".4f"),
    "entropy": ("entropy/mean", ".3f"),
    "churn": ("moe/slot_churn_step", ".4f"),
    "grad": ("grad/norm", ".2f"),
}
PRIORITY = ("reward", "signal", "cut off", "left", "clip", "tok/s", "length", "entropy", "churn", "grad")
"""The columns in the order in which a narrow terminal keeps them."""
STUDY_COLUMNS = {name: RUN_COLUMNS[name] for name in ("reward", "signal", "cut off", "clip")}
WAITING, TRAINING, STOPPING, DONE, STOPPED = "waiting", "training", "stopping", "done", "stopped"


def with_signal(values: dict[str, float | None]) -> dict[str, float | None]:
    """The values with the share of groups that carry a signal."""
    flat = values.get("group/zero_std_frac")
    return values | {SIGNAL: None if flat is None else 1 - flat}


def cells_of(values: Mapping[str, float | None], columns: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The formatted numbers of a row, by column."""
    return {name: number(values.get(key), form) for name, (key, form) in columns.items()}


def pairs_of(cells: dict[str, str]) -> str:
    """A row as a line such as `reward=0.125 cut_off=3%`."""
    return " ".join(f"{name.replace(' ', '_')}={cell}" for name, cell in cells.items())


def preflight_text(values: dict[str, float]) -> str:
    """What the first batch showed before any update: whether the engine that samples and the trainer agree."""
    small = values["floor"] <= values["band"] / 10 if "band" in values else values["token_floor"] <= 0.1
    band = f", {values['floor'] / values['band']:.2g} times the clip range's edge" if "band" in values else ""
    verdict = "rounding, as it should be" if small else "more than float32 rounds; see the warnings"
    if "rounding" in values:
        verdict += f"; half precision alone moves the trainer's by {values['rounding']:.2g} per response"
        verdict += f" and {values['token_rounding']:.2g} per token"
    return (
        f"before any update, engine and trainer differ by {values['floor']:.2g} nats per response{band} and "
        f"{values['token_floor']:.2g} per token: {verdict}"
    )


class TrainView(Shown):
    """The runs of a study one after another: a live table of steps, or one line per step without a terminal."""

    def __init__(self, steps: int, num_runs: int, show_samples: bool | None = None) -> None:
        self.steps, self.num_runs = steps, num_runs
        self.show_samples, self.samples = show_samples, SampleView()
        self.run, self.runs_done = "", 0
        self.started, self.steps_done = time.monotonic(), 0
        self.rows: list[list[str]] = []
        self.activity = Activity()
        if is_live():
            self.live = Live(console=console.err, refresh_per_second=2, transient=True, get_renderable=self._screen)
        self.plain = not console.settings["quiet"] and self.live is None

    def start_run(self, name: str, steps: int | None = None) -> None:
        """Start showing a run; `steps` overrides the study's number of rollout batches."""
        self.run, self.rows, self.samples = name, [], SampleView()
        self.steps = self.steps if steps is None else steps
        self.activity = Activity()

    def end_run(self, summary: str) -> None:
        """Print a run's last line, which stays on the screen."""
        self.runs_done += 1
        console.note(summary)

    def __call__(self, event: Event) -> None:
        """Show an event of the run."""
        self.activity.take(event)
        match event:
            case SamplingProgress() if self.plain and self.activity.line_is_due():
                console.note(f"run={self.run} {self.activity.text()}")
            case events.BatchSampled(batch):  # beneath the live table where there is room, or as lines if asked
                if self.live and self._has_room():
                    self.samples.update(batch)
                elif self.show_samples and self.samples.update(batch, LINES_EVERY_S):
                    console.note(*self.samples.lines())
            case events.BatchDone(step, values):
                self._show_batch(step, values)
            case events.PreflightDone(values):
                console.note(f"{self.run}: {preflight_text(values)}", prose=True)
            case events.Warned(text):
                console.note(f"warning: {text}", prose=True)
            case events.Noted(text):
                console.note(text, prose="/" not in text)  # a path stays on one line
            case events.SignalReceived():
                self.activity.stopping = STOPPING_TEXT
                if self.plain:
                    os.write(2, f"{STOPPING_TEXT}\n".encode())  # a signal handler may not print by `print`

    def _show_batch(self, step: int, values: dict[str, float | None]) -> None:
        self.steps_done += 1
        tokens = (values["length/mean"] or 0) * (values["compute/responses"] or 0) / step
        tokens_per_s = tokens / (values["batch_s"] or 1)
        values = with_signal(values)
        cells = cells_of(values, RUN_COLUMNS)
        cells |= {"tok/s": f"{tokens_per_s:.0f}", "left": clock(self._left())}
        if self.plain:
            console.note(f"run={self.run} step={step}/{self.steps} {pairs_of(cells)}")
        self.rows = [*self.rows[-ROWS + 1 :], [f"{step}/{self.steps}", *cells.values()]]
        self.activity.finish_batch(step, values)

    def _has_room(self) -> bool:
        return self.show_samples is not False and console.err.height >= MIN_ROWS + ROOM

    def _screen(self) -> RenderableType:
        """The table, and responses beneath it where there is room."""
        activity = self.activity
        now = [line for line in (activity.text(), activity.last_batch, activity.stopping) if line]
        if not self._has_room():
            return Group(self._table(ROWS), *now)
        rows = min(ROWS, console.err.height - ROOM - MIN_ROWS + 3)
        return Group(self._table(rows), *now, self.samples.panel(console.err.width))

    def _left(self) -> float:
        planned = self.steps * self.num_runs
        return (time.monotonic() - self.started) / max(self.steps_done, 1) * (planned - self.steps_done)

    def _table(self, rows: int) -> Table:
        """The last steps, with as many columns as fit."""
        names = [*RUN_COLUMNS, "tok/s", "left"]
        room = max(1, (console.err.width - 10) // 10)
        shown = [name for name in names if name in PRIORITY[:room]]
        title = f"{self.run}  (run {self.runs_done + 1} of {self.num_runs})"
        cells = ((row[0], *(row[1 + names.index(name)] for name in shown)) for row in self.rows[-rows:])
        return console.table("step", *shown, rows=cells, title=title, justify="right", no_wrap=True)


class StudyView(Shown):
    """Several runs at once: a live table with a row per run, or one line per run and step without a terminal."""

    def __init__(self, names: list[str], steps: int) -> None:
        self.steps, self.started = steps, time.monotonic()
        self.state = dict.fromkeys(names, (WAITING, ""))
        self.at = dict.fromkeys(names, 0)
        self.activities = {name: Activity() for name in names}
        self.notes = set[str]()
        self.values: dict[str, dict[str, float | None]] = {name: {} for name in names}
        self.lock = threading.Lock()
        self.live = Live(console=console.err, refresh_per_second=4, get_renderable=self.table) if is_live() else None

    def __call__(self, name: str, event: Event) -> None:
        """Show an event of a run."""
        with self.lock:
            line = self._take(name, event)
            if line and not self.live:
                console.note(f"run={name} {line}")

    def _take(self, name: str, event: Event) -> str:
        """Take in an event of a run. Returns what to print of it where there is no table."""
        activity = self.activities[name]
        if activity.take(event) and self.state[name][0] == TRAINING:  # once it is asked to stop, it shows that
            doing = f"{PHASES.get(activity.phase, activity.phase)} {activity.progress()}".strip()
            self.state[name] = (TRAINING, doing)
        match event:
            case events.WorkerIs(state):
                if state == STOPPING and not any(other == STOPPING for other, _ in self.state.values()):
                    console.note("stopping: the running runs save and end; Ctrl-C again kills them")
                self.state[name] = (state, {TRAINING: PHASES["start"], STOPPING: "saving"}.get(state, ""))
            case SamplingProgress() if activity.line_is_due():
                return f"batch {self.at[name] + 1}: {self.state[name][1]}"
            case events.BatchDone(step, values):
                self.at[name], self.values[name] = step, with_signal(values)
                cells, left = cells_of(self.values[name], STUDY_COLUMNS), self.left()
                return f"step={step}/{self.steps} {pairs_of(cells)}" + ("" if left is None else f" left={clock(left)}")
            case events.Warned(text):
                console.note(f"warning: {name}: {text}")
            case events.Noted(text) if text not in self.notes:
                self.notes.add(text)  # the runs of a study have much the same to say
                console.note(f"{name}: {text}")
            case events.WorkerEnded(code, reason):
                state = DONE if code == ExitCode.OK else STOPPED
                self.state[name] = (state, reason)
                return f"{state}: {reason}" if reason else state
        return ""

    def left(self) -> float | None:
        """Seconds until all runs are done, at the pace so far; None before the first step."""
        done = sum(self.at.values())
        missing = sum(self.steps - at for name, at in self.at.items() if self.state[name][0] in (WAITING, TRAINING))
        return (time.monotonic() - self.started) / done * missing if done else None

    def table(self) -> Table:
        """One row per run."""
        left = self.left()
        states = [state for state, _ in self.state.values()]
        stopped = f", {states.count(STOPPED)} stopped" if STOPPED in states else ""
        ends = f", {clock(left)} left" if left else ""
        title = f"{states.count(DONE)} of {len(states)} runs done{stopped}{ends}"
        table = console.table("run", "state", "step", *STUDY_COLUMNS, title=title)
        for name, (state, reason) in self.state.items():
            what = f"{state}: {reason}" if reason else state
            cells = cells_of(self.values[name], STUDY_COLUMNS).values() if self.values[name] else ()
            table.add_row(name, what, f"{self.at[name]}/{self.steps}", *cells)
        return table
