"""Routing Replay on whole models: exact for their own routes, felt for foreign ones, with a gradient to the router.

L = MoE layers, R = rows of the routers, K = experts per token
"""

from contextlib import nullcontext

import pytest
import torch
from families import FAMILIES, build
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.replay import before_last, place, replay_metrics, violations
from gspo_cli.moe.routers import Routing, replayable
from gspo_cli.types import LayerMeans, Total

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])


def run(model: PreTrainedModel, routing: Routing, record_LRK: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits, and the experts that were called."""
    with tapped(routing) as tap:
        assert tap is not None
        with tap.replaying(record_LRK) if record_LRK is not None else nullcontext():
            logits = model(input_ids=IDS, use_cache=False).logits
            return logits, tap.natural_LRK if record_LRK is None else tap.used_LRK


def foreign(record_LRK: Tensor, num_experts: int) -> Tensor:
    """Every expert replaced by the next one."""
    return (record_LRK + 1) % num_experts


def with_own_routes(name: str = "qwen3_moe") -> tuple[PreTrainedModel, Routing, Tensor, Tensor]:
    """A model, its routers, its logits and the experts behind them."""
    model = build(name)
    routing = replayable(model, "replay")
    with torch.no_grad():
        return model, routing, *run(model, routing)


@pytest.mark.parametrize("name", FAMILIES)
def test_own_routes_change_nothing_and_foreign_ones_do(name: str) -> None:
    model, routing, natural, own = with_own_routes(name)
    with torch.no_grad():
        replayed, used = run(model, routing, own)
        other, used_other = run(model, routing, foreign(own, 8))
    assert torch.equal(replayed, natural) and torch.equal(used, own)  # bit for bit
    assert (other - natural).abs().max() > 1e-3 and torch.equal(used_other, foreign(own, 8))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_routers_learn_under_replay(name: str) -> None:
    model, routing, _, own = with_own_routes(name)
    run(model, routing, foreign(own, 8))[0].log_softmax(-1)[..., 0].sum().backward()
    for gate in routing.gates:
        assert isinstance(gate.weight, Tensor) and gate.weight.grad is not None
        assert float(gate.weight.grad.norm()) > 1e-4


def test_gates_are_those_of_the_current_logits() -> None:
    # chosen: the two *least* likely experts; softmax over all logits, gathered there, divided by its sum
    model = build("qwen3_moe")
    routing = replayable(model, "replay")
    gate = routing.gates[0]
    logits_RE, _, natural_RK = gate(torch.randn(4, 32, generator=torch.Generator().manual_seed(1)))
    worst_RK = logits_RE.topk(3, largest=False).indices
    assert routing.rule is not None
    weights_RK = routing.rule(gate, logits_RE, worst_RK)
    expected = logits_RE.double().exp().gather(-1, worst_RK)
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights_RK.double(), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weights_RK.sum(-1), torch.ones(4))
    assert (weights_RK > 0).all() and not torch.equal(worst_RK, natural_RK)


def test_replayed_experts_get_the_gates_of_the_current_logits() -> None:
    model, routing, _, own = with_own_routes()
    given: list[Tensor] = []
    routing.experts[0].register_forward_pre_hook(lambda _module, args: given.append(args[2]))
    with torch.no_grad(), tapped(routing) as tap:
        assert tap is not None and routing.rule is not None
        record = foreign(own, 8)
        with tap.replaying(record):
            model(input_ids=IDS, use_cache=False)
        expected = routing.rule(routing.gates[0], tap.logits_LRE[0], record[0])
        assert torch.equal(given[-1], expected) and not torch.equal(given[-1], tap.gates_LRK[0])


def test_finite_differences_agree_with_autograd_through_replay() -> None:
    model = build("qwen3_moe").double()
    model.set_experts_implementation("eager")  # the other one knows no float64
    routing = replayable(model, "replay")
    with torch.no_grad():
        _, own = run(model, routing)
    record = foreign(own, 8)

    def objective() -> Tensor:
        return run(model, routing, record)[0].log_softmax(-1)[..., 7].sum()

    objective().backward()
    generator = torch.Generator().manual_seed(2)
    for weight in (routing.gates[1].weight, model.base_model.layers[0].mlp.experts.down_proj):
        assert isinstance(weight, Tensor) and weight.grad is not None
        direction = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        slope, step = float((weight.grad * direction).sum()), 1e-3
        with torch.no_grad():
            start = weight.clone()
            ends = []
            for sign in (1, -1):
                weight.copy_(start + sign * step * direction)
                ends.append(float(objective()))
            weight.copy_(start)
        # the routers' softmax is float32 inside, whatever the model: hence no more digits than these
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-3)
        assert abs(slope) > 0.1


@pytest.mark.parametrize("replay", [False, True])
def test_gradient_checkpointing_gives_the_same_gradient(replay: bool) -> None:
    gradients, used = [], []
    for checkpointed in (False, True):
        model = build("qwen3_moe").train()
        routing = replayable(model, "replay")
        if checkpointed:
            model.gradient_checkpointing_enable()
        with torch.no_grad():
            _, own = run(model, routing)
        record = foreign(own, 8) if replay else None
        with tapped(routing) as tap:
            assert tap is not None
            with tap.replaying(record) if record is not None else nullcontext():
                model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)[..., 0].sum().backward()
                if record is not None:
                    used.append(tap.used_LRK)  # after backward, which has run every layer again
                    assert torch.equal(tap.used_LRK, record)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


def test_a_missing_route_is_the_natural_one_and_is_counted() -> None:
    model, routing, natural, own = with_own_routes()
    record = own.clone()
    record[1, 3] = routing.missing
    with torch.no_grad():
        replayed, used = run(model, routing, record)
    assert torch.equal(replayed, natural) and torch.equal(used, own)
    found = replay_metrics(own, record, routing.missing)
    fallback, agree = found["replay/fallback_frac"], found["replay/natural_agree_frac"]
    assert isinstance(fallback, LayerMeans) and isinstance(agree, LayerMeans)
    assert (fallback.numerator_L.tolist(), fallback.denominator) == ([0, 1, 0], 10)
    assert agree.numerator_L.tolist() == [10, 9, 10]


# rows of 4 and 3 tokens, prompts of 1; each row's last token has no record
MASK = torch.tensor([[False, True, True, True], [False, True, True, False]])
POSITIONS = torch.tensor([0, 1, 2, 4, 5])
RECORD = torch.arange(20, dtype=torch.uint8).view(2, 5, 2)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda p: p, 0),
        (lambda p: p.roll(1, 1), 10),  # shifted by one token
        (lambda p: p.flip(0), 10),  # layers swapped
        (lambda p: torch.cat([p[:, :4], p[:, 4:].roll(1, 1)], 1), 4),  # one row padded on the left
    ],
)
def test_violations_count_what_was_really_used(broken: object, expected: int) -> None:
    assert callable(broken)
    found = violations(broken(place(RECORD, POSITIONS, 8, missing=99)), RECORD, before_last(MASK).flatten(), missing=99)
    assert isinstance(found, Total) and int(found.value) == expected
