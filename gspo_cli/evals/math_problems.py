"""Mathematics problems from published or local data, checked for repeats and against a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import DataChoice, ProblemSet
from gspo_cli.evals.hub import HubData, download
from gspo_cli.evals.rows import read_files
from gspo_cli.evals.schemas import RawProblem, raw_problems
from gspo_cli.types import Problem

BOXED = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."


def load_math(
    name: str,
    data: HubData,
    choice: DataChoice,
    *,
    answer: Callable[[str], str],
    order: Callable[[list[str]], list[str]],
    fingerprint: str,
) -> ProblemSet:
    """The problems of one benchmark.

    `answer` brings a reference into its form, `order` sorts the answers for the fingerprint.
    Errors: GspoError for data that cannot be had, read or understood, or that contradicts itself.
    """
    commit = None
    paths, where = list(choice.paths), ", ".join(map(str, choice.paths))
    if not paths:
        paths, commit = download(data, choice.revision, name)
        where = data.repo
    files = read_files(paths)
    raw = [replace(p, answer=_answer(p, answer, where)) for p in raw_problems(files, where)]
    kept, num_repeats = without_repeats(raw, where)
    found = digest(order([p.answer for p in kept]))
    source = {
        "source": where if commit else "local",
        "revision": commit,
        "files": {f.name: f.sha256 for f in files},
        "repeats_dropped": num_repeats,
        "fingerprint": found,
        "fingerprint_expected": fingerprint,
    }
    warnings = []
    if num_repeats:
        warnings.append(f"{name}: {num_repeats} rows repeat a problem and were dropped; {len(kept)} are left")
    if found != fingerprint:
        warnings.append(f"{name}: not the answers of the published set (fingerprint {found}, not {fingerprint})")
    problems = tuple(Problem(p.id, BOXED.format(problem=p.question), p.answer) for p in kept)
    return ProblemSet(problems, source, warnings=tuple(warnings))


def _answer(problem: RawProblem, form: Callable[[str], str], where: str) -> str:
    try:
        return form(problem.answer)
    except GspoError as error:
        raise GspoError(f"{where}, problem {problem.id}: {error.message}", error.why, error.hint) from error


def without_repeats(raw: list[RawProblem], where: str) -> tuple[list[RawProblem], int]:
    """The problems with each text once, and how many rows repeated one.

    Some data sets hold every problem many times; avg@k over them would draw too many answers.
    Errors: GspoError when one text has two answers, or one id two texts.
    """
    by_text: dict[str, RawProblem] = {}
    by_id: dict[str, str] = {}
    for problem in raw:
        text = " ".join(problem.question.split())
        first = by_text.setdefault(text, problem)
        if first.answer != problem.answer:
            raise GspoError(
                f"{where}: two answers to one problem",
                f"rows {first.id} and {problem.id} ask the same and say {first.answer!r} and {problem.answer!r}",
                "remove the wrong row",
            )
        if first is problem and by_id.setdefault(problem.id, text) != text:
            raise GspoError(f"{where}: two problems with the id {problem.id}", "answers are kept by id", "rename one")
    return list(by_text.values()), len(raw) - len(by_text)


def digest(lines: list[str]) -> str:
    """The first 16 hex digits of sha256 over the lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
