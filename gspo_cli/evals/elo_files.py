"""Reads contest snapshots, submissions and rating tables, and says precisely what is wrong with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.elo import ACCEPTED, Contest, RatingTable

CONTEST_FORM = '{id: {"name": .., "problems": [{"index", "points"}], "rows": [[points, penalty, rating before], ..]}}'


def read_contests(path: Path) -> dict[str, Contest]:
    """The snapshots of a file or of every json file of a folder; plain, or under `contests`.

    Errors: GspoError.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    found: dict[str, Contest] = {}
    for file in files:
        content = read_json(file)
        table = content.get("contests", content) if isinstance(content, dict) else None
        if not isinstance(table, dict):
            raise GspoError(f"{file} holds no contests", "it is no JSON object", f"the form is {CONTEST_FORM}")
        found |= {str(key): contest_from(str(key), value, file) for key, value in table.items()}
    if not found:
        raise GspoError(f"no contests in {path}", "there is no contest in it", f"the form is {CONTEST_FORM}")
    return found


def contest_from(key: str, value: Any, file: Path) -> Contest:
    """One snapshot.

    Errors: GspoError.
    """
    try:
        points = {str(p["index"]): None if p["points"] is None else float(p["points"]) for p in value["problems"]}
        rows = [(float(p), float(q), int(r)) for p, q, r in value["rows"]]
        finite = all(math.isfinite(x) for row in rows for x in row)
        if not rows or not points or not finite:
            raise ValueError("it has no problems, no rows, or a number that is not finite")
        return Contest(key, str(value["name"]), points, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise GspoError(
            f"contest {key} in {file} cannot be read", f"{type(error).__name__}: {error}", f"the form is {CONTEST_FORM}"
        ) from error


def attempts_of(contest: Contest, status: Mapping[str, Sequence[str]]) -> dict[str, list[bool]]:
    """Attempts by problem index, from `{"1350A": ["WA", "AC"]}` (or `{"A": [..]}`).

    Errors: GspoError for a problem that the contest does not have.
    """
    attempts = {}
    for key, verdicts in status.items():
        index = key.removeprefix(contest.id) if key.removeprefix(contest.id) in contest.points else key
        if index not in contest.points:
            raise GspoError(
                f"contest {contest.id} has no problem {key!r}",
                f"it has {', '.join(contest.id + i for i in contest.points)}",
                "check the submissions",
            )
        attempts[index] = [verdict == ACCEPTED for verdict in verdicts]
    return attempts


@dataclass(frozen=True)
class Submission:
    """The attempts of one participation."""

    contest: Contest
    label: int | str
    """The contest's id as the file spells it."""
    attempts: dict[str, list[bool]]


def read_submissions(path: Path, contests: Mapping[str, Contest]) -> list[Submission]:
    """The entries of a list, plain or under `cases`.

    Errors: GspoError.
    """
    content = read_json(path)
    entries = content.get("cases") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise _bad_submissions(path, "it holds no list of entries")
    found = []
    for number, entry in enumerate(entries):
        status = entry.get("problem_status") if isinstance(entry, dict) else None
        if not isinstance(status, dict) or "contest" not in entry:
            raise _bad_submissions(path, f"entry {number} lacks contest or problem_status")
        if not all(isinstance(v, list) and all(isinstance(s, str) for s in v) for v in status.values()):
            raise _bad_submissions(path, f"entry {number}: a problem's attempts are no list of verdicts")
        key = str(entry["contest"])
        if key not in contests:
            raise GspoError(
                f"entry {number} of {path} names contest {key}",
                f"the contests file has {', '.join(contests)}",
                "give its snapshot with --contests",
            )
        found.append(Submission(contests[key], entry["contest"], attempts_of(contests[key], status)))
    return found


def _bad_submissions(path: Path, why: str) -> GspoError:
    form = '[{"contest": 1350, "problem_status": {"1350A": ["WA", "AC"]}}, ..]'
    return GspoError(f"{path} holds no submissions", why, f"the form is {form}, plain or under `cases`")


def read_ratings(path: Path) -> RatingTable:
    """A rating table: `{rating: users}` (plain or under `ratings`), or a list of the users' ratings.

    Errors: GspoError.
    """
    content = read_json(path)
    table = content.get("ratings", content) if isinstance(content, dict) else content
    try:
        pairs = table.items() if isinstance(table, dict) else [(rating, 1) for rating in table]
        ratings = sorted(int(rating) for rating, users in pairs for _ in range(int(users)))
    except (TypeError, ValueError) as error:
        raise GspoError(f"{path} is no rating table", str(error), "the form is {rating: number of users}") from error
    if not ratings:
        raise GspoError(f"{path} is no rating table", "it is empty", "the form is {rating: number of users}")
    return RatingTable(ratings, str(content.get("source", path.name)) if isinstance(content, dict) else path.name)


def read_json(path: Path) -> Any:
    """A JSON file's content.

    Errors: GspoError.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0] or type(error).__name__
        raise GspoError(f"cannot read {path}", why, "give a JSON file") from error
