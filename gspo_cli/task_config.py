"""The table `[task]` of a recipe: problems, prompts and rewards."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from gspo_cli.errors import nearest
from gspo_cli.tables import Name, PositiveFloat, PositiveInt, Table

BUILT_IN_REWARDS = ("number", "math", "exact", "choice", "regex", "json", "code", "format", "length")


class WeightedReward(Table):
    """One of several rewards."""

    name: str
    """`task` (the task's own), one of the built-in rewards (docs/extending.md), or `module:function`."""
    weight: float = 1.0
    label: Name | None = None
    """Its name in logs and figures; default: the built-in's, or the function's."""
    pattern: str | None = None
    """Of `format`: the regular expression that the whole response must match; default: `<think>...</think>
    <answer>...</answer>`. Of `regex`: one that must occur in it; its first group, if any, must be the answer."""
    keys: tuple[str, ...] = ()
    """Of `json`: the keys that the object must have."""
    tokens: tuple[Annotated[int, Field(ge=0)], PositiveInt] | None = None
    """Of `length`: no penalty up to the first length, then falling to -1 at the second."""
    batched: bool = False
    """The function takes the list of all (problem, text), and gives a list."""

    @property
    def title(self) -> str:
        """The label, or the name that stands for it."""
        return self.label or re.sub(r"[^A-Za-z0-9._-]", "_", self.name.rpartition(":")[2])

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = ("task", *BUILT_IN_REWARDS)
        if self.name not in known and ":" not in self.name:
            near = nearest(self.name, known, f"it is one of {', '.join(known)}, or module:function")
            raise ValueError(f"no reward {self.name!r}; {near}")
        if self.name == "length" and (self.tokens is None or self.tokens[0] >= self.tokens[1]):
            raise ValueError("the reward `length` needs tokens = [START, END], START below END")
        if self.name == "regex" and self.pattern is None:
            raise ValueError("the reward `regex` needs a pattern")
        for key, names in (("pattern", ("format", "regex")), ("tokens", ("length",)), ("keys", ("json",))):
            if key in self.model_fields_set and self.name not in names and getattr(self, key):
                raise ValueError(f"{key} is a setting of {' and '.join(names)}, and this reward is {self.name}")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from error
        return self


class TaskConfig(Table):
    """The problems and the reward."""

    name: str = "arithmetic"
    """A built-in task, or `module:attribute`."""
    reward: str | None = None
    """A built-in reward or `module:function` that replaces the task's reward."""
    path: str | None = None
    """A data file (json, jsonl, parquet, csv), a folder of such files or one that `datasets` saved, or a name on the
    hub; replaces the task's data."""
    environment: str | None = None
    """Of task `verifiers`: an installed environment of that library, or a module beside the recipe."""
    args: dict[str, Any] = Field(default={})
    """Of task `verifiers`: the keys of the environment's `TasksetConfig`, such as `{ split = "train" }`."""
    revision: str | None = None
    split: str = "train"
    held_out: float | str | None = None
    """Of task `data`: the share of rows that are not trained on but evaluated, or a file or split of such rows. Of task
    `verifiers`: such a share of its tasks."""
    grader: Literal["official", "script"] = "official"
    """How task `code` grades programs."""
    columns: dict[Literal["prompt", "answer"], str] = Field(default={})
    """Column names in `path`."""
    terms: tuple[PositiveInt, PositiveInt] | None = None
    """Fewest and most digits in a row of task `arithmetic`; n digits take about n * n tokens. Default: 3 to 5."""
    guesses: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """Share of the built-in cold start's demonstrations that guess the answer at once, without working it out."""
    too_long: Literal["refuse", "drop"] = "refuse"
    """What happens to problems whose prompt and response cannot fit into the model's positions."""
    rewards: tuple[WeightedReward, ...] = ()
    """Several rewards, summed by their weights; each is logged by itself. Not beside `reward`."""
    combine: Literal["sum", "gdpo"] = "sum"
    """`gdpo`: advantages in which each of several rewards was divided by its own deviation in the group before they are
    added, and the sum whitened over the batch's tokens (arXiv 2601.05242)."""
    deadline_s: PositiveFloat = 600.0
    """Time limit for one's own code to score a rollout batch."""
    template: str | None = None
    """The prompt's text, with `{question}` in the place of the problem; replaces the task's own instruction. Of task
    `data`: `{COLUMN}` for any column."""
    system: str | None = None
    """A system prompt, through the model's chat template."""
    chat: bool | None = None
    """Whether prompts go through the tokenizer's chat template; default: if it has one."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the chat template, such as `{ enable_thinking = false }`."""

    @field_validator("held_out")
    @classmethod
    def _share(cls, held_out: float | str | None) -> float | str | None:
        if isinstance(held_out, float) and not 0 < held_out < 1:
            raise ValueError("it is a share of the rows, above 0 and below 1 (0.2 = 20 % = 20 of 100 rows), or a file")
        return held_out

    @field_validator("reward")
    @classmethod
    def _known_reward(cls, reward: str | None) -> str | None:
        try:
            return reward and WeightedReward(name=reward).name
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"{why} (in [[task.rewards]])" if reward in BUILT_IN_REWARDS else why) from error

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        titles = [reward.title for reward in self.rewards]
        fewest, most = self.terms or (3, 5)
        for broken, what in (
            (self.reward is not None and bool(self.rewards), "give either task.reward or task.rewards"),
            (len(set(titles)) < len(titles), "two rewards have the same name in logs; give one of them a label"),
            (self.combine == "gdpo" and len(self.rewards) < 2, "combine = 'gdpo' needs two [[task.rewards]] or more"),
            (self.template is not None and "{question}" not in self.template and self.name != "data",
             "template must contain {question}"),
            (self.chat is False and self.system is not None, "system needs the chat template, and chat = false"),
            (self.chat is False and bool(self.chat_template_kwargs),
             "chat_template_kwargs need the chat template, and chat = false"),
            (bool({"messages", "conversation", "tokenize", "add_generation_prompt", "return_dict"}
                  & self.chat_template_kwargs.keys()),
             "chat_template_kwargs holds variables of the template, not arguments of the tokenizer"),
            (self.terms is not None and self.name != "arithmetic",
             f"terms is the row length of task arithmetic, and the task is {self.name}"),
            (not 2 <= fewest <= most or most < 5,
             f"terms = [{fewest}, {most}]: fewest and most digits of a row, the fewest at least 2, the most at least 5 "
             "(there are too few shorter rows)"),
        ):  # fmt: skip
            if broken:
                raise ValueError(what)
        return self

    @property
    def longest_working(self) -> int:
        """Most tokens of a worked answer of task `arithmetic`: n - 1 steps, each with the rest of the row."""
        digits = self.terms[1] if self.terms else 5
        return (digits - 1) * (digits - 2) + len(str(9 * digits)) * (digits - 1) + digits - 1


def environment_module(environment: str) -> str:
    """The module of an environment of `verifiers` (`owner/my-env@1.0` is in `my_env`), as the name of a plugin."""
    return environment.rpartition("/")[2].partition("@")[0].replace("-", "_").lower() + ":"
