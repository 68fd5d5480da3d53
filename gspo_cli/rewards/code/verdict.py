"""What a grader says of one program."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.rewards.verdict import GRADER_ERROR

ACCEPTED, WRONG, LATE = "accepted", "wrong_answer", "time_limit"
RUNTIME, RUNNER = "runtime_error", "runner_error"
GRADER, EXCLUDED = GRADER_ERROR, "excluded"


@dataclass(frozen=True)
class Verdict:
    """The class of the first test that failed, or `accepted`."""

    verdict: str
    """`accepted`, `wrong_answer`, `time_limit`, `runtime_error`, `runner_error` (the worker died); `grader_error` and
    `excluded` say nothing about the program."""
    reason: str = ""
    tests_run: int = 0
    tests_total: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    """Of a time limit: how long the program was ready to run but had no core, or we were late to see it."""

    @property
    def passed(self) -> bool | None:
        """None where there is nothing to say about the program."""
        return None if self.verdict in (GRADER, EXCLUDED) else self.verdict == ACCEPTED
