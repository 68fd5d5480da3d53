"""Sampled responses on a terminal: a few beneath the live table, and those that `gspo runs samples` prints."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.styled import Styled

from gspo_cli.cli import console
from gspo_cli.sanitize import excerpt, sanitize

if TYPE_CHECKING:
    from gspo_cli.report.runs.samples import Response
    from gspo_cli.types import RolloutBatch

SHOWN = 3
"""Responses shown of a batch."""
EVERY_S = 5.0
"""On a live view: time for which the same responses stay."""
LINES_EVERY_S = 60.0
"""Without one: time between two excerpts."""
ROOM = 11
"""Lines that the samples take beneath the table."""

Row = dict[str, Any]


def pick(batch: RolloutBatch) -> list[Row]:
    """Up to `SHOWN` responses to one prompt: the best, the worst and another one, of the first group whose rewards
    differ, else of the first group."""
    rewards = [[score.value for score in group.scores] for group in batch.groups]
    spread = (g for g, values in enumerate(rewards) if len({value for value in values if value is not None}) > 1)
    g = next(spread, 0)
    group = batch.groups[g]
    order = sorted(range(len(rewards[g])), key=lambda i: -math.inf if (r := rewards[g][i]) is None else r, reverse=True)
    chosen = dict.fromkeys([order[0], order[-1], *order])
    return [
        {
            "step": batch.step, "prompt": group.problem.prompt, "text": group.texts[i],
            "reward": group.scores[i].value, "reason": group.scores[i].reason, "finish": group.samples[i].finish,
            "parts": dict(group.scores[i].parts), "tokens": len(group.samples[i].token_ids),
        }
        for i in list(chosen)[:SHOWN]
    ]  # fmt: skip


def verdict(row: Row) -> str:
    """`reward 1, correct, 24 tokens, cut off`, with the parts of the reward before their weights."""
    reward = "not scored" if row["reward"] is None else f"reward {row['reward']:g}"
    if parts := ", ".join(f"{label} {console.number(part, 'g')}" for label, part in row["parts"].items()):
        reward += f" ({parts})"
    cut = ["cut off"] if row["finish"] == "length" else []
    return ", ".join([reward, str(row["reason"]), console.plural(row["tokens"], "token"), *cut])


def one_line(text: str) -> str:
    """The text on one line, for a place that has one."""
    return sanitize(text.strip().replace("\n", " \u23ce "))


class SampleView:
    """A few responses of the newest batch, changed now and then."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.changed = -LINES_EVERY_S

    def update(self, batch: RolloutBatch, every_s: float = EVERY_S) -> bool:
        """Take responses of a new batch, unless the shown ones are too fresh. Returns whether it did."""
        if time.monotonic() - self.changed < every_s:
            return False
        self.rows, self.changed = pick(batch), time.monotonic()
        return True

    def lines(self) -> list[str]:
        """As plain lines."""
        if not self.rows:
            return []
        first = self.rows[0]
        head = f"responses of rollout batch {first['step']} to: {one_line(first['prompt'])[:200]}"
        return [head, *(f"  {verdict(row)}: {one_line(row['text'])[:300]}" for row in self.rows)]

    def panel(self, width: int) -> Group:
        """At most `ROOM` lines of a terminal this wide."""
        parts = []
        for i, line in enumerate(self.lines()):
            most = width * 2 if i else width
            cut = line if len(line) <= most else line[: most - 1] + "\u2026"
            parts.append(Styled(cut, "none" if i else "bold"))
        return Group(*parts)


def print_responses(rows: list[Response], width: int = 4000) -> None:
    """Print responses, each prompt once above its own."""
    before: tuple[int, str] | None = None
    for row in rows:
        if (row.step, row.problem_id) != before:
            before = row.step, row.problem_id
            console.out.print(f"\nrollout batch {row.step}, problem {row.problem_id}, right answer: {row.answer}")
            console.out.print(row.prompt)
        console.out.print(f"--- sample {row.sample}: {verdict(row.as_dict())}")
        console.out.print(excerpt(row.text, width))
