"""One optimizer step: which tokens it is made on, how far it goes, and what is added to the loss.

B = responses, T = token positions
"""

import copy
from dataclasses import replace

import pytest
import torch
from test_batches import CPU, advantages_of, learner, rollout_batch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.config import AlgoConfig, Correction, Kl
from gspo_cli.models.log_probs import token_scores
from gspo_cli.training.step.batches import Batching, Row, lay_out, make_mini_batches
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import MicroBatch, MiniBatch, Sample

WHOLE = Batching(minibatches=1, micro_batch_tokens=10_000)


def whole_batch(advantages_B: Tensor | None = None, plan: Batching = WHOLE) -> tuple[MiniBatch, MicroBatch]:
    """One mini-batch of one pass; GRPO's advantages unless others are given."""
    batch = rollout_batch()
    if advantages_B is None:
        advantages_B = advantages_of(batch)
    (mini,) = make_mini_batches(batch, advantages_B, plan, CPU)
    (micro,) = mini.micro_batches
    return mini, micro


def parameters(model: PreTrainedModel) -> Tensor:
    """All weights in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(who: Learner, mini: MiniBatch, lr: float = 1.0, first: bool = True) -> Tensor:
    """How far one update moves the weights: -lr times the gradient, as the optimizer is plain descent."""
    before = parameters(who.model)
    update(who, mini, lr, first)
    return parameters(who.model) - before


def policy_now(who: Learner, micro: MicroBatch) -> Tensor:
    """The policy's log-probabilities before its update."""
    return token_scores(who.model, micro.input_ids_BT, micro.mask_BT, 1.0).log_probs_BT.detach()


def test_the_loss_tokens_are_the_response_to_its_end() -> None:
    # prompts of 2 and 1 tokens, responses 7 8 1 and 9 1 that end in EOS = 1; EOS is a loss token, nothing after it
    rows = [
        Row((4, 5), Sample("a", 0, 0, (7, 8, 1), (-0.1, -0.2, -0.3), "stop", 0), 1.0),
        Row((6,), Sample("b", 0, 0, (9, 1), (-0.4, -0.5), "stop", 0), -1.0),
    ]
    micro = lay_out(rows, CPU)
    assert micro.input_ids_BT.tolist() == [[4, 5, 7, 8, 1], [6, 9, 1, 0, 0]]
    assert micro.mask_BT.tolist() == [[False, False, True, True, True], [False, True, True, False, False]]
    expected = torch.tensor([[0, 0, -0.1, -0.2, -0.3], [0, -0.4, -0.5, 0, 0]])
    assert torch.equal(micro.sampler_log_probs_BT, expected)
    # experts count at every token but each row's last; a token is predicted one position before it
    assert micro.positions_N.tolist() == [0, 1, 2, 3, 5, 6] and micro.predicts_M.tolist() == [1, 2, 3, 4, 5]


def test_the_learning_rate_is_the_one_given(tiny_moe: PreTrainedModel) -> None:
    whole, quarter = (moved(learner(tiny_moe, "grpo"), whole_batch()[0], lr) for lr in (1.0, 0.25))
    torch.testing.assert_close(quarter, whole / 4, rtol=0, atol=1e-12)
    assert float(whole.norm()) > 1e-3


def test_the_gradient_is_clipped_to_its_global_norm(tiny_moe: PreTrainedModel) -> None:
    free = moved(learner(tiny_moe, "grpo"), whole_batch()[0])
    norm = float(free.norm())
    who = replace(learner(tiny_moe, "grpo"), grad_clip=norm / 10)
    before = parameters(who.model)
    values = update(who, whole_batch()[0], 1.0, first=True).result().values
    # clipping divides by norm + 1e-6
    torch.testing.assert_close(parameters(who.model) - before, free / 10, rtol=1e-4, atol=1e-12)
    assert values["grad/norm"] == pytest.approx(norm, rel=1e-6)  # logged before clipping
    assert values["grad/clipped_frac"] == 1


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])
def test_the_kl_penalty_is_added_to_the_loss(tiny_moe: PreTrainedModel, name: str) -> None:
    # without advantages the gradient is the penalty's alone: coef / N sum_i 1/L_i sum_t k3, in dapo coef / T sum sum k3
    mini, micro = whole_batch(torch.zeros(20), replace(WHOLE, keep_rows_without_advantage=True))
    who, coef = learner(tiny_moe, name), 0.3
    reference = copy.deepcopy(who.model)
    with torch.no_grad():
        for p in reference.parameters():
            p.mul_(1.1)
    who = replace(who, algo=AlgoConfig(name=name, kl=Kl(coef=coef)), reference=reference)
    record_old_policy(who, [mini])
    ref_BT, mask_BT = micro.ref_log_probs_BT, micro.mask_BT
    assert ref_BT is not None
    expected_BT = token_scores(reference, micro.input_ids_BT, mask_BT, 1.0).log_probs_BT
    torch.testing.assert_close(ref_BT, expected_BT.detach(), rtol=0, atol=1e-12)
    log_probs_BT = token_scores(who.model, micro.input_ids_BT, mask_BT, 1.0).log_probs_BT
    k3_BT = torch.where(mask_BT, (ref_BT - log_probs_BT).exp() - (ref_BT - log_probs_BT) - 1, 0.0)
    expected = k3_BT.sum() / mask_BT.sum() if name == "dapo" else (k3_BT.sum(-1) / mask_BT.sum(-1)).mean()
    (coef * expected).backward()
    gradient = torch.cat([p.grad.flatten() for p in who.model.parameters() if p.grad is not None])
    step = moved(who, mini)
    assert len(gradient) == len(step) and float(step.norm()) > 1e-4
    torch.testing.assert_close(step, -gradient, rtol=0, atol=1e-10)


def test_corrections_weigh_by_the_old_policy(tiny_dense: PreTrainedModel) -> None:
    # o - m = 0.5 everywhere while the policy has left o: every weight is e^0.5, wherever the policy is now
    def gradient(kind: str) -> Tensor:
        who, (mini, micro) = learner(tiny_dense, "grpo"), whole_batch()
        now_BT = policy_now(who, micro)
        noise_BT = torch.randn(now_BT.shape, generator=torch.Generator().manual_seed(0), dtype=now_BT.dtype)
        micro.old_log_probs_BT = now_BT + 0.1 * noise_BT * micro.mask_BT
        micro.sampler_log_probs_BT = micro.old_log_probs_BT - 0.5
        correction = Correction.model_validate({"kind": kind, "low": 0.0, "high": 100.0})
        return moved(replace(who, algo=AlgoConfig(correction=correction)), mini, first=False)

    weight = torch.tensor(0.5, dtype=torch.float64).exp()
    # the model's normalisation works in float32
    plain = gradient("none")
    for kind in ("tis", "icepop"):
        torch.testing.assert_close(gradient(kind), plain * weight, rtol=1e-3, atol=1e-6)


def test_opsm_drops_bad_responses_that_the_policy_has_left(tiny_dense: PreTrainedModel) -> None:
    # m - l = 1 everywhere: beyond delta 0.9, within 1.1; without its bad responses a batch trains like one in which
    # they have no advantage
    def gradient(kind: str, delta: float, keep_bad: bool = True) -> Tensor:
        who, (mini, micro) = learner(tiny_dense, "grpo"), whole_batch()
        now_BT = policy_now(who, micro)
        micro.old_log_probs_BT, micro.sampler_log_probs_BT = now_BT, now_BT + 1
        if not keep_bad:
            micro.advantages = micro.advantages.clamp(min=0)
        correction = Correction.model_validate({"kind": kind, "high": delta})
        return moved(replace(who, algo=AlgoConfig(correction=correction)), mini, first=False)

    every, good = gradient("none", 1.0), gradient("none", 1.0, keep_bad=False)
    torch.testing.assert_close(gradient("opsm", 0.9), good, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradient("opsm", 1.1), every, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(every, good, rtol=1e-2)
