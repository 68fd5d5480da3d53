"""Routing Replay in the training passes: what is recorded when, what is replayed where, and that breaking it shows.

B = responses, T = token positions, L = MoE layers, N = recorded tokens, K = experts per token
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_batches import NOTHING, cut, learner, rollout_batch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.admission import admit, paths_of
from gspo_cli.models.log_probs import token_scores
from gspo_cli.moe import replay as routing_replay
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.replay import before_last
from gspo_cli.moe.routers import replayable
from gspo_cli.training.loop import stop_if_not_replayed
from gspo_cli.training.step.batches import Batching
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import Group, MiniBatch, RolloutBatch, RouteNoise, StepMetrics

LAYERS, EXPERTS, TOP_K = 2, 6, 2


@pytest.fixture(params=["padded", "packed"])
def moe(tiny_moe: PreTrainedModel, request: pytest.FixtureRequest) -> PreTrainedModel:
    """The model, fed padded rows or packed ones."""
    model = copy.deepcopy(tiny_moe)
    if request.param == "packed":
        admit(model, "the model")
    assert paths_of(model).packed == (request.param == "packed")
    return model


def replaying(model: PreTrainedModel, replay: str, algo: str = "grpo") -> Learner:
    who = learner(model, algo)
    return replace(who, algo=who.algo.model_copy(update={"replay": replay}), routing=replayable(who.model, replay))


def sampled(choose: Callable[[int], Any]) -> RolloutBatch:
    """The usual batch, each sample with the engine's choice of experts for that many tokens (or None)."""
    batch = rollout_batch()

    def routed(group: Group) -> Group:
        lengths = [len(group.prompt.token_ids) + len(s.token_ids) - 1 for s in group.samples]
        samples = (replace(s, routes_TLK=choose(n)) for s, n in zip(group.samples, lengths, strict=True))
        return replace(group, samples=tuple(samples))

    return replace(batch, groups=tuple(map(routed, batch.groups)))


def random_routes(num_tokens: int) -> Any:
    """Foreign to any model."""
    g = np.random.default_rng(0)  # the same for all rows of a length and for their common beginning
    return g.permuted(np.tile(np.arange(EXPERTS), (num_tokens, LAYERS, 1)), axis=-1)[..., :TOP_K].astype(np.uint8)


def one_mini(who: Learner, batch: RolloutBatch | None = None, budget: int = 60) -> MiniBatch:
    plan = Batching(
        1, budget, routing=who.routing, packed=paths_of(who.model).packed, whole_groups=who.algorithm.WHOLE_GROUPS
    )
    (mini,) = cut(batch or rollout_batch(), plan)
    return mini


def weights(who: Learner) -> Tensor:
    return torch.cat([p.detach().flatten() for p in who.model.parameters()])


def drift(who: Learner) -> None:
    """Moves the weights as updates on other mini-batches would, so that some choices differ."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in who.model.parameters():
            parameter.add_(0.04 * torch.randn(parameter.shape, generator=g, dtype=parameter.dtype))


def trained(
    who: Learner, mini: MiniBatch, drifted: bool, first: bool = False
) -> tuple[Tensor, dict[str, float | None]]:
    """How far an update moves the weights, and its metrics; the old policy is recorded before any drift."""
    record_old_policy(who, [mini] if first else [NOTHING, mini])
    if drifted:
        drift(who)
    before = weights(who)
    values = update(who, mini, 1.0, first).result().values
    return weights(who) - before, values


def noised(who: Learner, share: float) -> MiniBatch:
    """The usual rows; the old policy's experts get noise."""
    mini = one_mini(who)
    for micro in mini.micro_batches:
        micro.route_noise = RouteNoise(share, key=5)
    return mini


@pytest.mark.parametrize("first", [True, False])
def test_replay_undoes_router_noise_exactly(moe: PreTrainedModel, first: bool) -> None:
    who = replaying(moe, "r2")
    _, values = trained(who, noised(who, 0.2), drifted=False, first=first)
    assert values["ratio/token_log_absmax"] == 0 and values["replay/violations"] == 0
    assert values["moe/noise_slot_churn"] == pytest.approx(0.2, abs=0.05)  # few tokens
    assert values["replay/natural_agree_frac"] < 1


def test_without_replay_ratios_spread_with_the_share_of_exchanged_experts(moe: PreTrainedModel) -> None:
    spreads = []
    for share in (0.05, 0.15, 0.4):
        who = replaying(moe, "none")
        mini = noised(who, share)
        _, values = trained(who, mini, drifted=False, first=True)
        assert values["moe/slot_churn"] == values["moe/noise_slot_churn"] == pytest.approx(share, abs=0.05)
        spreads.append((values["ratio/token_log_std"], values["ratio/seq_log_std"]))
    assert spreads[0][0] < spreads[1][0] < spreads[2][0]
    assert all(sequence < token for token, sequence in spreads)


@pytest.mark.parametrize("first", [True, False])
def test_r2_at_unchanged_weights_is_no_replay_bit_for_bit(moe: PreTrainedModel, first: bool) -> None:
    """The first mini-batch takes its record from its own pass."""
    moved = []
    for replay in ("none", "r2"):
        who = replaying(moe, replay)
        mini = one_mini(who)
        step, values = trained(who, mini, drifted=False, first=first)
        moved.append(step)
    assert torch.equal(*moved) and float(moved[0].norm()) > 1e-3
    assert all(m.old_routes_LNK is not None for m in mini.micro_batches)
    if not first:
        assert values["replay/natural_agree_frac"] == 1 and values["replay/fallback_frac"] == 0
        assert values["replay/violations"] == 0
        assert "moe/slot_churn" not in values  # under replay its layers' inputs are not the policy's own


def test_r2_replays_the_old_policys_experts_after_an_update(moe: PreTrainedModel) -> None:
    results = {}
    for replay in ("none", "r2"):
        who = replaying(moe, replay)
        results[replay] = trained(who, one_mini(who), drifted=True)
    churn, values = results["none"][1]["moe/slot_churn"], results["r2"][1]
    assert churn is not None and churn > 0.01
    assert not torch.equal(results["none"][0], results["r2"][0])
    assert values["replay/natural_agree_frac"] is not None and 0.1 < values["replay/natural_agree_frac"] < 1
    assert values["replay/violations"] == 0 and values["replay/fallback_frac"] == 0


@pytest.mark.parametrize(
    ("algo", "replay"), [(name, ("r2", "r3")[i % 2]) for i, name in enumerate(sorted(set(ALGORITHMS) - {"ppo"}))]
)
def test_every_algorithm_replays_the_same_for_any_cut(moe: PreTrainedModel, algo: str, replay: str) -> None:
    found = []
    for budget in (30, 10_000):
        who = replaying(moe, replay, algo)
        found.append(trained(who, one_mini(who, sampled(random_routes), budget), drifted=True))
    assert float(found[0][0].norm()) > 1e-6
    # routers and norms round to float32, and a shared prompt's gradient is summed before they do
    atol = 1e-5 * float(found[0][0].abs().max()) if paths_of(moe).packed else 1e-9
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=atol)
    for name in ("replay/natural_agree_frac", "replay/violations", "moe/load_max_violation"):
        assert found[0][1][name] == pytest.approx(found[1][1][name])


def own_routes(who: Learner, mini: MiniBatch) -> list[Tensor]:
    """What the model chooses for the tokens of each micro-batch, one forward a row: [L, N, K]."""
    found = []
    for micro in mini.micro_batches:
        index_BT = torch.arange(micro.mask_BT.numel()).view(micro.mask_BT.shape)
        index_BT = index_BT if micro.packing is None else micro.packing.index_BT
        chosen_LRK = torch.full((LAYERS, routing_replay.num_input_tokens(micro), TOP_K), EXPERTS)
        for ids, where, known in zip(micro.input_ids_BT, index_BT, before_last(micro.mask_BT), strict=True):
            length = int(known.sum())
            with torch.no_grad(), tapped(who.routing) as tap:
                assert tap is not None
                who.model.base_model(input_ids=ids[None, : length + 1], use_cache=False)
                chosen_LRK[:, where[:length]] = tap.natural_LRK[:, :-1]
        found.append(chosen_LRK[:, micro.positions_N])
    return found


def test_the_record_is_what_a_pass_of_its_own_chooses(moe: PreTrainedModel) -> None:
    who = replaying(moe, "r2")
    mini = one_mini(who)
    record_old_policy(who, [NOTHING, mini])
    stored = torch.cat([m.old_routes_LNK for m in mini.micro_batches if m.old_routes_LNK is not None], 1)
    assert torch.equal(stored.long(), torch.cat(own_routes(who, mini), 1))
    assert stored.dtype == torch.uint8  # L * K bytes a token


def test_r3_of_the_trainers_own_routes_is_r2(moe: PreTrainedModel) -> None:
    who = replaying(moe, "r3")
    mini = one_mini(who)
    for micro, mine_LNK in zip(mini.micro_batches, own_routes(who, mini), strict=True):
        micro.sampler_routes_LNK = mine_LNK.to(torch.uint8)
    r3, values = trained(who, mini, drifted=True)
    peer = replaying(moe, "r2")
    r2, _ = trained(peer, one_mini(peer), drifted=True)
    assert torch.equal(r3, r2) and values["replay/violations"] == 0


@pytest.mark.parametrize("first", [True, False])
def test_r3_replays_in_the_old_pass_and_the_first_update_too(moe: PreTrainedModel, first: bool) -> None:
    who = replaying(moe, "r3")
    mini = one_mini(who, sampled(random_routes))
    r3, values = trained(who, mini, drifted=False, first=first)
    assert values["ratio/seq_min"] == values["ratio/seq_max"] == 1  # old and current pass used the same experts
    assert values["replay/violations"] == 0 and values["replay/fallback_frac"] == 0
    natural = replaying(moe, "none")
    assert not torch.allclose(r3, trained(natural, one_mini(natural), drifted=False, first=first)[0])
    micro = mini.micro_batches[0]
    alone = token_scores(natural.model, micro.input_ids_BT, micro.mask_BT, 1.0).log_probs_BT
    assert micro.old_log_probs_BT is not None
    assert (micro.old_log_probs_BT - alone)[micro.mask_BT].abs().max() > 1e-3


def test_samples_without_routes_fall_back_and_are_counted(tiny_moe: PreTrainedModel) -> None:
    who = replaying(tiny_moe, "r3")
    batch = sampled(lambda n: random_routes(n) if n % 2 else None)
    mini = one_mini(who, batch)
    values = trained(who, mini, drifted=True)[1]
    tokens = [(int(known.sum()), int(mask.sum())) for m in mini.micro_batches
              for known, mask in zip(before_last(m.mask_BT), m.mask_BT, strict=True)]  # fmt: skip
    missing = sum(loss for n, loss in tokens if n % 2 == 0) / sum(loss for _, loss in tokens)
    assert 0 < missing < 1 and values["replay/fallback_frac"] == pytest.approx(missing)
    assert values["replay/violations"] == 0


def test_engine_and_trainer_are_compared_before_any_update(moe: PreTrainedModel) -> None:
    who = learner(moe, "grpo")
    mini = one_mini(who, sampled(random_routes))
    record_old_policy(who, [NOTHING, mini])
    metrics = routing_replay.sampler_route_metrics([mini], EXPERTS)
    # two random pairs of six experts share 2/3 of an expert, so two thirds of the slots differ
    churn = metrics["moe/sampler_slot_churn"]
    share = float(churn.total().numerator) / float(churn.total().denominator)  # type: ignore[union-attr]
    assert 0.5 < share < 0.8
    for micro in mini.micro_batches:
        micro.sampler_routes_LNK = micro.old_routes_LNK
    assert float(routing_replay.sampler_route_metrics([mini], EXPERTS)["moe/sampler_slot_churn"].total().numerator) == 0  # type: ignore[union-attr]
    assert routing_replay.sampler_route_metrics([NOTHING], EXPERTS) == {}


def shifted(place: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: place(*args).roll(1, 1)


def swapped(place: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: place(*args).flip(0)


def late(place: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Pays no heed to where the tokens stand: rows without their padding."""
    return lambda record, positions, *rest: place(record, torch.arange(len(positions)), *rest)


@pytest.mark.parametrize("broken", [shifted, swapped, late])
@pytest.mark.parametrize("replay", ["r2", "r3"])
def test_a_broken_replay_is_caught(
    moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any], replay: str
) -> None:
    monkeypatch.setattr(routing_replay, "place", broken(routing_replay.place))
    who = replaying(moe, replay)
    values = trained(who, one_mini(who, sampled(random_routes)), drifted=True)[1]
    assert values["replay/violations"] is not None and values["replay/violations"] > 10
    with pytest.raises(GspoError) as caught:
        stop_if_not_replayed([StepMetrics(values)], 1)
    assert caught.value.code == ExitCode.GUARD and "not the recorded ones" in caught.value.why


def test_a_record_that_nobody_replays_is_caught(moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.moe.hooks.RouterTap._replay", lambda *_: None)
    who = replaying(moe, "r2")
    values = trained(who, one_mini(who), drifted=True)[1]
    assert values["replay/violations"] is not None and values["replay/violations"] > 10
