"""GSM8K: grade-school word problems with a whole number as the answer (Cobbe et al., arXiv 2110.14168).

Problems come from the hub (`openai/gsm8k`, or `task.revision` of it) or from a file of one's own (`task.path` with
`task.columns`); the reference is what follows the last `####` of the answer, or all of it.
"""

from __future__ import annotations

from gspo_cli.config import TaskConfig
from gspo_cli.rewards.mathematics import grade_number
from gspo_cli.tasks.data import load_rows
from gspo_cli.types import Problem, Score

INSTRUCTION = "Reason step by step, then give the final number on a line of its own after ####."
COLUMNS = {"prompt": "question", "answer": "answer"}


class Gsm8k:
    """Word problems with a reward of 1 for the right final number."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    def problems(self, split: str) -> list[Problem]:
        """All rows of the split; `held_out` is the data set's `test`."""
        rows = load_rows(
            self.config.path,
            hub=("openai/gsm8k", "main", self.config.revision),
            split="test" if split == "held_out" else split,
            columns=COLUMNS | dict(self.config.columns),
        )
        return [
            Problem(f"{split}-{i}", f"{row['prompt']}\n{INSTRUCTION}\n", row["answer"].rsplit("####", 1)[-1].strip())
            for i, row in enumerate(rows)
        ]

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the response's final number equals the reference."""
        return grade_number(text, problem.answer).score
