"""What a benchmark is: problems, a grader, and the settings at which its figure is usually reported."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError
from gspo_cli.sandbox.choose import ANY_SANDBOX, SandboxChoice
from gspo_cli.types import Problem, Sampling

Outcomes = Mapping[str, Sequence[bool]]
"""Problem id -> whether each gradable answer to it is right, in the order of the samples."""


@dataclass(frozen=True, slots=True)
class DataChoice:
    """The user's choice of a benchmark's problems; None = as published."""

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


def refuse_data(name: str, choice: DataChoice) -> None:
    """Errors: GspoError for a choice of data where there is none."""
    if choice != DataChoice():
        raise GspoError(f"{name} takes no data", "its problems are embedded in the program", "leave out what names it")


EMBEDDED: dict[str, Any] = {"source": "embedded", "revision": None, "files": {}}
"""The source of problems that are part of the program."""


@dataclass(frozen=True, slots=True)
class GraderChoice:
    """How programs are graded. Benchmarks with answers in text ignore it."""

    graders: tuple[str, ...] = ("official", "script")
    """The first decides the figure, the second is reported beside it."""
    sandbox: SandboxChoice = ANY_SANDBOX
    workers: int | None = None
    """Programs at once; None = one per physical core."""


@dataclass(frozen=True)
class ProblemSet:
    """The problems of a benchmark, and where they came from."""

    problems: tuple[Problem, ...]
    """With prompts as the model gets them (before any chat template)."""
    source: dict[str, Any]
    """For the summary: `source`, `revision`, `release`, `window`, `files` {name: sha256}, `fingerprint`, ..."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the grader needs of a problem beyond its answer (tests), by problem id; the model never sees it."""
    excluded: Mapping[str, list[str]] = field(default_factory=dict)
    """Reason -> ids of the problems that cannot be graded."""
    flagged: Mapping[str, str] = field(default_factory=dict)
    """Problem id -> its known fault. Flagged problems count; a second figure leaves them out."""
    contests: Mapping[str, str] = field(default_factory=dict)
    """Problem id -> its contest, for problems that come in such groups and so are not independent draws."""
    warnings: tuple[str, ...] = ()
    figures: Callable[[Outcomes], dict[str, Any]] | None = None
    """Further figures for the summary."""

    @property
    def ids_sha256(self) -> str:
        """Of the sorted ids, joined by newlines."""
        return sha256("\n".join(sorted(p.id for p in self.problems)))


def sha256(text: str) -> str:
    """In hex digits; half of a surrogate pair is taken as it is."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


VERDICTS = ("correct", "wrong", "no_answer", "grader_error")


@dataclass(frozen=True, slots=True)
class Grade:
    """The grader's decision on one answer."""

    verdict: str
    """One of `VERDICTS`."""
    reason: str
    extracted: str | None = None
    """The part of the response that was compared."""
    extracted_by: str | None = None
    """How it was found: `box`, `hashes`, ..."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the answers' table: `verdict_official`, `verdict_script`, `tests_run`, `tests_total`,
    `seconds`."""
    value: float | None = None
    """The reward, where it is not simply 1 for `correct` and 0 for the rest."""


class Grader(ABC):
    """Compares answers with references. It never evaluates or trusts a model's text in this process."""

    about: dict[str, Any]
    """For the summary: `name`, `version`, and whatever else its verdicts depend on. Stored answers are graded again
    when the name or the version changes."""

    @abstractmethod
    def grade(self, answers: Sequence[tuple[Problem, str]]) -> list[Grade]:
        """One grade per answer, in order. A failure of the grader itself is a `grader_error`, never a wrong answer."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what it started."""


def source_version(folder: Path) -> str:
    """The first 12 hex digits of sha256 over a grader's source files: any change of a rule changes its version."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


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
    """Names the wording around a problem; its hash is recorded with it."""
    prompt_text: str
    hub: str | None = None
    """The data set that it downloads, `local` if it takes only files, None for embedded problems."""
    runs_programs: bool = False
    """Whether answers are programs, which need a sandbox."""
    recipe: Recipe | None = None
    """Of the rows that a recipe holds out: prompts, stop strings and rewards are those of its training."""
    takes: tuple[str, ...] = ()
    """The options it accepts of `release`, `window`, `contests`, `ratings`, `grader`."""

    @property
    def template(self) -> dict[str, str]:
        """The id and hash of the wording around a problem."""
        return {"id": self.prompt_template, "sha256": sha256(self.prompt_text)}
