"""How evaluations look: progress while they run, the table of their figures, the list of benchmarks."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.bars import is_live, number

if TYPE_CHECKING:
    from gspo_cli.evals.benchmark import Benchmark

EVERY_S = 30.0
"""Without a terminal: seconds between two lines at least."""


class EvalView:
    """Answers drawn so far, tokens a second and the time left; a bar on a terminal, else a line now and then."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = self.told = time.monotonic()
        self.first: int | None = None
        self.done = self.total = self.tokens = 0
        columns = (
            TextColumn(name, markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = Progress(*columns, console=console.err, transient=True) if is_live() else None

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.add_task(self.name, total=None, rate="")
            self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def progress(self, done: int, total: int, new_tokens: int) -> None:
        """So many answers are stored."""
        self.first = done if self.first is None else self.first
        self.done, self.total = done, total
        self.tokens += new_tokens
        self._show(done)

    def drawing(self, done: int, wanted: int) -> None:
        """Of those that the engine was asked for last, so many are drawn."""
        if done < wanted:  # the rest follows when they are stored
            self._show(self.done + done)

    def _show(self, done: int) -> None:
        assert self.first is not None
        now = time.monotonic()
        seconds = now - self.started
        rate = self.tokens / seconds if seconds else 0.0
        if self.bar:
            self.bar.update(self.bar.task_ids[0], total=self.total, completed=done, rate=f"{rate:.0f} tok/s")
        elif done > self.first and now - self.told >= EVERY_S:
            self.told = now
            left = seconds / (done - self.first) * (self.total - done)
            name = self.name.replace(" ", "/")
            console.note(f"eval={name} answers={done}/{self.total} tok/s={rate:.0f} left={left:.0f}s")


def result_table(summaries: list[dict[str, Any]]) -> Table:
    """One row an evaluation: avg@k and its clustered standard error, pass@k, problems, and what the
    answers are like; `failed` are those that the grader could not decide."""
    codes = any(s["verdicts_differ"] for s in summaries)
    names = ["benchmark", "k", "avg@k", "error", "pass@k", "n", "tokens", "cut off", "no answer", "failed"]
    table = Table(*names, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    if codes:
        table.add_column("graders differ")
    steps = {s["folder"].rpartition("step-")[2] for s in summaries if "step-" in s["folder"]}
    for s in summaries:
        passes = s["pass_at_k"]
        step = f" step {int(s['folder'].rpartition('step-')[2])}" if len(steps) > 1 else ""
        row = [
            s["benchmark"] + step,
            str(s["samples"]),
            number(s["average"], ".4f") + (" (incomplete)" if s["incomplete"] else ""),
            number(s["standard_error"], ".4f"),
            number(passes.get(str(s["samples"])), ".4f"),
            str(s["num_problems"]) + _excluded(s["data"]["excluded"]),
            number(s["mean_tokens"], ".1f"),
            number(s["truncated_frac"], ".1%"),
            f"{s['no_answer_frac']:.1%}",
            str(s["grader_errors"]),
        ]
        table.add_row(*row, *([_differ(s["verdicts_differ"])] if codes else []))
    return table


def list_table(benchmarks: list[Benchmark]) -> Table:
    """What `gspo eval list` shows: samples, temperature and top-p as published."""
    table = Table("name", "k", "T", "top-p", "what", "data", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[-1].overflow = "fold"
    for b in benchmarks:
        sampling = b.sampling
        table.add_row(
            b.name, str(b.samples), str(sampling.temperature), str(sampling.top_p), b.description, b.hub or "embedded"
        )
    return table


def rating_lines(summary: dict[str, Any]) -> list[str]:
    """What a benchmark says in ratings; the two figures are of different kinds and never share a table."""
    lines, name = [], summary["benchmark"]
    elo, estimate = summary.get("contest_elo"), summary.get("problem_rating_estimate")
    if elo and elo["elo"] is None:
        lines.append(f"{name}: no Elo, because no contest with enough participants has a problem here.")
    elif elo:
        spread = "" if elo["sd"] is None else f", sd {elo['sd']:.0f}"
        above = "" if elo["percentile"] is None else f"; above {elo['percentile']} % of {elo['percentile_table']}"
        lines.append(
            f"{name}: Elo of {elo['contests']} contests {elo['elo']:.0f}{spread}; {elo['at_cap']} at the cap, "
            f"{elo['skipped']} skipped{above}. Programs are {elo['language']}."
        )
    if estimate:
        bound = " (all solved: a lower bound)" if estimate["all_solved"] else ""
        bound = " (none solved: an upper bound)" if estimate["none_solved"] else bound
        lines.append(
            f"{name}: problem-rating estimate {estimate['problem_rating']:.0f} +- {estimate['standard_error']:.0f} "
            f"from {estimate['problems']} rated problems{bound}; it is no Elo of contests."
        )
    return lines


def _excluded(reasons: dict[str, list[str]]) -> str:
    number = sum(map(len, reasons.values()))
    return f" ({number} excluded)" if number else ""


def _differ(found: dict[str, int] | None) -> str:
    return "n/a" if found is None else str(sum(found.values()))
