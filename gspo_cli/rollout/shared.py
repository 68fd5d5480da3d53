"""Sampling and scoring divided over the ranks: each does its share, all have everything afterwards."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo_cli.ranks import Ranks, in_turn
from gspo_cli.rollout.collect import score
from gspo_cli.rollout.engine import Engine, SampleKey, SyncReport
from gspo_cli.tasks.contract import Crediting, Task
from gspo_cli.types import Problem, Prompt, Sample, Sampling, Score

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SharedEngine:
    """The `Engine` protocol over one engine a rank, or `spread` ranks an engine. A sample's seed is its own, so who
    draws it changes nothing."""

    def __init__(self, engine: Engine, ranks: Ranks, spread: int = 1) -> None:
        self.engine, self.ranks, self.spread = engine, ranks, spread
        self.info, self.weight_version = engine.info, engine.weight_version

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`; all ranks must ask for the same."""
        mine = Ranks(self.ranks.rank // self.spread, self.ranks.size // self.spread).share(prompts)
        names = {prompt.problem_id for prompt in mine}
        wanted = {key: seed for key, seed in seeds.items() if key[0] in names}

        def draw() -> list[dict[str, Any]]:
            drawn = self.engine.generate(mine, sampling, wanted) if mine else []
            return [as_table(s) for s in drawn] if self.ranks.rank % self.spread == 0 else []

        return [from_table(table) for drawn in self.ranks.everywhere(draw) for table in drawn]

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        """See `Engine.sync`."""
        self.weight_version = version
        return self.engine.sync(weights, version)

    def rest(self) -> None:
        """See `Engine.rest`."""
        self.engine.rest()

    def close(self) -> None:
        """See `Engine.close`."""
        self.engine.close()


class SharedTask:
    """A task whose rewards are given by all ranks, each for its share of the responses."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks = task, ranks
        if isinstance(task, Crediting):
            self.token_credits = task.token_credits

    def problems(self, split: str) -> list[Problem]:
        """See `Task.problems`."""
        return self.task.problems(split)

    def reward(self, problem: Problem, text: str) -> Score:
        """See `Task.reward`."""
        return self.task.reward(problem, text)

    def rewards(self, responses: list[tuple[Problem, str]]) -> list[Score]:
        """See `Batched.rewards`: each response is scored once, so that all ranks agree on it."""
        given = self.ranks.everywhere(lambda: [asdict(s) for s in score(self.task, self.ranks.share(responses))])
        return [Score(**table) for table in in_turn(given)]


def as_table(sample: Sample) -> dict[str, Any]:
    """A sample as JSON."""
    table = {name: getattr(sample, name) for name in sample.__slots__ if name != "routes_TLK"}
    if (routes := sample.routes_TLK) is not None:
        packed = base64.b64encode(np.ascontiguousarray(routes).tobytes()).decode()
        table["routes"] = [packed, str(routes.dtype), list(routes.shape)]
    return table


def from_table(table: dict[str, Any]) -> Sample:
    """What `as_table` gave."""
    routes = table.pop("routes", None)
    table["token_ids"], table["log_probs"] = tuple(table["token_ids"]), tuple(table["log_probs"])
    if routes is not None:
        packed, dtype, shape = routes
        table["routes_TLK"] = np.frombuffer(base64.b64decode(packed), dtype=dtype).reshape(shape)
    return Sample(**table)
