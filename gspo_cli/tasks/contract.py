"""What a task is: problems with prompts, and a reward."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gspo_cli.types import Problem, Score


@runtime_checkable
class Task(Protocol):
    """The seam for one's own task."""

    def problems(self, split: str) -> list[Problem]:
        """The problems of a split, always the same ones in the same order; at least one."""

    def reward(self, problem: Problem, text: str) -> Score:
        """The score of one response. It must be deterministic and must not trust the text."""


@runtime_checkable
class Batched(Protocol):
    """A task whose rewards take time, and are quicker many at once."""

    def rewards(self, responses: list[tuple[Problem, str]]) -> list[Score]:
        """What `reward` says of each, in order."""


@runtime_checkable
class Noting(Protocol):
    """A task that has something to say about its problems."""

    notes: list[str]
    """Filled by `problems`: rows that were left out."""


@runtime_checkable
class Crediting(Protocol):
    """A task that says which tokens of a response earned or spoiled the reward."""

    def token_credits(self, problem: Problem, tokens: list[str]) -> list[float]:
        """A factor on the advantage of each token, e.g. 0 for tokens that carry no decision."""


@runtime_checkable
class Demonstrated(Protocol):
    """A task that can also show how it is done, for a cold start."""

    def demonstrations(self, seed: int, size: int) -> list[tuple[str, str]]:
        """`size` pairs of prompt and response."""
