"""The sampler's old policy, truncation, punishment, credits and the critic, as the training step applies them."""

import copy
from dataclasses import replace

import pytest
import torch
from test_batches import cut, learner, rollout_batch
from transformers import PreTrainedModel

from gspo_cli.algorithms import ppo
from gspo_cli.config import AlgoConfig
from gspo_cli.models.trunk import ValueModel
from gspo_cli.training.step.batches import Batching, rewards_and_groups
from gspo_cli.training.step.critic import Critic
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import MiniBatch


def test_truncated_responses_leave_numerator_and_denominator() -> None:
    batch = rollout_batch()
    first = batch.groups[0]
    cut_off = (replace(first.samples[0], finish="length"), *first.samples[1:])
    batch = replace(batch, groups=(replace(first, samples=cut_off), *batch.groups[1:]))
    kept, masked = (cut(batch, Batching(1, 10_000, mask_truncated=m))[0] for m in (False, True))
    assert len(masked.mask_BT) == len(kept.mask_BT) - 1
    assert len(masked.micro_batches[0].mask_BT) == len(kept.micro_batches[0].mask_BT) - 1


def test_overlong_punishment() -> None:
    batch = replace(rollout_batch(), max_new_tokens=10)
    plain, _ = rewards_and_groups(batch)
    punished, _ = rewards_and_groups(batch, overlong_cache_frac=0.5)
    lengths = torch.tensor([len(s.token_ids) for g in batch.groups for s in g.samples]).double()
    # 0 up to 5 tokens, then a fifth of a reward for each further token
    torch.testing.assert_close(plain - punished, ((lengths - 5) / 5).clamp(min=0))
    assert (plain - punished).max() > 0


def test_credits_make_token_advantages() -> None:
    batch = rollout_batch(1)
    group = batch.groups[0]
    credits = tuple(tuple(float(t % 2) for t in range(len(s.token_ids))) for s in group.samples)
    batch = replace(batch, groups=(replace(group, credits=credits),))
    (micro,) = cut(batch, Batching(1, 10_000))[0].micro_batches
    assert micro.advantages.shape == micro.mask_BT.shape
    for row in range(len(micro.mask_BT)):
        here = micro.advantages[row][micro.mask_BT[row]]
        assert (here[0::2] == 0).all() and (here[1::2] != 0).all()


def critic_batch(model: PreTrainedModel, budget: int) -> tuple[Critic, list[MiniBatch]]:
    critic = Critic(ValueModel(copy.deepcopy(model.base_model)), lr=0.1, grad_clip=1e9)
    torch.nn.init.normal_(critic.model.head.weight, generator=torch.Generator().manual_seed(0))
    parts = cut(rollout_batch(), Batching(2, budget, keep_rows_without_advantage=True), "ppo")
    critic.set_advantages(ppo, ppo.Params(lam=0.9), parts)  # type: ignore[arg-type]
    return critic, parts


def test_critic_values_stand_before_the_token(tiny_dense: PreTrainedModel) -> None:
    critic, parts = critic_batch(tiny_dense, 10_000)
    micro = parts[0].micro_batches[0]
    hidden = critic.model.trunk(input_ids=micro.input_ids_BT, use_cache=False).last_hidden_state
    for b, t in micro.mask_BT.nonzero().tolist():
        torch.testing.assert_close(critic.values(micro)[b, t], critic.model.head(hidden[b, t - 1])[0])


def test_critic_advantages_do_not_depend_on_the_cut(tiny_dense: PreTrainedModel) -> None:
    def by_row(budget: int) -> dict[tuple[int, ...], torch.Tensor]:
        _, parts = critic_batch(tiny_dense, budget)
        micros = [m for p in parts for m in p.micro_batches]
        return {
            tuple(t for t in ids if t): a[m]
            for micro in micros
            for ids, a, m in zip(micro.input_ids_BT.tolist(), micro.advantages, micro.mask_BT, strict=True)
        }

    whole, pieces = by_row(10_000), by_row(15)
    assert whole.keys() == pieces.keys() and len(whole) == 20
    for row, advantages in whole.items():
        torch.testing.assert_close(advantages, pieces[row], atol=1e-5, rtol=1e-5)
    values = torch.cat(list(whole.values()))
    assert float(values.mean()) == pytest.approx(0, abs=1e-6) and float(values.std()) == pytest.approx(1, rel=1e-3)


def test_sampler_log_probs_as_old_policy(tiny_moe: PreTrainedModel) -> None:
    who: Learner = learner(tiny_moe, "gspo")
    who = replace(who, algo=AlgoConfig(old_log_probs="sampler"))
    (mini,) = cut(rollout_batch(), Batching(1, 10_000))
    record_old_policy(who, [mini])
    values = update(who, mini, lr=0.0, first=True).result().values
    assert values["ratio/seq_max"] != 1.0  # the recorded engine log-probabilities are made up
    (micro,) = mini.micro_batches
    assert torch.equal(micro.old_log_probs_BT, micro.sampler_log_probs_BT)  # type: ignore[arg-type]
    assert micro.trainer_log_probs_BT is not None


def test_the_critic_rests_when_the_policy_does(tiny_dense: PreTrainedModel) -> None:
    who = learner(tiny_dense, "ppo")
    critic = Critic(ValueModel(copy.deepcopy(who.model.base_model)), lr=0.1, grad_clip=1e9)
    who = replace(who, critic=critic)
    (mini,) = cut(rollout_batch(), Batching(1, 10_000, keep_rows_without_advantage=True), "ppo")
    critic.set_advantages(ppo, ppo.Params(), [mini])  # type: ignore[arg-type]
    for micro in mini.micro_batches:
        micro.advantages = torch.full_like(micro.advantages, float("nan"))
    before = [p.clone() for p in critic.parameters]
    values = update(who, mini, lr=0.1, first=True).result().values
    assert values["update/applied"] == 0 and "value/loss" not in values
    assert all(torch.equal(a, b) for a, b in zip(before, critic.parameters, strict=True))
    critic.set_advantages(ppo, ppo.Params(), [replace(mini, micro_batches=[])])  # type: ignore[arg-type]
