"""LiveCodeBench, code generation (Jain et al., arXiv 2403.07974), from its plain files; no script of it ever runs.

"202410-202502" alone does not name a set of problems: 166 of release_v5 lie in it and 261 of release_v6. So release,
window, number and a hash of the ids stand in every summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.evals.code_grader import CodeGrader
from gspo_cli.evals.hub import HubData, download
from gspo_cli.evals.lcb_rows import (
    check_columns,
    date_of,
    files_of,
    parse_window,
    problems_of,
    rows_of,
    sha256_of,
)
from gspo_cli.evals.math_problems import digest
from gspo_cli.evals.rows import SUFFIXES
from gspo_cli.tasks.code_prompt import TEMPLATE
from gspo_cli.types import Sampling

RELEASE, WINDOW = "release_v5", "2024-10-01..2025-02-01"
FINGERPRINT = "2aa9e3be08fc20ce"
"""Of the sorted ids of that release and window: 166 problems."""
DATA = HubData("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505", files_of(RELEASE))

SEVERAL, INTERACTIVE, BAD = "several outputs are right", "interactive", "wrong tests"
ERRATA = {
    **dict.fromkeys(("abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c", "arc185_c"), SEVERAL),
    **dict.fromkeys(("abc343_a", "find-words-containing-character", "find-the-peaks"), SEVERAL),
    "generate-binary-strings-without-adjacent-zeros": SEVERAL,
    **dict.fromkeys(("abc337_e", "abc355_e"), INTERACTIVE),
    **dict.fromkeys(("abc350_c", "arc189_a", "most-frequent-ids"), BAD),
    "apply-operations-to-make-string-empty": BAD,
}
"""By id or by the title's short form, from the benchmark's own list."""


def load(choice: DataChoice) -> ProblemSet:
    """The problems of a release within a window.

    Errors: GspoError for data that cannot be had or read, a window without problems, or nothing that can be graded.
    """
    window, wanted = parse_window(choice.window or WINDOW), choice.release or RELEASE
    names, commit = files_of(wanted), None
    if choice.paths:
        paths = list(local_files(choice.paths, names, choice.release is not None))
    else:
        paths, commit = download(replace(DATA, files=names), choice.revision, "livecodebench")
    release = wanted if commit or [p.name for p in paths] == list(names) else None
    dated = list(_dated(paths))
    rows = [row for row, date in dated if window.start <= date <= window.end]
    if not rows:
        days = sorted(date for _, date in dated)
        raise GspoError(
            f"no problem of livecodebench between {window.text.replace('..', ' and ')}",
            f"its {len(days)} problems are from {days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"
            if days
            else "it has no rows",
            "give another --window livecodebench=FROM..TO",
        )
    problems, payload, excluded = problems_of(rows)
    if not problems:
        raise nothing_gradable("livecodebench", excluded)
    found = digest(sorted(str(row["question_id"]) for row in rows))
    standard = (release, window.text) == (RELEASE, WINDOW)
    source = {
        "source": DATA.repo if commit else "local",
        "revision": commit,
        "release": release,
        "window": window.text,
        "files": {p.name: sha256_of(p) for p in paths},
        "fingerprint": found,
        "fingerprint_expected": FINGERPRINT if standard else None,
    }
    return ProblemSet(
        tuple(problems), source, payload, excluded, flagged=errata(rows), contests=contests_of(rows),
        warnings=(*excluded_notes("livecodebench", excluded), *_other_ids(standard and found != FINGERPRINT, found)),
    )  # fmt: skip


def contests_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Problem id -> its contest, or the day where a row names none."""
    return {
        str(row["question_id"]): " ".join(str(row.get(key) or "") for key in ("platform", "contest_id")).strip()
        if row.get("contest_id") else str(row["contest_date"])[:10]
        for row in rows
    }  # fmt: skip


def local_files(paths: tuple[Path, ...], names: tuple[str, ...], by_release: bool) -> Iterable[Path]:
    """Files as given; of a folder those of the release if it has them, else all.

    Errors: GspoError when a release is asked for that the folder does not hold.
    """
    for path in paths:
        if not path.is_dir():
            if by_release:
                raise GspoError(
                    f"--release with the file {path}", "a file has no release", "name a folder, or no release"
                )
            if not path.is_file():
                raise GspoError(f"no data file {path}", "the path names neither a file nor a folder", "check the path")
            yield path
        elif all((path / name).is_file() for name in names):
            yield from (path / name for name in names)
        elif by_release:
            raise GspoError(f"{path} does not hold that release", f"it needs {', '.join(names)}", "download them")
        else:
            yield from sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)


def _dated(paths: Iterable[Path]) -> Iterable[tuple[dict[str, Any], Any]]:
    for path in paths:
        for row in rows_of(path):
            check_columns(row, str(path))
            yield row, date_of(row, str(path))


def errata(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Known faults of these problems, by id."""
    found = {}
    for row in rows:
        title = re.sub(r"[^a-z0-9]+", "-", str(row.get("question_title") or "").lower()).strip("-")
        why = ERRATA.get(str(row["question_id"])) or ERRATA.get(title)
        if why:
            found[str(row["question_id"])] = why
    return found


def nothing_gradable(name: str, excluded: Mapping[str, list[str]]) -> GspoError:
    """When every problem had to be left out."""
    reasons = "; ".join(f"{reason} ({', '.join(ids[:5])})" for reason, ids in excluded.items())
    return GspoError(f"no problem of {name} can be graded", reasons, "give other data", ExitCode.ENGINE)


def excluded_notes(name: str, excluded: Mapping[str, list[str]]) -> list[str]:
    """A warning for each reason."""
    return [f"{name}: left out, because {why}: {', '.join(ids)}" for why, ids in excluded.items()]


def _other_ids(other: bool, found: str) -> list[str]:
    return [f"livecodebench: not the published ids (fingerprint {found}, not {FINGERPRINT})"] if other else []


LIVECODEBENCH = Benchmark(
    name="livecodebench",
    description=f"programming problems of {RELEASE}, {WINDOW}: 166",
    load=load,
    grader=CodeGrader,
    samples=8,
    sampling=Sampling(temperature=0.6, top_p=0.95, max_new_tokens=32768),
    prompt_template="code-1",
    prompt_text=TEMPLATE,
    hub=DATA.repo,
    runs_programs=True,
    takes=("release", "window"),
)
