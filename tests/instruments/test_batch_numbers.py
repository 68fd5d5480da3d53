"""`gspo report batch`: its numbers against plain autograd, the training loop, hand-worked cases and identities."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from batch_files import GROUPS, LIMIT, SAMPLES, TEMPERATURE, Stored, measured, on_samples, plain_log_probs, with_scores
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS, LossInputs
from gspo_cli.algorithms.ops import group_advantage, sum_of_token_means
from gspo_cli.config import AlgoConfig, ModelConfig
from gspo_cli.instruments.batch.data import read_batch
from gspo_cli.instruments.batch.gradients import SKETCH, Sketch, noise
from gspo_cli.instruments.batch.lengths import LengthBucket, RatioSpread, slope
from gspo_cli.instruments.batch.losses import kish
from gspo_cli.instruments.batch.measure import BatchMeasurements
from gspo_cli.instruments.batch.policy import forward, load_sampling_policy
from gspo_cli.instruments.batch.report import FIGURES, draw_all, notes, summary
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.log_probs import token_scores
from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
from gspo_cli.training.step.update import Learner, update

TOKEN_MEANS = [
    name for name, one in ALGORITHMS.items() if one.token_terms is sum_of_token_means and not one.WHOLE_GROUPS
]
"""Algorithms that are one on policy: the group's z-score, and a mean over each response's tokens first."""


@pytest.fixture(scope="module")
def off(off_policy: BatchMeasurements) -> dict[str, Any]:
    return summary(off_policy)


@pytest.fixture(scope="module")
def on(on_policy: BatchMeasurements) -> dict[str, Any]:
    return summary(on_policy)


@pytest.fixture(scope="module")
def oracle(stored: Stored) -> dict[str, tuple[float, torch.Tensor]]:
    """J and its flat gradient by autograd of each algorithm's loss, all rows padded into one pass of the model."""
    rows = [(g.prompt.token_ids, s) for g in stored.batch.groups for s in g.samples]
    width = max(len(p) + len(s.token_ids) for p, s in rows)
    ids_BT = torch.tensor([[*p, *s.token_ids] + [0] * (width - len(p) - len(s.token_ids)) for p, s in rows])
    mask_BT = torch.tensor([[len(p) <= t < len(p) + len(s.token_ids) for t in range(width)] for p, s in rows])

    def log_probs(model: PreTrainedModel) -> torch.Tensor:
        log_probs_BTV = torch.log_softmax(model(ids_BT, use_cache=False).logits.float() / TEMPERATURE, -1)
        found_BT = log_probs_BTV[:, :-1].gather(2, ids_BT[:, 1:, None])[:, :, 0]
        return torch.nn.functional.pad(found_BT, (1, 0))

    with torch.no_grad():
        old_BT = log_probs(stored.start_model)
    now_BT, sampled_BT = log_probs(stored.later_model), torch.zeros(mask_BT.shape)
    sampled_BT[mask_BT] = torch.tensor([x for _, s in rows for x in s.log_probs])
    parameters = list(stored.later_model.parameters())
    rewards_B, groups_B = rewards_and_groups(stored.batch)
    found = {}
    for name, algorithm in ALGORITHMS.items():
        params = algorithm.Params()
        params = replace(params, max_length=LIMIT) if hasattr(params, "max_length") else params
        advantages_B = algorithm.advantage(rewards_B, groups_B, params)
        if algorithm.token_advantages is not None:
            advantages_B = group_advantage(rewards_B, groups_B)
        if algorithm.WHITEN:
            advantages_B = torch.tensor(whitened_rows(advantages_B.tolist(), mask_BT.sum(-1).tolist()))
        output = algorithm.loss(LossInputs(now_BT, old_BT, advantages_B, mask_BT, groups_B, sampled_BT), params)
        objective = -output.loss_numerator / algorithm.denominator(mask_BT, params)
        parts = torch.autograd.grad(objective, parameters, retain_graph=True, materialize_grads=True)
        found[name] = (objective.item(), torch.cat([p.flatten() for p in parts]).double())
    return found


def whitened_rows(advantages: list[float], lengths: list[int]) -> list[float]:
    """(A - mean) / std over all tokens of the rows."""
    tokens = [a for a, n in zip(advantages, lengths, strict=True) for _ in range(n)]
    mean = math.fsum(tokens) / len(tokens)
    std = math.sqrt(math.fsum((a - mean) ** 2 for a in tokens) / (len(tokens) - 1))
    return [(a - mean) / std for a in advantages]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_objective_and_gradient_are_those_of_autograd(
    off: dict[str, Any], oracle: dict[str, tuple[float, torch.Tensor]], name: str
) -> None:
    numbers, (objective, gradient) = off["algorithms"][name], oracle[name]
    assert numbers["objective"] == pytest.approx(objective, rel=1e-5, abs=1e-6)
    assert numbers["gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
    for other, (_, theirs) in oracle.items():
        cosine = float(gradient @ theirs / (gradient.norm() * theirs.norm()))
        assert off["cosine"][name][other] == pytest.approx(cosine, abs=1e-4)


def test_the_two_policies_differ_enough_for_the_clips_to_act(off: dict[str, Any]) -> None:
    clips = {n: a["metrics"].get("clip/token_frac") for n, a in off["algorithms"].items()}
    clipping = {name: hasattr(algorithm.Params(), "clip") for name, algorithm in ALGORITHMS.items()}
    assert {n: value is not None and 0 < value < 1 for n, value in clips.items()} == clipping
    assert off["cosine"]["grpo"]["gspo"] < 0.9


def test_on_policy_all_token_means_share_reinforces_gradient(on: dict[str, Any]) -> None:
    reinforce = on["algorithms"]["reinforce"]
    for name in TOKEN_MEANS:
        numbers = on["algorithms"][name]
        assert on["cosine"][name]["reinforce"] == pytest.approx(1, abs=1e-9)
        for key in ("gradient_norm", "gradient_variance", "effective_tokens", "weight_abs_mean"):
            assert numbers[key] == pytest.approx(reinforce[key], rel=1e-6)
    assert on["cosine"]["dapo"]["reinforce"] < 0.9999


def test_on_policy_no_ratio_moves_and_nothing_clips(on: dict[str, Any]) -> None:
    assert on["ratios"]["token_log_std"] == on["ratios"]["seq_log_std"] == 0
    assert on["ratios"]["slope"] is None
    assert on["against"] is None
    for numbers in (on["algorithms"][name] for name in ALGORITHMS if not ALGORITHMS[name].WHOLE_GROUPS):
        found = {k: v for k, v in numbers["metrics"].items() if k.startswith("clip/") or k == "ratio/outside_frac"}
        assert all(value == 0 for value in found.values())
    assert on["algorithms"]["sapo"]["metrics"]["gate/mean"] == 1


@pytest.mark.parametrize("name", ["grpo", "gspo", "luspo", "minirl", "sapo"])
def test_the_training_loop_gets_the_same_numbers(stored: Stored, off: dict[str, Any], name: str) -> None:
    algorithm, model = ALGORITHMS[name], stored.later_model
    params = algorithm.Params()
    advantages_B = algorithm.advantage(*rewards_and_groups(stored.batch), params)
    (mini_batch,) = make_mini_batches(stored.batch, advantages_B, Batching(1, 256), model.device)
    assert len(mini_batch.micro_batches) > 2
    with torch.no_grad():
        for micro in mini_batch.micro_batches:
            scores = token_scores(stored.start_model, micro.input_ids_BT, micro.mask_BT, TEMPERATURE)
            micro.old_log_probs_BT = scores.log_probs_BT
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    learner = Learner(model, optimizer, algorithm, params, AlgoConfig(name=name), TEMPERATURE, grad_clip=1e9)
    logged = update(learner, mini_batch, lr=0.0, first=False).result().values
    numbers = off["algorithms"][name]
    assert -numbers["objective"] == pytest.approx(logged["loss"], rel=1e-5, abs=1e-6)
    assert numbers["gradient_norm"] == pytest.approx(logged["grad/norm"], rel=1e-4)
    for metric, value in numbers["metrics"].items():
        assert value == pytest.approx(logged[metric], rel=1e-4, abs=1e-6), metric
    for metric in ("token_log_std", "seq_log_std", "within_seq_log_var"):
        assert off["ratios"][metric] == pytest.approx(logged[f"ratio/{metric}"], rel=1e-4)


def test_lengths_cover_the_batch_in_octaves(stored: Stored, off: dict[str, Any]) -> None:
    lengths = [len(s.token_ids) for g in stored.batch.groups for s in g.samples]
    parts = off["lengths"]
    assert [(p["low"], p["high"]) for p in parts] == [(1, 1), (2, 3), (4, 7), (8, 15), (16, 31)]
    for part in parts:
        inside = [n for n in lengths if part["low"] <= n <= part["high"]]
        assert part["spread"]["responses"] == len(inside)
        assert part["spread"]["tokens"] == sum(inside)
    for name in ALGORITHMS:
        shares = [part["algorithms"][name]["weight_share"] for part in parts]
        assert sum(shares) == pytest.approx(1, abs=1e-12)
        clipped = off["algorithms"][name]["metrics"].get("clip/token_frac")
        if clipped is not None:
            parts_clipped = [p["algorithms"][name]["clip_token_frac"] * p["spread"]["tokens"] for p in parts]
            assert sum(parts_clipped) == pytest.approx(clipped * off["tokens"], rel=1e-9)


def test_the_slope_of_independent_tokens_is_minus_a_half() -> None:
    parts = [
        LengthBucket(
            n, 2 * n - 1, RatioSpread(responses, n * responses, float(n), 0.1, 0.1 / math.sqrt(n), None, 0.0), {}
        )
        for n, responses in ((4, 5), (16, 50), (64, 7))
    ]
    assert slope(parts) == pytest.approx(-0.5, abs=1e-12)
    few = replace(parts[0], spread=replace(parts[0].spread, responses=4, seq_log_std=9.0))
    assert slope([few, *parts[1:]]) == pytest.approx(-0.5, abs=1e-12)
    assert slope(parts[:1]) is None


def test_kish_by_hand() -> None:
    assert kish(torch.tensor([0.5, -0.5, 0.5, 0.0])) == pytest.approx(3)  # (1.5)^2 / 0.75
    assert kish(torch.tensor([3.0, 1.0])) == pytest.approx(1.6)  # 16 / 10
    assert kish(torch.zeros(3)) is None


def test_noise_is_the_variance_of_a_mean() -> None:
    gradients_GK = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.3
    # sum_G n_G / sum_G d_G with equal d is the mean over groups: its variance is s^2 / G
    expected = float(gradients_GK.var(0).sum()) / 40
    squared_norm = float(gradients_GK.mean(0).square().sum())
    found = noise(4 * gradients_GK, torch.full((40,), 4.0, dtype=torch.float64), squared_norm)
    assert found.variance == pytest.approx(expected, rel=0.03)  # 2000 draws of 30 dimensions: 0.6 %
    assert found.share == pytest.approx(found.variance / squared_norm)
    assert found.scale == pytest.approx(40 * found.variance / (squared_norm - found.variance))


def test_noise_that_cannot_be_told_is_none() -> None:
    gradients_GK = torch.eye(8, dtype=torch.float64)  # orthogonal groups: no signal beyond the noise
    ones_G = torch.ones(8, dtype=torch.float64)
    assert noise(gradients_GK, ones_G, squared_norm=1 / 8).scale is None
    same_GK = torch.ones(7, 3, dtype=torch.float64)
    assert noise(same_GK, ones_G[:7], squared_norm=3.0) == (few := noise(same_GK, ones_G[:7], 3.0))
    assert few.variance == pytest.approx(0, abs=1e-12) and few.scale is None  # fewer than 8 groups
    assert noise(same_GK[:1], ones_G[:1], 3.0).variance is None
    assert noise(0 * same_GK, ones_G[:7], 0.0).share is None


def test_a_sketch_keeps_inner_products() -> None:
    generator = torch.Generator().manual_seed(2)
    x, noise_ = (torch.randn(300_000, generator=generator) for _ in range(2))
    y = 0.6 * x + 0.8 * noise_
    sketch = Sketch(torch.nn.Linear(300_000, 1, bias=False))
    sx, sy = sketch.of((x[:1000], x[1000:])), sketch.of((y,))
    size = float(x.norm() * y.norm())
    assert float(sx @ sy) / size == pytest.approx(float(x @ y) / size, abs=4 / math.sqrt(SKETCH))
    small = Sketch(torch.nn.Linear(100, 1, bias=False))
    assert float(small.of((x[:100],)) @ small.of((y[:100],))) == pytest.approx(float(x[:100] @ y[:100]), rel=1e-5)


def test_the_noise_of_a_batch_is_that_of_its_group_gradients(stored: Stored, off_policy: BatchMeasurements) -> None:
    """REINFORCE has weights that do not depend on ratios: its group gradients are easy to write down."""
    parameters, parts = list(stored.later_model.parameters()), []
    advantages = iter(group_advantage(*rewards_and_groups(stored.batch)).tolist())
    for group in stored.batch.groups:
        terms = [
            next(advantages) * plain_log_probs(stored.later_model, group.prompt.token_ids, s.token_ids).mean()
            for s in group.samples
        ]
        gradient = torch.autograd.grad(torch.stack(terms).sum(), parameters, materialize_grads=True)
        parts.append(torch.cat([g.flatten() for g in gradient]).double())
    gradients_GP = torch.stack(parts)
    assert gradients_GP.shape[1] < SKETCH  # so the sketch is exact
    found = off_policy
    index = list(ALGORITHMS).index("reinforce")
    sketch_GK = found.gradients.sketch_AGK[index]
    torch.testing.assert_close(sketch_GK @ sketch_GK.T, gradients_GP @ gradients_GP.T, rtol=1e-3, atol=1e-3)
    variance = float((gradients_GP / SAMPLES).var(0).sum()) / GROUPS
    numbers = summary(found)["algorithms"]["reinforce"]
    assert numbers["gradient_variance"] == pytest.approx(variance, rel=0.05)
    assert numbers["noise_share"] == pytest.approx(numbers["gradient_variance"] / numbers["gradient_norm"] ** 2)


def test_groups_without_spread_give_no_gradient_and_strict_json(stored: Stored, tmp_path: Path) -> None:
    file = stored.rewrite(tmp_path, with_scores(stored.batch, [1.0] * SAMPLES))
    flat = measured(stored, file, against=True)
    found = summary(flat)
    json.dumps(found, allow_nan=False)
    assert any(f"{GROUPS} of {GROUPS} groups have equal rewards" in note for note in notes(flat))
    for name, numbers in found["algorithms"].items():
        if ALGORITHMS[name].EVERY_ROW:
            continue
        assert numbers["gradient_norm"] == 0
        assert numbers["noise_share"] is numbers["weight_quantiles"] is numbers["effective_tokens"] is None
    assert found["cosine"]["grpo"]["grpo"] is None


def test_unscored_responses_have_no_weight_and_do_not_count(stored: Stored, tmp_path: Path) -> None:
    partly = measured(stored, stored.rewrite(tmp_path, with_scores(stored.batch, [1.0, None, 0.0, 0.0])))
    assert any(f"{GROUPS} responses are unscored" in note for note in notes(partly))
    # A = (r - 1/3) / sqrt(1/3) over the three scored ones: |dJ/dl| summed over a response's tokens is |A| / N
    weights_B = partly.losses["gspo"].weight_BT.sum(-1)[:SAMPLES] * GROUPS * (SAMPLES - 1)
    third = 3**-0.5
    assert weights_B.tolist() == pytest.approx([2 * third, 0, -third, -third], rel=1e-6)


def test_the_generation_limit_is_known_from_responses_that_it_cut(stored: Stored, tmp_path: Path) -> None:
    assert read_batch(stored.file).max_length == (LIMIT, True)
    stopped = on_samples(stored.batch, lambda s: replace(s, finish="stop"))
    limit, known = read_batch(stored.rewrite(tmp_path, stopped)).max_length
    assert (limit, known) == (max(len(s.token_ids) for g in stored.batch.groups for s in g.samples), False)


def test_mixed_rows_keep_their_groups(stored: Stored, off: dict[str, Any], tmp_path: Path) -> None:
    table = pq.read_table(stored.file)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(1)).tolist()
    pq.write_table(table.take(order), tmp_path / "mixed.parquet")
    found = summary(measured(stored, tmp_path / "mixed.parquet", against=True))
    for name in ALGORITHMS:
        ours, theirs = off["algorithms"][name], found["algorithms"][name]
        assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-5)
        assert ours["gradient_variance"] == pytest.approx(theirs["gradient_variance"], rel=0.2)  # other draws


def test_a_policy_that_sampled_in_bfloat16_is_known(stored: Stored, tmp_path: Path) -> None:
    model, _ = load_policy(ModelConfig(path=str(stored.start), dtype="bfloat16"), stored.start)
    file = stored.rewrite(tmp_path, model_sha256=weights_hash(model))
    policy = load_sampling_policy(str(stored.start), read_batch(file))
    assert policy.model.dtype == torch.bfloat16
    assert policy.sha256 == weights_hash(model)


def test_gspo_token_is_gspo_on_the_batch(off: dict[str, Any], on: dict[str, Any]) -> None:
    for found in (off, on):
        form = found["token_form"]
        assert form["masks_equal"] and max(form["loss"], form["gradient"]) <= 1e-12
    assert off["algorithms"]["gspo"]["metrics"]["clip/token_frac"] > 0
    assert on["length_noise"] is None  # every ratio is 1, so there is nothing to tell apart


def test_noise_by_length_is_that_of_each_responses_gradient(off_policy: BatchMeasurements, off: dict[str, Any]) -> None:
    found = off_policy
    by_length = off["length_noise"]
    assert len(by_length["lengths"]) >= 2 and sum(by_length["responses"]) <= GROUPS * SAMPLES
    octave = int(by_length["lengths"][-1]).bit_length() - 1
    rows = [
        i for i, r in enumerate(found.batch.responses)
        if len(r.token_ids).bit_length() - 1 == octave and found.losses["reinforce"].advantages_B[i] != 0
    ]  # fmt: skip
    assert len(rows) == by_length["responses"][-1]
    assert found.later is not None
    model = found.later.model
    for name in ("grpo", "reinforce"):
        gradients = []
        for row in rows:
            model.zero_grad()
            weight_T = found.losses[name].weight_BT[row, : len(found.batch.responses[row].token_ids)]
            (forward(model, found.batch, [row]).double() * weight_T).sum().backward()
            gradients.append(torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None]))
        grid = torch.stack(gradients)
        exact = float((grid - grid.mean(0)).square().sum() / (len(rows) - 1))
        assert by_length["noise"][name][-1] == pytest.approx(exact, rel=0.05), name
    assert len({value for value in by_length["slopes"].values() if value is not None}) >= 2


@pytest.fixture(scope="module")
def drawn(off_policy: BatchMeasurements, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    draw_all(off_policy, ["a remark"], folder)
    return folder


def test_each_figure_proves_its_files(drawn: Path) -> None:
    for name in FIGURES:
        side = json.loads((drawn / f"{name}.json").read_text())
        csv = (drawn / f"{name}.csv").read_bytes()
        assert side["csv"] == {"bytes": len(csv), "sha256": hashlib.sha256(csv).hexdigest()}
        assert side["notes"][-1] == "a remark" and (drawn / f"{name}.png").is_file()
        assert hashlib.sha256((drawn / f"{name}.json").read_bytes()).hexdigest() in (drawn / f"{name}.svg").read_text()


def test_histograms_count_everything_once(off_policy: BatchMeasurements, drawn: Path) -> None:
    table = pd.read_csv(drawn / "batch-ratios.csv")
    counts = table.groupby(["panel", "series"])["n"].sum()
    assert counts["tokens", "all"] == off_policy.spread.tokens
    assert counts["responses", "all"] == len(off_policy.batch.responses)
    grpo, gspo = (off_policy.losses[name].output.clipped_BT for name in ("grpo", "gspo"))
    assert grpo is not None and gspo is not None
    assert counts["tokens", "clipped"] == int(grpo.sum()) > 0
    assert counts["responses", "clipped"] == int(gspo.any(-1).sum()) > 0
    for (panel, _), part in table.groupby(["panel", "series"]):
        assert (part["low"].to_numpy()[1:] == part["high"].to_numpy()[:-1]).all()
        low, high = (np.log(0.8), np.log(1.27)) if panel == "tokens" else (np.log(1 - 3e-4), np.log(1 + 4e-4))
        assert part["low"].iloc[0] < low and part["high"].iloc[-1] > high  # the band is on the axis
    clipped = table[(table["panel"] == "tokens") & (table["series"] == "clipped") & (table["n"] > 0)]
    assert not ((clipped["low"] > np.log(0.8)) & (clipped["high"] < np.log(1.27))).any()


def test_weights_are_those_of_the_widest_response(off_policy: BatchMeasurements, drawn: Path) -> None:
    table = pd.read_csv(drawn / "batch-weights.csv").pivot(index="x", columns=["algorithm", "series"], values="y")
    scores = off_policy.scores
    log_w_BT = np.where(scores.mask_BT, scores.now_BT - scores.old_BT, np.nan)
    row = int(np.nanargmax(np.nanvar(log_w_BT, axis=1)))
    log_w_T = log_w_BT[row][scores.mask_BT[row].numpy()]
    advantage = float(off_policy.losses["grpo"].advantages_B[row])
    keep = log_w_T <= np.log(1.27) if advantage > 0 else log_w_T >= np.log(0.8)
    assert list(table.index) == list(range(1, len(log_w_T) + 1))
    np.testing.assert_allclose(table["grpo", "ratio"], np.exp(log_w_T), rtol=1e-9)
    np.testing.assert_allclose(table["grpo", "weight"], np.where(keep, np.exp(log_w_T), 0), rtol=1e-9)
    s = float(np.exp(log_w_T.mean()))
    np.testing.assert_allclose(table["gspo", "ratio"], s, rtol=1e-9)
    clipped = s > 1 + 4e-4 if advantage > 0 else s < 1 - 3e-4
    np.testing.assert_allclose(table["gspo", "weight"], 0 if clipped else s, rtol=1e-9)
