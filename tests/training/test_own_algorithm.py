"""Somebody's own algorithm is tried on four responses before a study begins."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec, grpo
from gspo_cli.errors import GspoError
from gspo_cli.training.study.arms import checked_names, refuse_slips
from gspo_cli.training.study.trial import try_algorithm
from gspo_cli.types import Mean


def own(**changes: Any) -> Any:
    """GRPO with some of its functions replaced."""
    return AlgorithmSpec.of(SimpleNamespace(**vars(grpo) | changes))


def loss(**changes: Any) -> Any:
    """GRPO's loss with something else in its output."""
    return lambda *arguments, **named: replace(grpo.loss(*arguments, **named), **changes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_shipped_ones_pass(name: str) -> None:
    checked_names(name, ALGORITHMS[name])
    try_algorithm(name, ALGORITHMS[name], ALGORITHMS[name].Params())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"advantage": lambda *_: None}, "advantage() is None"),
        ({"advantage": lambda r, *_: r[:-1]}, "advantage() is a tensor of shape [3]"),
        ({"advantage": lambda r, *_: r / 0}, "advantage() is [inf, nan, inf, inf]"),
        ({"advantage": lambda r, *_: r.foo}, "failed in advantage()"),
        ({"denominator": lambda *_: "3"}, "denominator() is of type str"),
        ({"token_terms": lambda t, _: t}, "token_terms() is a tensor of shape [4, 3]"),
        ({"loss": lambda i, _: i.foo}, "failed in loss()"),
        ({"loss": lambda _a, _b, _c, *, _d=None: 0}, "loss(_a, _b, _c, _d) is not loss(inputs"),
        ({"loss": loss(loss_numerator=torch.tensor(1.0))}, "loss_numerator is a tensor without a gradient"),
        ({"loss": loss(gradient_weight_BT=torch.ones(4))}, "gradient_weight_BT is a tensor of shape [4]"),
        ({"loss": loss(metrics={"my/metric": Mean(1, 2)})}, "a metric is 'my/metric'"),
        ({"Params": SimpleNamespace}, "Params is not a dataclass"),
        ({"UNIT": "word"}, "UNIT is neither"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], said: str) -> None:
    algorithm = own(**changes)
    with pytest.raises(GspoError) as caught:
        checked_names("mine:", algorithm)
        try_algorithm("mine:", algorithm, grpo.Params())
    assert said in caught.value.message and "extending.md" in caught.value.hint


@pytest.mark.parametrize(("given", "meant"), [("WHOLE_GROUP", "WHOLE_GROUPS"), ("NEED_SAMPLER", "NEEDS_SAMPLER")])
def test_a_slip_in_an_optional_name_is_named(given: str, meant: str) -> None:
    refuse_slips("mine:", SimpleNamespace(**vars(grpo), LOWEST=1, UNITS="nat"))
    with pytest.raises(GspoError) as caught:
        refuse_slips("mine:", SimpleNamespace(**vars(grpo), **{given: True}))
    assert given in caught.value.message and repr(meant) in caught.value.hint
