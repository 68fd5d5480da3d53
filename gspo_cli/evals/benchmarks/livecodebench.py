"""LiveCodeBench, code generation (Jain et al., arXiv 2403.07974), read from its plain files; none of its code runs.
And minicode: twelve small problems in the same schema, which need no download.

A period such as 202410-202502 does not identify a set of problems: release_v5 has 166 in it and release_v6 has 261.
Every summary therefore states release, window, number of problems and a hash of their ids.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import EMBEDDED, DataChoice, ProblemSet, refuse_data
from gspo_cli.evals.benchmarks.shared_code import SAMPLING, GradableProblems, code_benchmark
from gspo_cli.evals.data import HubData, download, fingerprint, hashes
from gspo_cli.rewards.code.grading import SharedTests
from gspo_cli.rows import Row, data_files, read_rows, require_columns, require_text
from gspo_cli.tasks.code import build_problem
from gspo_cli.types import Problem

NEEDED = ("question_id", "question_content", "contest_date", "public_test_cases", "private_test_cases", "metadata")
HINT = "give rows in the schema of livecodebench/code_generation_lite"
RELEASES = {f"release_v{k}": ("test.jsonl", *(f"test{i}.jsonl" for i in range(2, k + 1))) for k in range(1, 7)}
RELEASE, WINDOW = "release_v5", "2024-10-01..2025-02-01"
FINGERPRINT = "2aa9e3be08fc20ce"
"""Of the sorted ids of that release and window: 166 problems."""
DATA = HubData("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505", RELEASES[RELEASE])

SEVERAL, INTERACTIVE, BAD = "several outputs are right", "interactive", "wrong tests"
ERRATA = {
    **dict.fromkeys(("abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c", "arc185_c"), SEVERAL),
    **dict.fromkeys(("abc343_a", "find-words-containing-character", "find-the-peaks"), SEVERAL),
    "generate-binary-strings-without-adjacent-zeros": SEVERAL,
    **dict.fromkeys(("abc337_e", "abc355_e"), INTERACTIVE),
    **dict.fromkeys(("abc350_c", "arc189_a", "most-frequent-ids"), BAD),
    "apply-operations-to-make-string-empty": BAD,
}
"""By id or by the title's slug, from the benchmark's list of errata."""


def parse_window(text: str) -> tuple[datetime, datetime]:
    """Two days, both at midnight, as in the official filter. Errors: GspoError for anything but two days in order."""
    first, dots, last = text.partition("..")
    try:
        start, end = (datetime.strptime(day, "%Y-%m-%d") for day in (first, last))
        if not dots or start > end:
            raise ValueError("the first day comes after the last")
    except ValueError as error:
        raise GspoError(f"window {text!r}", str(error), "the form is 2024-10-01..2025-02-01") from error
    return start, end


def load(choice: DataChoice) -> ProblemSet:
    """The problems of a release within a window.

    Errors: GspoError for data that cannot be downloaded or read, a window without problems, or nothing gradable.
    """
    (start, end), requested = parse_window(choice.window or WINDOW), choice.release or RELEASE
    if requested not in RELEASES:
        raise GspoError(f"no release {requested!r}", f"the releases are {', '.join(RELEASES)}", "name one of them")
    names, commit = RELEASES[requested], None
    if choice.paths:
        paths = list(_local_files(choice.paths, names, choice.release is not None))
    else:
        paths, commit = download(replace(DATA, files=names), choice.revision, "livecodebench")
    release = requested if commit or [p.name for p in paths] == list(names) else None
    dated = list(_dated_rows(paths))
    rows = [row for row, date in dated if start <= date <= end]
    if not rows:
        days = [f"{date:%Y-%m-%d}" for date in sorted(date for _, date in dated)]
        raise GspoError(
            f"no problem of livecodebench between {start:%Y-%m-%d} and {end:%Y-%m-%d}",
            f"its {len(days)} problems are from {days[0]} to {days[-1]}" if days else "it has no rows",
            "give another --window livecodebench=FROM..TO",
        )
    gradable = GradableProblems("livecodebench", rows, "question_id", _build_problem)
    window = f"{start:%Y-%m-%d}..{end:%Y-%m-%d}"
    actual = fingerprint(sorted(str(row["question_id"]) for row in rows))
    expected = FINGERPRINT if (release, window) == (RELEASE, WINDOW) else None
    source = {
        "source": DATA.repo if commit else "local",
        "revision": commit,
        "release": release,
        "window": window,
        "files": hashes(paths),
        "fingerprint": actual,
        "fingerprint_expected": expected,
    }
    warnings = gradable.warnings
    if expected not in (None, actual):
        warnings.append(f"livecodebench: not the published ids (fingerprint {actual}, not {expected})")
    return ProblemSet(
        gradable.problems, source, gradable.tests, gradable.excluded,
        flagged=_errata(rows), contests=_contests(rows), warnings=tuple(warnings),
    )  # fmt: skip


def _local_files(paths: tuple[Path, ...], names: tuple[str, ...], by_release: bool) -> Iterable[Path]:
    """Files as given; of a folder the files of the release if it has them, else all.

    Errors: GspoError when the folder does not hold the requested release.
    """
    for path in paths:
        if not path.is_dir():
            if by_release:
                raise GspoError(
                    f"--release with the file {path}", "a file has no release", "name a folder, or no release"
                )
            yield path
        elif all((path / name).is_file() for name in names):
            yield from (path / name for name in names)
        elif by_release:
            raise GspoError(f"{path} does not hold that release", f"it needs {', '.join(names)}", "download them")
        else:
            yield from data_files(path)


def _dated_rows(paths: Iterable[Path]) -> Iterator[tuple[Row, datetime]]:
    for path in paths:
        for where, row in read_rows(path):
            require_columns(where, row, NEEDED, HINT, nulls=True)
            require_text(where, "question_content", row["question_content"])
            require_text(where, "starter_code", row.get("starter_code") or "")
            require_text(where, "question_id", str(row["question_id"]))
            yield row, contest_date(row, where)


def contest_date(row: Row, where: str) -> datetime:
    """When a problem's contest began. Errors: GspoError."""
    try:
        return datetime.fromisoformat(str(row["contest_date"])).replace(tzinfo=None)
    except ValueError as error:
        raise GspoError(f"{where}: contest_date of {row['question_id']!r}", str(error), "correct that row") from error


def _build_problem(row: Row) -> tuple[Problem, SharedTests]:
    return build_problem(str(row["question_id"]), row["question_content"], row)


def _contests(rows: list[Row]) -> dict[str, str]:
    """Problem id -> its contest, or the day if a row names none."""
    return {
        str(row["question_id"]): " ".join(str(row.get(key) or "") for key in ("platform", "contest_id")).strip()
        if row.get("contest_id") else str(row["contest_date"])[:10]
        for row in rows
    }  # fmt: skip


def _errata(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Known faults of these problems, by id."""
    faults = {}
    for row in rows:
        slug = re.sub(r"[^a-z0-9]+", "-", str(row.get("question_title") or "").lower()).strip("-")
        if fault := ERRATA.get(str(row["question_id"])) or ERRATA.get(slug):
            faults[str(row["question_id"])] = fault
    return faults


LIVECODEBENCH = code_benchmark(
    name="livecodebench",
    description=f"programming problems of {RELEASE}, {WINDOW}: 166",
    load=load,
    hub=DATA.repo,
    takes=("release", "window", "grader"),
)


def load_minicode(choice: DataChoice) -> ProblemSet:
    """The embedded problems."""
    refuse_data("minicode", choice)
    text = files("gspo_cli.evals.benchmarks").joinpath("minicode.jsonl").read_text(encoding="utf-8")
    gradable = GradableProblems("minicode", map(json.loads, text.splitlines()), "question_id", _build_problem)
    return ProblemSet(gradable.problems, EMBEDDED, gradable.tests, gradable.excluded)


MINICODE = code_benchmark(
    name="minicode",
    description="12 small programming problems, 6 on stdin and 6 functions",
    load=load_minicode,
    sampling=replace(SAMPLING, max_new_tokens=2048),
)
