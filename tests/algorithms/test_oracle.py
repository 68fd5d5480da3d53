"""Every registered algorithm against the oracle, in float64: value, denominator, gradient in closed form and by
autograd, clip mask, metrics. Then the oracle against finite differences, so that agreeing with it means something.

B = responses, T = token positions
"""

import dataclasses
import inspect
import math
import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from cases import random_weights, seeded_batches
from oracle import ORACLES
from oracle_batch import Answer, Batch
from tensors import tensor
from torch import Tensor

from gspo_cli import algorithms
from gspo_cli.algorithms import ALGORITHMS, LossInputs, LossOutput
from gspo_cli.algorithms.clip import Clip
from gspo_cli.types import Mean

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
NOT_IN_THE_LOSS = {"gamma", "lam", "value_clip", "critic_lr", "allow_stale", "group_baseline"}

algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))


def oracle_settings(params: Any) -> dict[str, Any]:
    """An algorithm's parameters under the oracle's names."""
    values: dict[str, Any] = {}
    for parameter in dataclasses.fields(params):
        value = getattr(params, parameter.name)
        if isinstance(value, Clip):
            values |= {"low": value.low, "high": value.high}
        elif parameter.name not in NOT_IN_THE_LOSS:
            values[parameter.name] = value
    return values


def other_params(rng: Random, params: Any) -> Any:
    """The same algorithm with every number of its loss drawn anew, from those that it takes."""
    for parameter in dataclasses.fields(params):
        name, value = parameter.name, getattr(params, parameter.name)
        if name in NOT_IN_THE_LOSS:
            continue
        for _ in range(99):
            if name == "dual_clip":
                changed: Any = rng.choice((1.0001, 1.1, 3.0))
            elif isinstance(value, Clip):
                changed = Clip(10 ** rng.uniform(-4, -0.5), 10 ** rng.uniform(-4, -0.3))
            elif isinstance(value, int):
                changed = rng.randint(9, 99)
            else:
                changed = value * rng.choice((rng.uniform(0.1, 0.4), rng.uniform(0.4, 1.3)))
            with suppress(ValueError):  # outside what the algorithm takes, such as a cap below 1
                params = dataclasses.replace(params, **{name: changed})
                break
        else:
            raise AssertionError(f"{name} takes none of the values drawn for it: name one here")
    return params


def loss_of(name: str, batch: Batch, params: Any) -> tuple[LossOutput, Tensor]:
    """The package's loss, and autograd's gradient of its numerator with respect to the log-probabilities."""
    log_probs_BT = tensor(batch.log_probs).requires_grad_()
    inputs = LossInputs(
        log_probs_BT, tensor(batch.old), tensor(batch.advantages), torch.tensor(batch.mask),
        torch.tensor(batch.groups), tensor(batch.sampler), None if batch.weights is None else tensor(batch.weights),
    )  # fmt: skip
    output = ALGORITHMS[name].loss(inputs, params)
    (gradient_BT,) = torch.autograd.grad(output.loss_numerator, log_probs_BT)
    return output, gradient_BT


def check(name: str, batch: Batch, params: Any) -> None:
    expected: Answer = ORACLES[name](batch, **oracle_settings(params))
    output, gradient_BT = loss_of(name, batch, params)

    def same(actual: Tensor, number: Any, of: str) -> None:
        actual, is_number = actual.detach().double(), isinstance(number, float)
        # assert_close is slow, and knows better how to say what differs; so is allclose with numbers
        if is_number and actual.dim() == 0 and math.isclose(actual, number, rel_tol=1e-10, abs_tol=1e-10):
            return
        wanted = tensor(number)
        if actual.shape == wanted.shape and torch.allclose(actual, wanted, **TOLERANCE):
            return
        torch.testing.assert_close(
            actual, wanted, **TOLERANCE, msg=lambda text: f"{of} of {name} with {params} on {batch}:\n{text}"
        )

    same(output.loss_numerator, expected.numerator, "loss numerator")
    same(output.denominator, float(expected.denominator), "denominator")
    same(ALGORITHMS[name].denominator(torch.tensor(batch.mask), params), float(expected.denominator), "denominator()")
    same(output.gradient_weight_BT, expected.weight, "gradient_weight_BT")
    same(-gradient_BT, expected.weight, "autograd's gradient")
    assert not output.gradient_weight_BT.requires_grad
    assert (gradient_BT[tensor(expected.weight) == 0] == 0).all(), (
        f"{name} with {params} on {batch}: a gradient is small instead of 0"
    )
    if expected.clipped is None:
        assert output.clipped_BT is None, f"{name} has no hard clip: clipped_BT must be None"
    else:
        assert output.clipped_BT is not None, f"{name} has a hard clip: clipped_BT must be a mask"
        assert output.clipped_BT.tolist() == expected.clipped, f"clip mask of {name} with {params} on {batch}"
    missing = {metric for metric in expected.metrics if metric.startswith(("clip/", "gate/", "weight/"))}
    missing -= {"clip/dual_frac"} if getattr(params, "dual_clip", None) is None else set()
    assert missing <= output.metrics.keys(), f"{name} measures no {missing - output.metrics.keys()}"
    for metric, value in output.metrics.items():
        assert metric in expected.metrics or not metric.startswith(("clip/", "gate/", "weight/capped")), (
            f"{name} has no {metric}"
        )
        if metric in expected.metrics and isinstance(value, Mean):
            numerator, denominator = expected.metrics[metric]
            same(torch.as_tensor(value.numerator), float(numerator), f"{metric} numerator")
            same(torch.as_tensor(value.denominator), float(denominator), f"{metric} denominator")


def test_every_algorithms_file_is_listed() -> None:
    folder = Path(algorithms.__file__).parent
    files = {file.stem for file in folder.glob("*.py") if re.search("^UNIT = ", file.read_text("utf-8"), re.M)}
    assert files == set(ALGORITHMS), "name the algorithm twice in gspo_cli/algorithms/__init__.py, as its file"


@algorithm
def test_the_defaults_are_the_published_ones(name: str) -> None:
    published = {key: value.default for key, value in inspect.signature(ORACLES[name].formula).parameters.items()}
    del published["batch"]
    assert {"dual_clip": None} | oracle_settings(ALGORITHMS[name].Params()) == {"dual_clip": None} | published


@algorithm
def test_random_cases(name: str) -> None:
    params = ALGORITHMS[name].Params()
    for batch in seeded_batches(100):
        check(name, batch, params)


@algorithm
def test_other_parameters(name: str) -> None:
    rng = Random(1)
    for batch in seeded_batches(100):
        check(name, batch, other_params(rng, ALGORITHMS[name].Params()))


# luspo reads factors on tokens in the padding too, where training has no rubbish
@pytest.mark.parametrize(
    "name", [name for name, one in ALGORITHMS.items() if not one.ONE_ADVANTAGE and name != "luspo"]
)
def test_advantages_per_token(name: str) -> None:
    for batch in seeded_batches(100, token_advantages=True):
        check(name, batch, ALGORITHMS[name].Params())


# for an algorithm with a correction of its own another one is a configuration error; a sequence ratio takes one weight
@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        (name, per_token)
        for name, one in ALGORITHMS.items()
        for per_token in ((False, True) if one.UNIT == "token" else (False,))
        if not one.NEEDS_SAMPLER
    ],
)
def test_correction_weights(name: str, per_token: bool) -> None:
    rng = Random(2)
    for batch in seeded_batches(100):
        weighted = dataclasses.replace(batch, weights=random_weights(rng, batch, per_token))
        check(name, weighted, ALGORITHMS[name].Params())


@pytest.mark.parametrize("name", list(ORACLES))
def test_the_random_cases_reach_every_branch(name: str) -> None:
    reached: dict[str, float] = {}
    for batch in seeded_batches(300):
        for metric, (numerator, denominator) in ORACLES[name](batch).metrics.items():
            reached[metric] = reached.get(metric, 0) + numerator
            if metric == "clip/token_frac":
                reached["not clipped"] = reached.get("not clipped", 0) + denominator - numerator
    assert reached["ratio/saturated_frac"] > 30
    if "clip/token_frac" in reached:
        assert min(reached[key] for key in ("clip/low_frac", "clip/high_frac", "not clipped")) > 30
        assert reached["clip/seq_frac"] > 10
    for metric in reached.keys() & {"weight/capped_frac", "gate/below_half_frac"}:
        assert reached[metric] > 30


STEP = 1e-6


def moved(batch: Batch, i: int, t: int, by: float) -> Batch:
    log_probs = [list(row) for row in batch.log_probs]
    log_probs[i][t] += by
    return dataclasses.replace(batch, log_probs=log_probs)


@pytest.mark.parametrize("name", [name for name, oracle in ORACLES.items() if not oracle.detached])
def test_weight_is_the_slope_of_the_value(name: str) -> None:
    num_compared = 0
    for batch in seeded_batches(40, extreme=False):
        answer = ORACLES[name](batch)
        for i, positions in batch.responses():
            for t in positions:
                up, down = (ORACLES[name](moved(batch, i, t, by)) for by in (STEP, -STEP))
                if up.clipped == answer.clipped == down.clipped:
                    slope = -(up.numerator - down.numerator) / (2 * STEP)
                    assert slope == pytest.approx(answer.weight[i][t], rel=1e-6, abs=1e-7)
                    num_compared += 1
    assert num_compared > 300


@pytest.mark.parametrize("name", ["cispo", "minirl", "reinforce"])
def test_value_is_weight_times_log_prob(name: str) -> None:
    for batch in seeded_batches(40):
        answer = ORACLES[name](batch)
        terms = [answer.weight[i][t] * batch.log_probs[i][t] for i, positions in batch.responses() for t in positions]
        assert answer.numerator == pytest.approx(-math.fsum(terms), rel=1e-12, abs=1e-12)
