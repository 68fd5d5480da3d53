"""Views of evaluations: progress, the table of results, ratings, and the list of benchmarks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import TimeRemainingColumn
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.cli.console import number
from gspo_cli.cli.views.training import Bar
from gspo_cli.events import SamplingProgress

if TYPE_CHECKING:
    from gspo_cli.evals.benchmark import Benchmark


class EvalView(Bar):
    """Answers so far, tokens per second and time left: a bar on a terminal, else an occasional line."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TimeRemainingColumn())
        self.name, self.started = name, time.monotonic()
        self.first: int | None = None
        self.done = self.total = self.tokens = 0

    def progress(self, done: int, total: int, new_tokens: int) -> None:
        """Show how many answers are stored."""
        self.first = done if self.first is None else self.first
        self.done, self.total = done, total
        self.tokens += new_tokens
        self._show(done)

    def drawing(self, progress: SamplingProgress) -> None:
        """Show how far the current request is; not that of an engine's trial as it opens, before the first answer."""
        if self.first is not None and progress.done < progress.wanted:  # the last one shows once they are stored
            self._show(self.done + progress.done, self.done + progress.share * progress.wanted, progress.tokens)

    def _show(self, done: int, completed: float | None = None, tokens: int = 0) -> None:
        """`completed` = answers, those that are partly drawn by their share; `tokens` = drawn and not yet stored."""
        assert self.first is not None
        seconds = time.monotonic() - self.started
        rate = (self.tokens + tokens) / seconds if seconds else 0.0
        if self.live:
            text = f"{done}/{self.total} answers {rate:.0f} tok/s"
            self.draw(done if completed is None else completed, self.total, text)
        elif done > self.first and self.line_is_due():
            left = seconds / (done - self.first) * (self.total - done)
            name = self.name.replace(" ", "/")
            console.note(f"eval={name} answers={done}/{self.total} tok/s={rate:.0f} left={left:.0f}s")


def result_table(summaries: list[dict[str, Any]]) -> Table:
    """One row per evaluation: avg@k with its clustered standard error, pass@k, the number of problems, and facts about
    the answers; `failed` counts those that the grader could not decide."""
    two_graders = any(s["verdicts_differ"] for s in summaries)
    names = ["benchmark", "k", "avg@k", "error", "pass@k", "n", "tokens", "cut off", "no answer", "failed"]
    table = console.table(*names, *(["graders differ"] if two_graders else []))
    table.padding = (0, 1, 0, 0)
    steps = {s["folder"].rpartition("step-")[2] for s in summaries if "step-" in s["folder"]}
    runs = {s["folder"]: Path(s["folder"]).parents[2].name for s in summaries if "step-" in s["folder"]}
    several = len(set(runs.values())) > 1
    for s in summaries:
        passes = s["pass_at_k"]
        step = f" step {int(s['folder'].rpartition('step-')[2])}" if len(steps) > 1 else ""
        excluded = sum(map(len, s["data"]["excluded"].values()))
        differ = s["verdicts_differ"]
        row = [
            s["benchmark"] + (f" {runs.get(s['folder'], '')}" if several else "") + step,
            str(s["samples"]),
            number(s["average"], ".4f") + (" (incomplete)" if s["incomplete"] else ""),
            number(s["standard_error"], ".4f"),
            number(passes.get(str(s["samples"])), ".4f"),
            str(s["num_problems"]) + (f" ({excluded} excluded)" if excluded else ""),
            number(s["mean_tokens"], ".1f"),
            number(s["truncated_frac"], ".1%"),
            f"{s['no_answer_frac']:.1%}",
            str(s["grader_errors"]),
        ]
        differing = ["n/a" if differ is None else str(sum(differ.values()))] if two_graders else []
        table.add_row(*row, *differing)
    return table


def list_table(benchmarks: list[Benchmark]) -> Table:
    """The benchmarks with their usual settings."""
    rows = (
        (b.name, b.samples, b.sampling.temperature, b.sampling.top_p, b.description, b.hub or "embedded")
        for b in benchmarks
    )
    table = console.table("name", "k", "T", "top-p", "what", "data", rows=rows)
    table.columns[0].no_wrap = True
    table.columns[-1].overflow = "fold"
    return table


def rating_lines(summary: dict[str, Any]) -> list[str]:
    """A benchmark's ratings. The two kinds differ, so they never share a table."""
    lines, name = [], summary["benchmark"]
    elo, estimate = summary.get("contest_elo"), summary.get("problem_rating_estimate")
    if elo and elo["elo"] is None:
        lines.append(f"{name}: no Elo: none of these problems is from a contest with enough participants.")
    elif elo:
        spread = "" if elo["sd"] is None else f", sd {elo['sd']:.0f}"
        above = "" if elo["percentile"] is None else f"; above {elo['percentile']} % of {elo['percentile_table']}"
        lines.append(
            f"{name}: Elo {elo['elo']:.0f}{spread} over {console.plural(elo['contests'], 'contest')}; "
            f"{elo['at_cap']} at the cap, {elo['skipped']} skipped{above}. Programs are {elo['language']}."
        )
    if estimate:
        bound = " (all solved: a lower bound)" if estimate["all_solved"] else ""
        bound = " (none solved: an upper bound)" if estimate["none_solved"] else bound
        lines.append(
            f"{name}: problem-rating estimate {estimate['problem_rating']:.0f} +- {estimate['standard_error']:.0f} "
            f"from {estimate['problems']} rated problems{bound}; this is not a contest Elo."
        )
    return lines
