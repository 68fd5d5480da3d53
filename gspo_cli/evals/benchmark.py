"""What a benchmark is: problems, a grader, and the settings at which its figure is usually given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gspo_cli.sandbox.choose import ANY_SANDBOX, SandboxChoice
from gspo_cli.types import Problem, Sampling

Outcomes = Mapping[str, Sequence[bool]]
"""Problem id -> whether each gradable answer to it is right, in the order of the samples."""


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Where a benchmark's problems are to come from."""

    paths: tuple[Path, ...] = ()
    """Files or folders in place of the published data set."""
    revision: str | None = None
    """Of the published data set, in place of the pinned one."""
    release: str | None = None
    """Of a benchmark that grows: `release_v6`."""
    window: str | None = None
    """The problems between two days: `2024-10-01..2025-02-01`."""
    contests: Path | None = None
    """Standings of the contests that the problems come from."""
    ratings: Path | None = None
    """How many users have which rating, for a percentile."""


@dataclass(frozen=True, slots=True)
class GraderChoice:
    """How programs are graded; benchmarks with answers in text make no use of it."""

    graders: tuple[str, ...] = ("official", "script")
    """The first gives the figure, the second stands beside it."""
    sandbox: SandboxChoice = ANY_SANDBOX
    workers: int | None = None
    """Programs at once; None = one a physical core."""


@dataclass(frozen=True)
class ProblemSet:
    """The problems of a benchmark, and where they came from."""

    problems: tuple[Problem, ...]
    """With prompts as the model is given them (before any chat template)."""
    source: dict[str, Any]
    """For the summary: `source`, `revision`, `release`, `window`, `files` {name: sha256}, `fingerprint`, ..."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the grader needs of a problem beyond its answer (tests), by problem id; the model never sees it."""
    excluded: Mapping[str, list[str]] = field(default_factory=dict)
    """Reason -> ids of the problems that cannot be graded."""
    flagged: Mapping[str, str] = field(default_factory=dict)
    """Problem id -> what is known to be wrong with it. They count; a second figure leaves them out."""
    contests: Mapping[str, str] = field(default_factory=dict)
    """Problem id -> the contest it is from, where problems come in such groups: they are no independent draws."""
    warnings: tuple[str, ...] = ()
    figures: Callable[[Outcomes], dict[str, Any]] | None = None
    """Further figures for the summary."""

    def limited(self, limit: int | None) -> ProblemSet:
        """The first `limit` problems; all of them for None."""
        return self if limit is None else replace(self, problems=self.problems[:limit])


@dataclass(frozen=True, slots=True)
class Grade:
    """What the grader says of one answer."""

    verdict: str
    """`correct`, `wrong`, `no_answer` or `grader_error`."""
    reason: str
    extracted: str | None = None
    """The part of the response that was compared."""
    extracted_by: str | None = None
    """How it was found: `box`, `hashes`, ..."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the answers' table: `verdict_official`, `verdict_script`, `tests_run`, `tests_total`,
    `seconds`."""


class Grader(Protocol):
    """Compares answers with references. It never evaluates or trusts a model's text in this process."""

    about: dict[str, Any]
    """For the summary: `name` and `version`, and what else its verdicts depend on. Another name or version regrades
    stored answers."""

    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """One grade an answer, in order; a failure of the grader itself is a `grader_error`, never a wrong answer."""

    def close(self) -> None:
        """Ends what it started."""


@dataclass(frozen=True)
class Benchmark:
    """A registered benchmark."""

    name: str
    description: str
    load: Callable[[DataChoice], ProblemSet]
    grader: Callable[[ProblemSet, GraderChoice], Grader]
    samples: int
    """Answers per problem: the k of avg@k."""
    sampling: Sampling
    """As published; `max_new_tokens` is a ceiling that the model's context may lower."""
    prompt_template: str
    """Names the wording around a problem; its hash is recorded beside it."""
    prompt_text: str
    hub: str | None = None
    """The data set that it downloads, or `local` where it takes files only; None for embedded problems."""
    runs_programs: bool = False
    """Whether answers are programs, which need a sandbox."""
    takes: tuple[str, ...] = ()
    """What it takes of `release`, `window`, `contests`, `ratings`."""
