"""Mathematical problems: GSM8K (Cobbe et al., arXiv 2110.14168) and MATH (Hendrycks et al., arXiv 2103.03874)."""

from dataclasses import replace

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rewards.math.extract import boxes
from gspo_cli.rewards.math.grade import grade_math, grade_number
from gspo_cli.tasks.data import fill, load_rows
from gspo_cli.types import Problem, Score

GSM8K_INSTRUCTION = "Reason step by step, then give the final number on a line of its own after ####."
COLUMNS = {"prompt": "question", "answer": "answer"}


def read_rows(
    config: TaskConfig, hub: tuple[str, str, str | None], split: str, columns: dict[str, str], template: str
) -> list[Problem]:
    """All rows of a split (`held_out` is `test`), with their answers as they stand. Errors: as `load_rows`."""
    rows = load_rows(config.path, hub, "test" if split == "held_out" else split, columns | dict(config.columns))
    template = config.template or template
    return [Problem(f"{split}-{i}", fill(template, row["prompt"]), row["answer"]) for i, row in enumerate(rows)]


class Gsm8k:
    """Word problems with a reward of 1 for the right final number."""

    default_template = f"{{question}}\n{GSM8K_INSTRUCTION}\n"

    def __init__(self, config: TaskConfig) -> None:
        self.config = config
        self.notes: list[str] = []

    def problems(self, split: str) -> list[Problem]:
        """All rows of the split; `held_out` is the data set's `test`. Errors: GspoError if no answer is a number."""
        hub = ("openai/gsm8k", "main", self.config.revision)
        rows = read_rows(self.config, hub, split, COLUMNS, self.default_template)
        found = [replace(row, answer=final_number(row.answer)) for row in rows]
        bad = [i for i, problem in enumerate(found, start=1) if grade_number("0", problem.answer).reason == "bad gold"]
        if len(bad) == len(found):
            raise GspoError(
                f"no answer of {self.config.path or 'the data'} is a number",
                f"the first is {found[0].answer!r:.80}; the number alone is compared, after #### if there is one",
                "correct the answers, or choose task.name = math",
            )
        self.notes = [f"no response can be scored where the answer is no number: rows {bad[:5]}"] if bad else []
        return found

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the response's final number equals the reference."""
        return grade_number(text, problem.answer).score


INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
HUB = "DigitalLearningGmbH/MATH-lighteval"


class Math:
    """Problems with a reward of 1 for an answer that means the same as the reference."""

    default_template = f"{{question}}\n\n{INSTRUCTION}"

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    def problems(self, split: str) -> list[Problem]:
        """All rows of the split; `held_out` is the data set's `test`."""
        columns = {"prompt": "problem", "answer": "answer" if self.config.path else "solution"}
        hub = (HUB, "default", self.config.revision)
        rows = read_rows(self.config, hub, split, columns, self.default_template)
        return [replace(row, answer=reference(row.answer)) for row in rows]

    def reward(self, problem: Problem, text: str) -> Score:
        """1 if the response's answer means the same as the reference; no reward where the grader failed."""
        return grade_math(text, problem.answer).score


def final_number(answer: str) -> str:
    """What follows the last `####`, as GSM8K writes its answers, or all of one without."""
    return answer.rsplit("####", 1)[-1].strip()


def reference(answer: str) -> str:
    """The last box of a worked answer, or all of one without."""
    found = boxes(answer)
    return found[-1].content if found else answer.strip()
