"""Grade answers that were sampled elsewhere, from a file."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, Field, ValidationError

from gspo_cli.errors import GspoError, first_fault
from gspo_cli.evals.benchmark import Benchmark, GraderChoice, ProblemSet
from gspo_cli.evals.runner import GradingQueue
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.store import Answer, open_store
from gspo_cli.evals.summary import summarise
from gspo_cli.rows import data_files, is_unicode, read_rows, require_columns
from gspo_cli.types import FinishReason

NEEDED = ("problem_id", "sample", "text")
Int32: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


class Given(BaseModel):
    """The columns of a row beside its problem and text; all but the first may be missing."""

    sample: Int32
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    prompt_sha256: str | None = None
    text_repaired: bool = False
    n_tokens: Int32 | None = None
    finish_reason: FinishReason | None = None
    response_prefix: str = ""


def grade_stored(
    path: Path, benchmark: Benchmark, problems: ProblemSet, folder: Path, overwrite: bool, choice: GraderChoice
) -> dict[str, Any]:
    """The summary of stored answers, without a model: those of a parquet or jsonl file with `problem_id`, `sample` and
    `text`. The grades and the summary go into `folder`.

    Errors: GspoError for a file that is not such a table, answers to problems that the benchmark does not have, or a
    folder that is in use or holds another evaluation.
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
    counts = Counter(a.problem_id for a in answers).values()
    num_samples = max(counts)
    settings = Settings(num_samples, benchmark.sampling, seed=0, limit=None)
    if (folder / "summary.json").is_file() and not overwrite:
        raise GspoError(f"{folder} holds graded answers", "they would be replaced", "--overwrite, or another --out")
    identity, keys = {"benchmark": benchmark.name, "answers": str(path)}, [a.key for a in answers]
    with open_store(folder, identity, [keys], "overwrite" if overwrite else "new", warn=lambda _: None) as store:
        with closing(GradingQueue(benchmark.grader(problems, choice), problems)) as grading:
            grading.submit(0, answers)
            grades, about = grading.result(), grading.grader.about
        summary = summarise(benchmark, problems, settings, None, about, answers, grades)
        summary["answers"] = str(path)
        if min(counts) < num_samples:
            summary["warnings"].append(f"problems have {min(counts)} to {num_samples} samples; each counts alike")
        if unanswered := len(ids) - summary["num_problems"]:
            summary["warnings"].append(f"{unanswered} of {len(ids)} problems have no answer in {path.name}")
        store.finish(answers, grades, summary)
    return summary


def _read_table(path: Path) -> list[Answer]:
    """The answers of a file. Errors: GspoError for other columns or types, or two answers with the same key."""
    answers = []
    for where, row in (located for file in data_files(path) for located in read_rows(file)):
        require_columns(where, row, NEEDED, "rename or add it")
        text = row["text"]
        if not isinstance(text, str):
            raise GspoError(f"{where}: 'text' is not text", f"it is of type {type(text).__name__}", "correct that row")
        try:  # an empty cell of a csv file is a missing one
            given = Given.model_validate({name: v for name, v in row.items() if v not in (None, "")})
        except ValidationError as error:
            why, hint = first_fault(error), "correct that row; only problem_id, sample and text must be there"
            raise GspoError(f"{where} is no answer", why, hint) from error
        if not is_unicode(given.response_prefix, given.prompt_sha256):
            raise GspoError(f"{where} is no answer", "half of a surrogate pair is in it", "repair that row")
        answers.append(Answer(problem_id=str(row["problem_id"]), text=text, **given.model_dump()))
    repeated = next((key for key, count in Counter(a.key for a in answers).items() if count > 1), None)
    if repeated:
        problem, sample = repeated
        raise GspoError(f"{path}: sample {sample} of {problem!r} occurs twice", "a key has one answer", "remove one")
    return answers
