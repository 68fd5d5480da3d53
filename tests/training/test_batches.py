"""Mini-batches: whole groups, each response once, and a gradient that does not depend on how they are cut."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig, Recipe
from gspo_cli.distributed import Ranks
from gspo_cli.moe.routers import find_routing
from gspo_cli.training.loop import batching
from gspo_cli.training.step.batches import (
    Batching,
    Row,
    balance,
    cut_padded,
    make_mini_batches,
    rewards_and_groups,
    split,
)
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.types import Group, MiniBatch, Problem, Prompt, RolloutBatch, Sample, Score

CPU = torch.device("cpu")
NOTHING = MiniBatch([], torch.zeros(0, 1, dtype=torch.bool), 0)
"""Stands where the first mini-batch would: that one takes its old policy from its own pass."""


def rollout_batch(num_groups: int = 5, samples: int = 4, seed: int = 0) -> RolloutBatch:
    """Ragged random responses with rewards; the second group has equal rewards."""
    g = torch.Generator().manual_seed(seed)
    groups = []
    for p in range(num_groups):
        prompt = Prompt(str(p), tuple(torch.randint(3, 99, (2 + p,), generator=g).tolist()))
        drawn = []
        for i in range(samples):
            ids = torch.randint(3, 99, (int(torch.randint(1, 9, (), generator=g)),), generator=g).tolist()
            drawn.append(Sample(str(p), i, 0, tuple(ids), tuple([-1.0] * len(ids)), "stop", 0))
        scores = tuple(Score(1.0 if p == 1 else float(i % 2), "") for i in range(samples))
        problem = Problem(str(p), "", "")
        groups.append(Group(problem, prompt, tuple(drawn), ("",) * samples, scores))
    return RolloutBatch(1, tuple(groups), max_new_tokens=8)


def advantages_of(batch: RolloutBatch, name: str = "grpo") -> torch.Tensor:
    """By an algorithm's published settings."""
    return ALGORITHMS[name].advantage(*rewards_and_groups(batch), ALGORITHMS[name].Params())


def cut(batch: RolloutBatch, plan: Batching, name: str = "grpo") -> list[MiniBatch]:
    """The batch as mini-batches, with the algorithm's advantages."""
    return make_mini_batches(batch, advantages_of(batch, name), plan, CPU)


def mini_batches(budget: int, parts: int = 2, whole_groups: bool = False) -> list[MiniBatch]:
    return cut(rollout_batch(), Batching(parts, budget, whole_groups=whole_groups))


def learner(model: PreTrainedModel, name: str) -> Learner:
    """A learner whose optimizer moves the weights by the gradient itself."""
    copied = copy.deepcopy(model).double()
    algorithm = ALGORITHMS[name]
    optimizer = torch.optim.SGD(copied.parameters(), lr=1.0)
    return Learner(
        copied, optimizer, algorithm, algorithm.Params(), AlgoConfig(name=name), 1.0, 1e9, routing=find_routing(copied)
    )


@pytest.mark.parametrize("name", ["grpo", "ipo"])
def test_a_loss_with_a_term_beside_the_advantage_trains_every_row(tiny_dense: PreTrainedModel, name: str) -> None:
    (run,) = plan_runs(Recipe.model_validate({"name": "t", "model": {"tiny": {}}}), [name], [0], here=False)
    assert batching(run, learner(tiny_dense, name), 1).keep_rows_without_advantage == (name == "ipo")


def test_split_keeps_groups_whole_and_even() -> None:
    assert split(rollout_batch(5).groups, 2) == [[0, 1, 2], [3, 4]]
    assert split(rollout_batch(4).groups, 4) == [[0], [1], [2], [3]]


def test_every_response_with_an_advantage_is_trained_once() -> None:
    minis = mini_batches(budget=30)
    rows = [row for mini in minis for m in mini.micro_batches for row in m.input_ids_BT.tolist()]
    assert len(rows) == 16 and sum(m.num_skipped for m in minis) == 4
    assert sum(len(m.mask_BT) for m in minis) == 20
    trained = sorted(tuple(t for t in row if t) for row in rows)
    batch = rollout_batch()
    expected = [g.prompt.token_ids + s.token_ids for i, g in enumerate(batch.groups) if i != 1 for s in g.samples]
    assert trained == sorted(expected)


def test_cut_respects_the_budget() -> None:
    for budget in (1, 20, 45, 10_000):
        for mini in mini_batches(budget):
            for micro in mini.micro_batches:
                assert micro.input_ids_BT.numel() <= budget or len(micro.input_ids_BT) == 1
    assert cut_padded([], 10) == []


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_whole_groups_are_not_cut(packed: bool, ranks: int) -> None:
    batch = rollout_batch()
    advantages = advantages_of(batch)
    advantages[0] = 0.0  # the response is kept with its group
    for budget in (1, 45, 10_000):
        found = []
        for rank in range(ranks):
            batching = Batching(2, budget, whole_groups=True, packed=packed, ranks=Ranks(rank, ranks))
            found += [
                micro.groups_B.tolist()
                for mini in make_mini_batches(batch, advantages, batching, CPU)
                for micro in mini.own
            ]
        # four responses of each group but the second, whose rewards are equal
        assert sorted(g for groups in found for g in groups) == [group for group in (0, 2, 3, 4) for _ in range(4)]
        assert all(groups.count(group) == 4 for groups in found for group in groups)
        assert budget > 1 or len(found) == 4


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_gradient_and_metrics_do_not_depend_on_the_cut(tiny_moe: PreTrainedModel, name: str) -> None:
    def after(budget: int) -> tuple[list[torch.Tensor], dict[str, float | None]]:
        who = learner(tiny_moe, name)
        mini = mini_batches(budget, whole_groups=who.algorithm.WHOLE_GROUPS)[0]
        record_old_policy(who, [NOTHING, mini])
        for micro in mini.micro_batches:  # an old policy elsewhere, so that ratios differ from 1 and clips act
            assert micro.old_log_probs_BT is not None
            micro.old_log_probs_BT -= 3e-4 * micro.mask_BT * torch.sign(micro.advantages)[:, None]
        metrics = update(who, mini, lr=1.0, first=False)
        return [p.detach() for p in who.model.parameters()], metrics.result().values

    weights, metrics = after(10_000)
    for budget in (1, 45):
        other_weights, other_metrics = after(budget)
        for a, b in zip(weights, other_weights, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
        assert metrics.keys() == other_metrics.keys()
        for key, value in metrics.items():
            other = other_metrics[key]
            assert other == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), key


def test_skipping_rows_without_advantage_changes_no_gradient(tiny_moe: PreTrainedModel) -> None:
    who, other = learner(tiny_moe, "gspo"), learner(tiny_moe, "gspo")
    mini = mini_batches(10_000, parts=1)[0]
    update(who, mini, lr=1.0, first=True)
    # all rows in the passes: the same responses, given a token of advantage in turn, and taken away again
    batch = rollout_batch()
    rows = torch.arange(20.0) + 1
    whole = make_mini_batches(batch, rows, Batching(1, 10_000), CPU)[0]
    by_row = {
        tuple(i): float(a)
        for m in mini.micro_batches
        for i, a in zip(m.input_ids_BT.tolist(), m.advantages, strict=True)
    }
    (micro,) = whole.micro_batches
    width = mini.micro_batches[0].input_ids_BT.shape[1]
    micro.advantages = torch.tensor([by_row.get(tuple(i[:width]), 0.0) for i in micro.input_ids_BT.tolist()])
    assert int((micro.advantages == 0).sum()) == 4
    update(other, whole, lr=1.0, first=True)
    for a, b in zip(who.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_clip_fractions_count_skipped_rows(tiny_moe: PreTrainedModel) -> None:
    who = learner(tiny_moe, "gspo")
    mini = mini_batches(10_000, parts=1)[0]
    record_old_policy(who, [NOTHING, mini])
    (micro,) = mini.micro_batches
    assert micro.old_log_probs_BT is not None
    micro.old_log_probs_BT = micro.old_log_probs_BT - torch.sign(micro.advantages)[:, None] * micro.mask_BT
    result = update(who, mini, lr=0.0, first=False).result()  # every trained response is beyond its edge
    assert result.values["clip/seq_frac"] == 16 / 20
    assert result.counts["clip/token_frac"] == int(mini.mask_BT.sum())
    assert result.values["clip/token_frac_active"] == 1.0
    assert result.values["clip/token_frac"] == int(micro.mask_BT.sum()) / int(mini.mask_BT.sum())


def test_no_signal_makes_no_step(tiny_moe: PreTrainedModel) -> None:
    who = learner(tiny_moe, "gspo")
    batch = rollout_batch()
    minis = make_mini_batches(batch, torch.zeros(20), Batching(2, 100), CPU)
    before = [p.clone() for p in who.model.parameters()]
    values = update(who, minis[0], lr=1.0, first=True).result().values
    assert values["update/applied"] == 0 and values["update/skipped_rows_frac"] == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, who.model.parameters(), strict=True))


def test_unscored_responses_are_left_out() -> None:
    batch = rollout_batch(1)
    scores = (*batch.groups[0].scores[:3], Score(None, "grader_error"))
    batch = replace(batch, groups=(replace(batch.groups[0], scores=scores),))
    advantages = advantages_of(batch)
    assert advantages[3] == 0
    (mini,) = make_mini_batches(batch, advantages, Batching(1, 10_000), CPU)
    assert len(mini.mask_BT) == 3 and mini.num_skipped == 0
    assert advantages[:3].sum() == pytest.approx(0, abs=1e-6)


def test_ranks_get_equal_arithmetic_where_tokens_would_be_equal() -> None:
    """One row of 40 tokens against 4 of 10: with attention that costs as much as the weights at 20 tokens, the long
    row takes 40 (1 + 40 / 20) = 120, a short one 15; by tokens alone the ranks would hold 40 and 40."""
    group = rollout_batch(1).groups[0]

    def row(length: int) -> Row:
        sample = replace(group.samples[0], token_ids=(4,) * (length - 3), log_probs=(-1.0,) * (length - 3))
        return Row((1, 2, 3), sample, 1.0)

    units = [[row(40)], *([row(10)] for _ in range(12))]
    for attention, lone in ((0.0, 4), (1 / 20, 8)):  # how many short rows fewer the rank with the long one has
        ranks = balance(units, 2, attention)
        with_long = next(part for part in ranks if units[0] in part)
        assert len(units) - 2 * (len(with_long) - 1) - 1 == lone
