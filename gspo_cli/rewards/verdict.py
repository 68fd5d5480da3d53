"""What a grader decides about one response or one program."""

from dataclasses import dataclass

from gspo_cli.types import Score

GRADER_ERROR = "grader_error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and its reason. Only `extracted` holds text of the model."""

    verdict: str
    """`correct`, `wrong`, `no_answer`, `grader_error`; for programs see `ProgramVerdict`."""
    passed: bool | None
    """None if nothing is known about the answer."""
    reason: str
    """One or two words: how it was decided, or what went wrong."""
    extracted: str | None = None
    """The answer that was taken from the response."""
    extracted_by: str | None = None
    """Where it was found: `box`, `hashes`, `phrase` or `bare`."""

    @property
    def score(self) -> Score:
        """The verdict as a reward. A grader's failure gives no reward, not a reward of 0."""
        if self.verdict == GRADER_ERROR or self.passed is None:
            return Score(None, self.reason)
        return Score(float(self.passed), self.verdict)


ACCEPTED, WRONG_ANSWER, TIME_LIMIT = "accepted", "wrong_answer", "time_limit"
RUNTIME_ERROR, RUNNER_ERROR, EXCLUDED = "runtime_error", "runner_error", "excluded"


@dataclass(frozen=True)
class ProgramVerdict:
    """The kind of the first failed test, or `accepted`."""

    verdict: str
    """`accepted`, `wrong_answer`, `time_limit`, `runtime_error`, `runner_error` (the process died); `grader_error` and
    `excluded` say nothing about the program."""
    reason: str = ""
    tests_run: int = 0
    tests_total: int = 0
    seconds: float = 0.0
    cpu_wait_s: float = 0.0
    """After a time limit: how long the program was ready to run but had no core, or how late we noticed."""

    @property
    def passed(self) -> bool | None:
        """None if nothing is known about the program."""
        return None if self.verdict in (GRADER_ERROR, EXCLUDED) else self.verdict == ACCEPTED
