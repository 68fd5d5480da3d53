"""avg@k with its error clustered by problem, and the settings that make no sense."""

from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev

import pytest
from transformers import PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.evals import BENCHMARKS, find_benchmark
from gspo_cli.evals.runner import evaluate, summarise
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout.transformers_engine import TransformersEngine
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score


def batch(rewards: list[list[float]]) -> RolloutBatch:
    groups = []
    for j, values in enumerate(rewards):
        samples = tuple(Sample(str(j), i, 0, (5,) * (i + 1), (-1.0,) * (i + 1), "stop", 0) for i in range(len(values)))
        scores = tuple(Score(v, "") for v in values)
        groups.append(Group(Problem(str(j), "", ""), Prompt(str(j), (4,)), samples, ("",) * len(values), scores))
    return RolloutBatch(0, tuple(groups), max_new_tokens=8)


def test_average_and_clustered_error() -> None:
    # shares 1, 1/2, 0: mean 1/2, sd 1/2, error 0.5 / sqrt(3); pooling the six answers would give 0.22
    result = summarise("arithmetic", 2, batch([[1, 1], [1, 0], [0, 0]]))
    assert result.average == 0.5
    assert result.standard_error == pytest.approx(0.5 / sqrt(3))
    assert (result.metric, result.num_problems, result.mean_tokens) == ("arithmetic/avg@2", 3, 1.5)
    assert summarise("arithmetic", 2, batch([[1, 0]])).standard_error is None


def test_answers_do_not_depend_on_what_else_is_asked(
    tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine(tiny_moe, frozenset({1}), 1.0, 60.0)
    short = replace(BENCHMARKS["arithmetic"].sampling, max_new_tokens=6)
    benchmark = replace(BENCHMARKS["arithmetic"], sampling=short)
    monkeypatch.setattr("gspo_cli.tasks.arithmetic.NUM_HELD_OUT", 6)
    two, four = (evaluate(benchmark, engine, character_tokenizer(), k, False, seed=3) for k in (2, 4))
    for a, b in zip(two.answers.groups, four.answers.groups, strict=True):
        assert [s.token_ids for s in a.samples] == [s.token_ids for s in b.samples[:2]]
    shares = [fmean(s.value or 0 for s in g.scores) for g in four.answers.groups]
    assert four.average == fmean(shares) and four.standard_error == stdev(shares) / sqrt(6)


def test_several_greedy_answers_are_refused(tiny_moe: PreTrainedModel) -> None:
    engine = TransformersEngine(tiny_moe, frozenset({1}), 1.0, 60.0)
    with pytest.raises(GspoError, match="temperature 0"):
        evaluate(BENCHMARKS["arithmetic"], engine, character_tokenizer(), 2, True, 0)


def test_unknown_benchmark_names_the_nearest() -> None:
    with pytest.raises(GspoError) as caught:
        find_benchmark("aritmetic")
    assert "'arithmetic'" in caught.value.hint
