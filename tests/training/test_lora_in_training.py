"""LoRA in an update: what moves, that full rank is full fine-tuning, and the passes that need the start model.

B = responses, T = token positions
"""

import copy
from dataclasses import replace

import pytest
import torch
from test_batches import cut, learner, rollout_batch
from test_update import WHOLE, whole_batch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.config import AlgoConfig, Kl, Lora, Recipe
from gspo_cli.models.lora import add_lora
from gspo_cli.moe.routers import find_routing
from gspo_cli.training.setup import make_learner
from gspo_cli.training.step.update import Learner, record_old_policy, scored, update
from gspo_cli.training.study.arms import plan_runs

EVERYWHERE = Lora(rank=4, experts=True)
ONCE = 1e-12  # rounding of float64 at steps of size 0.01 to 1


def adapted(model: PreTrainedModel, lora: Lora) -> PreTrainedModel:
    """A copy in float64 with adapters."""
    copied = copy.deepcopy(model).double()
    add_lora(copied, lora, "base", None, seed=0)
    return copied


def descent(model: PreTrainedModel, name: str = "gspo") -> Learner:
    """A learner of this very model whose optimizer moves its trained weights by the gradient itself."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    return replace(learner(model, name), model=model, optimizer=optimizer, routing=find_routing(model))


def test_an_update_moves_the_adapters_alone(tiny_moe: PreTrainedModel) -> None:
    who = descent(adapted(tiny_moe, EVERYWHERE))
    before = {name: p.detach().clone() for name, p in who.model.named_parameters()}
    for _ in range(2):  # A has no gradient as long as B = 0
        update(who, whole_batch()[0], 1.0, first=True)
    moved = {name for name, p in who.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, p in who.model.named_parameters() if p.requires_grad}
    assert moved == {name for name in before if ".lora_" in name} and len(moved) == 2 * 2 * 6


def make_orthonormal(model: PreTrainedModel, num_experts: int) -> None:
    """Gives every A orthonormal columns: A^T A = 1; of experts' weights every expert's own A."""
    for name, p in model.named_parameters():
        if ".lora_A." in name:
            parts = num_experts if ".experts." in name else 1
            blocks = [nn.init.orthogonal_(torch.empty_like(part)) for part in p.data.chunk(parts)]
            p.data.copy_(torch.cat(blocks))


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """What the adapted layers multiply with, adapters included, under the names of the plain model."""
    plain = copy.deepcopy(model)
    for module in [m for m in plain.modules() if hasattr(m, "lora_A")]:
        module.merge()
    names = {n.replace("base_layer.", ""): p.detach() for n, p in plain.named_parameters() if ".lora_" not in n}
    return {n: p for n, p in names.items() if "_proj" in n}


@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_full_rank_descends_as_full_training(tiny_moe: PreTrainedModel, tiny_dense: PreTrainedModel, kind: str) -> None:
    # With W' = W + s B A: dL/dB = s G A^T and dL/dA = s B^T G, where G = dL/dW'. At B = 0 a step of plain descent
    # leaves A, moves B by -lr s G A^T, and so W' by -lr s^2 G A^T A: with A^T A = 1 that is s^2 times the step on W.
    # A [rank, width in] can have orthonormal columns once rank >= width; the widest here is 32 (a dense down_proj).
    base, rank, scale = (tiny_moe if kind == "moe" else tiny_dense), 32, 0.5
    model = adapted(base, Lora(rank=rank, alpha=scale * rank, experts=kind == "moe"))
    make_orthonormal(model, 6)
    before = weights(model)
    update(descent(model), whole_batch()[0], lr=1.0, first=True)
    full = descent(copy.deepcopy(base).double())
    update(full, whole_batch()[0], lr=scale**2, first=True)
    after, expected = weights(model), weights(full.model)
    assert before.keys() == expected.keys() and len(before) == (2 * 6 if kind == "moe" else 2 * 7)
    for name, weight in expected.items():
        assert float((weight - before[name]).norm()) > 1e-4
        torch.testing.assert_close(after[name], weight, rtol=0, atol=ONCE)


def test_the_kl_reference_is_the_start_model(tiny_moe: PreTrainedModel) -> None:
    model = adapted(tiny_moe, EVERYWHERE)
    start = copy.deepcopy(model)
    who = replace(descent(model), algo=AlgoConfig(kl=Kl(coef=0.1)), reference=model)
    for _ in range(2):
        mini, micro = whole_batch(plan=replace(WHOLE, keep_rows_without_advantage=True))
        record_old_policy(who, [mini])
        values = update(who, mini, 1.0, first=True).result().values
        assert micro.ref_log_probs_BT is not None
        expected_BT = scored(start, micro, 1.0).log_probs_BT.detach()
        torch.testing.assert_close(micro.ref_log_probs_BT, expected_BT, rtol=0, atol=ONCE)
    assert values["kl/ref_k3"] is not None and values["kl/ref_k3"] > 1e-6  # the policy has left it
    assert all(p.requires_grad == (".lora_" in n) for n, p in who.model.named_parameters())


def run_learner(model: PreTrainedModel, algo: dict[str, object]) -> Learner:
    """The learner that a run with LoRA would have."""
    recipe = Recipe.model_validate({"name": "lora", "model": {"tiny": {}, "lora": {"rank": 4}}, "algo": algo})
    (run,) = plan_runs(recipe, [str(algo["name"])], [0])
    return make_learner(run, model)


def test_the_critic_has_adapters_of_its_own(tiny_dense: PreTrainedModel) -> None:
    who = run_learner(adapted(tiny_dense, Lora(rank=4)), {"name": "ppo"})
    assert who.critic is not None
    minis = cut(rollout_batch(), WHOLE, "ppo")
    who.critic.set_advantages(who.algorithm, who.params, minis)
    before = {n: p.detach().clone() for n, p in who.critic.model.trunk.named_parameters()}
    for _ in range(2):
        who.critic.update(minis[0], who.params)
    moved = {n for n, p in who.critic.model.trunk.named_parameters() if not torch.equal(p, before[n])}
    assert moved and all(".lora_" in n for n in moved)
    assert not {id(p) for p in who.critic.parameters} & {id(p) for p in who.model.parameters()}
