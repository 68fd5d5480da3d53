"""Who samples what among several ranks."""

from collections.abc import Callable
from typing import Any

import pytest

from gspo_cli.distributed import Ranks
from gspo_cli.rollout.engine import EngineInfo, SampleKey
from gspo_cli.rollout.engines import SharedEngine
from gspo_cli.types import Prompt, Sample, Sampling

PROMPTS = [Prompt(str(i), (i,)) for i in range(5)]
SEEDS: dict[SampleKey, int] = {(p.problem_id, i): i for p in PROMPTS for i in range(2)}


class Alone(Ranks):
    """One rank of several, of which the others say nothing."""

    def all_gather(self, work: Callable[[], Any], **_: bool) -> list[Any]:
        return [work()]


class Noting:
    """An engine that notes what it was asked for."""

    info, weight_version = EngineInfo("noting", {}, "float32", (1,), 9), 0

    def generate(self, prompts: list[Prompt], _: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        self.asked = [p.problem_id for p in prompts]
        return [Sample(*key, seed, (1,), (0.0,), "stop", 0) for key, seed in seeds.items()]


@pytest.mark.parametrize(("size", "spread"), [(1, 1), (3, 1), (8, 1), (2, 2), (4, 2), (8, 4)])
def test_ranks_of_one_engine_ask_for_the_same_and_one_of_them_speaks(size: int, spread: int) -> None:
    asked: list[list[str]] = []
    given: list[SampleKey] = []
    for rank in range(size):
        engine = Noting()
        engine.asked = []
        drawn = SharedEngine(engine, Alone(rank, size), spread).generate(PROMPTS, Sampling(1.0, 4), SEEDS)  # type: ignore[arg-type]
        asked.append(engine.asked)
        given += [(s.problem_id, s.index) for s in drawn]
        assert rank % spread == 0 or not drawn
    assert sorted(given) == sorted(SEEDS)  # each sample once
    for first in range(0, size, spread):
        assert all(asked[rank] == asked[first] for rank in range(first, first + spread))
