"""What a grader says of one response."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.types import Score

GRADER_ERROR = "grader_error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and the ground for it. Nothing in it is the model's text but `extracted`."""

    verdict: str
    """`correct`, `wrong`, `no_answer`, `grader_error`; graders of programs have verdicts of their own."""
    passed: bool
    reason: str
    """One or two words more: how it was decided, or what went wrong."""
    extracted: str | None = None
    """The answer that was taken from the response."""
    extracted_by: str | None = None
    """Where it stood: `box`, `hashes`, `phrase` or `bare`."""

    @property
    def score(self) -> Score:
        """The verdict as a reward: a grader's failure is no reward at all, not a 0."""
        if self.verdict == GRADER_ERROR:
            return Score(None, self.reason)
        return Score(float(self.passed), self.verdict)
