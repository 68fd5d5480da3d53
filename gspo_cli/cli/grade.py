"""`gspo eval grade`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import GraderPython, JsonLines, SandboxKind, UnsafeLocal, Workers
from gspo_cli.errors import ExitCode, GspoError

UNDECIDED = ("grader_error", "excluded")
MAX_ERRORS = 0.01
"""Share of programs that may not start before the command fails: the machine is at fault, not the rows."""


@console.command
def grade(
    file: Annotated[Path, typer.Argument(help="Answers, one JSON object a line.")],
    grader: Annotated[str, typer.Option(help="How to judge them; an unknown name lists the graders.")],
    workers: Workers = None,
    sandbox: SandboxKind = "auto",
    unsafe_local: UnsafeLocal = False,
    grader_python: GraderPython = None,
    json_: JsonLines = False,
) -> None:
    """Grade stored answers again, without a model. A row has `id`, and `response` and `gold`, or for programs `kind`,
    `code` and `tests`.

    Examples:

        gspo eval grade answers.jsonl --grader math

        gspo eval grade answers.jsonl --grader aime --json

        gspo eval grade programs.jsonl --grader official --workers 2
    """
    from gspo_cli.rewards.graders import find_grader, grade_rows
    from gspo_cli.rewards.rows import read_rows
    from gspo_cli.rewards.verdict import GRADER_ERROR
    from gspo_cli.sandbox.choose import SandboxChoice

    chosen = find_grader(grader)
    choice = SandboxChoice(sandbox, unsafe_local, grader_python)
    if choice != SandboxChoice() and not chosen.runs_programs:
        raise GspoError(
            f"a sandbox for --grader {grader}", "it runs no programs", "leave out what is said of the sandbox"
        )
    rows = read_rows(file, chosen)
    counts: Counter[tuple[str, str]] = Counter()
    for row, found in zip(rows, grade_rows(chosen, rows, workers, choice), strict=True):
        counts[found.verdict, found.reason] += 1
        if json_:
            line = {"id": row["id"], "verdict": found.verdict, "passed": found.passed, "reason": found.reason}
            console.print_json(line)
    if not json_:
        table = console.table("verdict", "reason", "answers", "share")
        for (verdict, reason), count in sorted(counts.items()):
            table.add_row(verdict, reason, str(count), f"{count / len(rows):.1%}")
        console.out.print(table)
    if unsafe_local:
        console.note("warning: --unsafe-local: these programs ran without any isolation")
    failed = sum(n for (verdict, _), n in counts.items() if verdict == GRADER_ERROR)
    broken = chosen.runs_programs and failed > len(rows) * MAX_ERRORS
    if broken or all(verdict in UNDECIDED for verdict, _ in counts):
        raise GspoError(
            "not one answer could be graded" if failed in (0, len(rows)) else f"{failed} answers could not be graded",
            f"of {len(rows)} rows: {', '.join(sorted(reason for v, reason in counts if v in UNDECIDED))}",
            "look at what the rows are graded with: gold or tests, and whether programs start in the sandbox",
            ExitCode.ENGINE,
        )
