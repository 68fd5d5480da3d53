"""`gspo eval grade`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gspo_cli.cli import console
from gspo_cli.errors import ExitCode, GspoError


@console.command
def grade(
    file: Annotated[Path, typer.Argument(help="Answers, one JSON object a line.")],
    grader: Annotated[str, typer.Option(help="How to judge them; an unknown name lists the graders.")],
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a row on stdout.")] = False,
) -> None:
    """Grade stored answers again, without a model. A row has `id`, `response` and `gold`.

    Examples:

        gspo eval grade answers.jsonl --grader math

        gspo eval grade answers.jsonl --grader aime --json
    """
    from gspo_cli.rewards.graders import find_grader, grade_rows
    from gspo_cli.rewards.rows import read_rows
    from gspo_cli.rewards.verdict import GRADER_ERROR

    chosen = find_grader(grader)
    rows = read_rows(file, chosen)
    counts: Counter[tuple[str, str]] = Counter()
    for row, found in zip(rows, grade_rows(chosen, rows), strict=True):
        counts[found.verdict, found.reason] += 1
        if json_:
            line = {"id": row["id"], "verdict": found.verdict, "passed": found.passed, "reason": found.reason}
            console.print_json(line)
    if not json_:
        table = Table("verdict", "reason", "answers", "share")
        for (verdict, reason), count in sorted(counts.items()):
            table.add_row(verdict, reason, str(count), f"{count / len(rows):.1%}")
        console.out.print(table)
    if all(verdict == GRADER_ERROR for verdict, _ in counts):
        raise GspoError(
            "not one answer could be graded",
            f"the grader failed on all {len(rows)}: {', '.join(sorted(reason for _, reason in counts))}",
            "look at the column gold: it must hold what this grader can read",
            ExitCode.ENGINE,
        )
