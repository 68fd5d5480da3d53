"""One update of a tiny mixture of experts: its volatility, and its replay against the model's own routers.

R = rows of the routers, L = MoE layers, K = experts per token
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.admission import paths_of
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.routers import Routing, find_routing, is_mixture, replayable
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.probe import Probe
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Sampling, Score

VOLATILITY = ("moe/slot_churn_step", "moe/slot_churn_weighted_step", "moe/slot_churn_probe", "moe/router_entropy")
FOUND = ("volatility, replay", "volatility", "not found")
"""What a mixture of experts can be trained with."""


def experts_of(model: PreTrainedModel, plain: PreTrainedModel) -> str:
    """One of FOUND, after updates that show it; empty for a dense model. `plain` = an untouched copy."""
    routing = find_routing(model)
    if routing is None:
        return "not found" if is_mixture(model) else ""
    batch = sampled(model, routing)
    measured(model, batch, "none")
    compared(model, copy.deepcopy(plain))
    try:
        replayable(model, "algo.replay")
    except GspoError:
        return "volatility"
    measured(model, batch, "r2")
    measured(model, batch, "r3")
    return "volatility, replay"


def sampled(model: PreTrainedModel, routing: Routing) -> RolloutBatch:
    """Responses with the experts that the sampler used; the reward is the parity of a response's tokens."""
    generator = torch.Generator().manual_seed(5)
    prompts = [tuple(torch.randint(3, 61, (n,), generator=generator).tolist()) for n in (5, 9, 7, 6)]
    seeds = [[7 * p + i for i in range(4)] for p in range(len(prompts))]
    drawn = sample(model, prompts, seeds, Sampling(1.0, 8), frozenset({2}), 1e18, routing)
    groups = []
    for p, (prompt, ones) in enumerate(zip(prompts, drawn, strict=True)):
        samples = tuple(
            Sample(str(p), i, 0, tuple(one.token_ids), tuple(one.log_probs), "stop", 0, one.routes_TLK)
            for i, one in enumerate(ones)
        )
        scores = tuple(Score(float(sum(s.token_ids) % 2), "") for s in samples)
        problem = Problem(str(p), "", "")
        groups.append(Group(problem, Prompt(str(p), prompt), samples, ("",) * len(samples), scores))
    return RolloutBatch(1, tuple(groups), max_new_tokens=8)


def measured(model: PreTrainedModel, batch: RolloutBatch, replay: Any) -> None:
    """Two updates on the batch: both are made, volatility is known, and no experts but the recorded are used."""
    model = copy.deepcopy(model)
    routing = find_routing(model) if replay == "none" else replayable(model, "algo.replay")
    grpo, algo = ALGORITHMS["grpo"], AlgoConfig(name="grpo", replay=replay)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = Learner(model, optimizer, grpo, grpo.Params(), algo, 1.0, 1.0, routing=routing)
    plan = Batching(2, 100, packed=paths_of(model).packed, routing=routing if replay == "r3" else None)
    minis = make_mini_batches(batch, grpo.advantage(*rewards_and_groups(batch), grpo.Params()), plan, model.device)
    probe = Probe(model, routing, batch)
    record_old_policy(learner, minis)
    metrics = Accumulator()
    for number, mini in enumerate(minis):
        values = update(learner, mini, lr=0.1, first=number == 0).result().values
        assert values["update/applied"] == 1, values
        if replay == "r3" or (replay == "r2" and number > 0):
            assert values["replay/violations"] == values["replay/fallback_frac"] == 0, values
        if replay == "r3" and number == 0:
            assert (values["replay/natural_agree_frac"] or 0) > 0.95, values
        metrics.add(probe.churn())
    values = metrics.result().values
    assert set(VOLATILITY) <= set(values) and all(math.isfinite(v or 0.0) for v in values.values()), values
    assert (values["moe/router_entropy"] or 0) > 0 and (values["moe/slot_churn_weighted_step"] or 0) > 0, values


@torch.no_grad()
def compared(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """The experts that are read are those that an untouched model calls, and replaying others gives what its routers
    give when their own code picks these."""
    ids_BT = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(2))
    routing, own = find_routing(model), find_routing(plain)
    assert routing is not None and own is not None
    called: list[Tensor] = []
    handles = [e.register_forward_pre_hook(lambda _, args: called.append(args[1])) for e in own.experts]
    plain(input_ids=ids_BT, use_cache=False)
    with tapped(routing) as tap:
        assert tap is not None
        model(input_ids=ids_BT, use_cache=False)
        assert torch.equal(tap.natural_LRK, torch.stack(called))
        for handle in handles:
            handle.remove()
        try:
            routing = replayable(model, "algo.replay")
        except GspoError:
            return
    foreign_LRK = (torch.stack(called) + 1) % routing.num_experts
    for gate, record_RK in zip(own.gates, foreign_LRK, strict=True):
        gate.forward = picking(gate.forward, gate, record_RK)  # type: ignore[method-assign]
    expected = plain(input_ids=ids_BT, use_cache=False).logits.log_softmax(-1)
    with tapped(routing) as tap:
        assert tap is not None
        natural = model(input_ids=ids_BT, use_cache=False).logits.log_softmax(-1)
        with tap.replaying(foreign_LRK):
            found = model(input_ids=ids_BT, use_cache=False).logits.log_softmax(-1)
    assert float((found - expected).abs().max()) < 1e-4 < float((natural - expected).abs().max())


class Picked(TorchFunctionMode):
    """Within it, a top-k over experts picks those of a record."""

    def __init__(self, record_RK: Tensor) -> None:
        super().__init__()
        self.record_RK = record_RK

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "topk" and found.indices.shape == self.record_RK.shape:
            return torch.return_types.topk((args[0].gather(-1, self.record_RK), self.record_RK))
        return found


def picking(forward: Callable[..., Any], gate: nn.Module, record_RK: Tensor) -> Callable[..., Any]:
    """A router's own forward pass, in which it picks the recorded experts."""
    if hasattr(gate, "tid2eid"):  # chosen by the token: no top-k to change

        def looked_up(hidden: Tensor, _: Tensor) -> Any:
            gate.tid2eid, table = record_RK, gate.tid2eid
            try:
                return forward(hidden, torch.arange(len(record_RK)))
            finally:
                gate.tid2eid = table

        return looked_up

    def forced(*args: Any, **kwargs: Any) -> Any:
        with Picked(record_RK):
            return forward(*args, **kwargs)

    return forced
