"""Grade answers that were sampled elsewhere, from a file."""

from collections import Counter
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, GraderChoice, ProblemSet
from gspo_cli.evals.runner import GradingQueue
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.store import Answer, Store
from gspo_cli.evals.summary import summarise
from gspo_cli.rows import data_files, read_rows, require_columns
from gspo_cli.runlog.folder import make_writable

NEEDED = ("problem_id", "sample", "text")


def grade_stored(
    path: Path, benchmark: Benchmark, problems: ProblemSet, folder: Path, overwrite: bool, choice: GraderChoice
) -> dict[str, Any]:
    """The summary of stored answers, without a model: those of a parquet or jsonl file with `problem_id`, `sample` and
    `text`. The grades and the summary go into `folder`.

    Errors: GspoError for a file that is not such a table, or answers to problems that the benchmark does not have.
    """
    answers = _read_table(path)
    ids = {p.id for p in problems.problems}
    unknown = next((a.problem_id for a in answers if a.problem_id not in ids), None)
    if unknown is not None:
        raise GspoError(
            f"{path}: an answer to {unknown!r}",
            f"{benchmark.name} has no problem of that id (its first is {problems.problems[0].id!r})",
            "name the benchmark that was answered, with the same data",
        )
    num_samples = max(Counter(a.problem_id for a in answers).values())
    settings = Settings(num_samples, benchmark.sampling, seed=0, limit=None)
    store = Store(folder, {"benchmark": benchmark.name, "answers": str(path)}, [], warn=lambda _: None)
    if store.finished and not overwrite:
        raise GspoError(f"{folder} holds graded answers", "they would be replaced", "--overwrite, or another --out")
    with closing(GradingQueue(benchmark.grader(problems, choice), problems)) as grading:
        grading.submit(0, answers)
        grades, about = grading.result(), grading.grader.about
    summary = summarise(benchmark, problems, settings, None, about, answers, grades)
    summary["answers"] = str(path)
    if unanswered := len(ids) - summary["num_problems"]:
        summary["warnings"].append(f"{unanswered} of {len(ids)} problems have no answer in {path.name}")
    make_writable(folder)
    store.finish(answers, grades, summary)
    return summary


def _read_table(path: Path) -> list[Answer]:
    """The answers of a file. Errors: GspoError for other columns or types, or two answers with the same key."""
    answers = []
    for where, row in (located for file in data_files(path) for located in read_rows(file)):
        require_columns(where, row, NEEDED, "rename or add it")
        try:
            sample = int(row["sample"])
        except (TypeError, ValueError) as error:
            raise GspoError(f"{where}: sample {row['sample']!r}", "a sample is a number", "correct that row") from error
        given: dict[str, Any] = {field.name: row.get(field.name) for field in fields(Answer)} | {"sample": sample}
        given |= {"problem_id": str(row["problem_id"]), "text": str(row["text"])}
        answers.append(Answer(**given | {"text_repaired": bool(row.get("text_repaired"))}))
    repeated = next((key for key, count in Counter(a.key for a in answers).items() if count > 1), None)
    if repeated:
        problem, sample = repeated
        raise GspoError(f"{path}: sample {sample} of {problem!r} occurs twice", "a key has one answer", "remove one")
    return answers
