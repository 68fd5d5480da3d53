"""Grading answers that were sampled elsewhere or earlier: no engine, no model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.answers import Answer
from gspo_cli.evals.benchmark import Benchmark, ProblemSet
from gspo_cli.evals.grading import Grading
from gspo_cli.evals.rows import read_files
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.store import Store
from gspo_cli.evals.summary import summarise
from gspo_cli.runlog.folder import make_writable

NEEDED = ("problem_id", "sample", "text")


def grade_stored(
    benchmark: Benchmark, problems: ProblemSet, path: Path, folder: Path, overwrite: bool
) -> dict[str, Any]:
    """The summary of the answers in a parquet or jsonl file (`problem_id`, `sample`, `text`), stored in `folder`.

    Errors: GspoError for a file that is no such table, or answers to problems that the benchmark has not.
    """
    answers = read_table(path)
    known = {p.id: p for p in problems.problems}
    strange = next((a.problem_id for a in answers if a.problem_id not in known), None)
    if strange is not None:
        raise GspoError(
            f"{path}: an answer to {strange!r}",
            f"{benchmark.name} has no problem of that id (its first is {problems.problems[0].id!r})",
            "name the benchmark that was answered, with the same data",
        )
    most = max(Counter(a.problem_id for a in answers).values())
    settings = Settings(most, benchmark.sampling, 0, None)
    identity = {"benchmark": benchmark.name, "answers": str(path)}
    store = Store(folder, identity, [], warn=lambda _: None)
    if store.finished and not overwrite:
        raise GspoError(f"{folder} holds graded answers", "they would be replaced", "--overwrite, or another --out")
    with Grading(benchmark.grader(problems), problems) as grading:
        grading.submit(0, answers)
        grades, about = grading.result(), grading.grader.about
    summary = summarise(benchmark, problems, settings, None, about, answers, grades)
    summary["answers"] = str(path)
    if unanswered := len(known) - summary["num_problems"]:
        summary["warnings"].append(f"{unanswered} of {len(known)} problems have no answer in {path.name}")
    make_writable(folder)
    store.finish(answers, grades, summary)
    return summary


def read_table(path: Path) -> list[Answer]:
    """The answers of a file, each key once.

    Errors: GspoError for other columns or types, or a key that stands twice.
    """
    answers = []
    for number, row in enumerate((row for file in read_files((path,)) for row in file.rows), start=1):
        if missing := [name for name in NEEDED if row.get(name) is None]:
            raise GspoError(
                f"{path}, row {number} has no {missing[0]!r}",
                f"the columns are {', '.join(row)}; an answer needs {', '.join(NEEDED)}",
                "rename or add it",
            )
        try:
            sample = int(row["sample"])
        except (TypeError, ValueError) as error:
            raise GspoError(f"{path}, row {number}: {row['sample']!r}", "a sample is a number", "mend it") from error
        text = str(row["text"])
        answers.append(
            Answer(
                problem_id=str(row["problem_id"]), sample=sample, seed=row.get("seed"),
                prompt_sha256=row.get("prompt_sha256"), text=text, text_repaired=bool(row.get("text_repaired")),
                n_tokens=row.get("n_tokens"), finish_reason=row.get("finish_reason"),
            )
        )  # fmt: skip
    twice = next((key for key, n in Counter(a.key for a in answers).items() if n > 1), None)
    if twice:
        raise GspoError(f"{path}: sample {twice[1]} of {twice[0]!r} stands twice", "a key has one answer", "remove one")
    return answers
