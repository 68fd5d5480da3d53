"""Mathematics: what its benchmarks share, and AIME, MATH-500 and GSM8K."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, Grade, Grader, ProblemSet, source_version
from gspo_cli.evals.data import HubData, download, fingerprint, hashes, raw_problems
from gspo_cli.rewards.graders import find_grader, grade_rows
from gspo_cli.rewards.math import grade
from gspo_cli.rows import data_files
from gspo_cli.runlog.provenance import installed
from gspo_cli.types import Problem, Sampling

BOXED = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
TEMPLATE = "boxed-1"


def load_math(
    name: str,
    data: HubData,
    choice: DataChoice,
    *,
    expected: str,
    answer: Callable[[str], str] = str,
    order: Callable[[list[str]], list[str]] = sorted,
) -> ProblemSet:
    """The problems of one benchmark.

    `answer` normalises a reference answer, `order` sorts the answers for the fingerprint. `expected` is the fingerprint
    of the published set.
    Errors: GspoError for data that cannot be downloaded, read or understood, or that contradicts itself.
    """
    commit = None
    paths, where = list(choice.paths), ", ".join(map(str, choice.paths))
    if not paths:
        paths, commit = download(data, choice.revision, name)
        where = data.repo
    files = [file for path in paths for file in data_files(path)]
    rows = [replace(p, answer=_normalised(p, answer, where)) for p in raw_problems(files)]
    kept = _without_repeats(rows, where)
    num_repeats = len(rows) - len(kept)
    actual = fingerprint(order([p.answer for p in kept]))
    source = {
        "source": where if commit else "local",
        "revision": commit,
        "files": hashes(files),
        "repeats_dropped": num_repeats,
        "fingerprint": actual,
        "fingerprint_expected": expected,
    }
    warnings = []
    if num_repeats:
        warnings.append(f"{name}: {num_repeats} rows repeat a problem and were dropped; {len(kept)} are left")
    if actual != expected:
        warnings.append(f"{name}: not the answers of the published set (fingerprint {actual}, not {expected})")
    problems = tuple(replace(p, prompt=BOXED.format(problem=p.prompt)) for p in kept)
    return ProblemSet(problems, source, warnings=tuple(warnings))


def _normalised(problem: Problem, answer: Callable[[str], str], where: str) -> str:
    try:
        return answer(problem.answer)
    except GspoError as error:
        raise GspoError(f"{where}, problem {problem.id}: {error.message}", error.why, error.hint) from error


def _without_repeats(rows: list[Problem], where: str) -> list[Problem]:
    """The first row of each problem.

    Some data sets repeat every problem many times, so that avg@k over them would draw too many answers.
    Errors: GspoError when one text has two answers, or one id two texts.
    """
    by_text: dict[str, Problem] = {}
    by_id: dict[str, str] = {}
    for row in rows:
        text = " ".join(row.prompt.split())
        first = by_text.setdefault(text, row)
        if first.answer != row.answer:
            raise GspoError(
                f"{where}: two answers to one problem",
                f"rows {first.id} and {row.id} ask the same; their answers are {first.answer!r} and {row.answer!r}",
                "remove the wrong row",
            )
        if first is row and by_id.setdefault(row.id, text) != text:
            raise GspoError(f"{where}: two problems with the id {row.id}", "answers are stored by id", "rename one")
    return list(by_text.values())


class TextGrader(Grader):
    """Grades by one of the named graders of `rewards/graders.py`, the code of the training reward.

    Workers of computer algebra are kept for the next benchmark; they end with this process.
    """

    def __init__(self, name: str) -> None:
        self.grader = find_grader(name)
        self.about: dict[str, Any] = {
            "name": name,
            "version": source_version(Path(grade.__file__).parent),
            "math_verify": installed("math-verify"),
        }

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        rows = [{"response": text, "gold": problem.answer} for problem, text in answers]
        verdicts = grade_rows(self.grader, rows)
        return [Grade(v.verdict, v.reason, v.extracted, v.extracted_by) for v in verdicts]


SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_new_tokens=32768)
GREEDY = Sampling(temperature=0.0, max_new_tokens=32768)

AIME24_DATA = HubData(
    "HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", ("data/train-00000-of-00001.parquet",)
)
AIME25_DATA = HubData(
    "yentinglin/aime_2025",
    "6f71d77b0b89b9dabe07ab466c51df33f514df7f",
    ("data/train-00000-of-00001-243207c6c994e1bd.parquet",),
)
MATH500_DATA = HubData("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", ("test.jsonl",))
GSM8K_DATA = HubData("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", ("main/test-00000-of-00001.parquet",))


def whole_number(answer: str) -> str:
    """A reference answer in base 10: `025` is 25. Errors: GspoError for anything but an integer from 0 to 999."""
    text = answer.strip()
    if not (text.isascii() and text.isdigit() and int(text) <= 999):
        raise GspoError(
            f"{answer!r} is not an AIME answer",
            "the answers of this competition are integers from 0 to 999",
            "check the column of the answers",
        )
    return str(int(text))


def math_benchmark(
    name: str,
    description: str,
    data: HubData,
    expected: str,
    *,
    grader: str,
    samples: int = 1,
    sampling: Sampling = GREEDY,
    **loading: Any,
) -> Benchmark:
    """A benchmark of published problems whose answers are boxed; for `expected` and `loading` see `load_math`."""
    return Benchmark(
        name=name,
        description=description,
        load=partial(load_math, name, data, expected=expected, **loading),
        grader=lambda _problems, _choice: TextGrader(grader),
        samples=samples,
        sampling=sampling,
        prompt_template=TEMPLATE,
        prompt_text=BOXED,
        hub=data.repo,
    )


AIME: dict[str, Any] = {
    "grader": "aime", "sampling": SAMPLING, "answer": whole_number, "order": partial(sorted, key=int)
}  # fmt: skip

AIME24 = math_benchmark(
    "aime24", "AIME 2024, 30 problems, integer answers", AIME24_DATA, "699a2ffdf5b082d2", samples=32, **AIME
)
AIME25 = math_benchmark(
    "aime25", "AIME 2025, 30 problems, integer answers", AIME25_DATA, "8c1e420ea1eb4cc6", samples=16, **AIME
)
MATH500 = math_benchmark(
    "math500", "500 problems of MATH, answers are expressions", MATH500_DATA, "4563c132723345af", grader="math"
)
GSM8K = math_benchmark(
    "gsm8k", "1319 grade-school word problems, answers are numbers", GSM8K_DATA, "557de0e973ab1772",
    grader="number", order=lambda answers: [answer.replace(",", "") for answer in answers],
)  # fmt: skip
