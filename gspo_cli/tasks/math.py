"""MATH: competition problems with an answer of any mathematical kind (Hendrycks et al., arXiv 2103.03874).

Problems come from the hub (`DigitalLearningGmbH/MATH-lighteval`, or `task.revision` of it) or from a file of one's own
(`task.path` with `task.columns`); the reference is the last box of the answer, or all of it where there is none.
"""

from __future__ import annotations

from gspo_cli.config import TaskConfig
from gspo_cli.rewards.boxes import boxes
from gspo_cli.rewards.mathematics import grade_math
from gspo_cli.tasks.data import load_rows
from gspo_cli.types import Problem, Score

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
HUB = "DigitalLearningGmbH/MATH-lighteval"


class Math:
    """Problems with a reward of 1 for an answer that means the same as the reference."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    def problems(self, split: str) -> list[Problem]:
        """All rows of the split; `held_out` is the data set's `test`."""
        columns = {"prompt": "problem", "answer": "answer" if self.config.path else "solution"}
        rows = load_rows(
            self.config.path,
            hub=(HUB, "default", self.config.revision),
            split="test" if split == "held_out" else split,
            columns=columns | dict(self.config.columns),
        )
        return [
            Problem(f"{split}-{i}", f"{row['prompt']}\n\n{INSTRUCTION}", reference(row["answer"]))
            for i, row in enumerate(rows)
        ]

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the response's answer means the same as the reference; no reward where the grader failed."""
        return grade_math(text, problem.answer).score


def reference(answer: str) -> str:
    """The last box of a worked answer, or all of one without."""
    found = boxes(answer)
    return found[-1].content if found else answer.strip()
