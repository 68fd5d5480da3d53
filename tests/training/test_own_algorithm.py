"""Somebody's own algorithm is tried on four responses before a study begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from program import Gspo

from gspo_cli.algorithms import ALGORITHMS, AlgorithmSpec, grpo
from gspo_cli.errors import GspoError
from gspo_cli.training.study.arms import checked_names
from gspo_cli.training.study.trial import try_algorithm


def own(**changes: Any) -> Any:
    """GRPO with some of its functions replaced."""
    return AlgorithmSpec.of(SimpleNamespace(**vars(grpo) | changes))


def loss(**changes: Any) -> Any:
    """GRPO's loss with something else in its output."""
    return lambda *arguments, **named: replace(grpo.loss(*arguments, **named), **changes)


def former(log_probs_BT, old_log_probs_BT, advantages, mask_BT, params, *, weights=None):  # type: ignore[no-untyped-def]
    """The signature that losses once had."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_shipped_ones_pass(name: str) -> None:
    checked_names(name, ALGORITHMS[name])
    try_algorithm(name, ALGORITHMS[name], ALGORITHMS[name].Params())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"advantage": lambda *_: None}, "advantage() is None"),
        ({"advantage": lambda r, *_: r[:-1]}, "advantage() is a tensor of shape [3]"),
        ({"advantage": lambda r, *_: r.tolist()}, "advantage() is of type list"),
        ({"advantage": lambda r, *_: r / 0}, "advantage() is [inf, nan, inf, inf]"),
        ({"advantage": lambda r, *_: r.foo}, "failed in advantage()"),
        ({"denominator": lambda *_: "3"}, "denominator() is of type str"),
        ({"token_terms": lambda t, _: t}, "token_terms() is a tensor of shape [4, 3]"),
        ({"loss": lambda i, _: i.foo}, "failed in loss()"),
        (
            {"loss": former},
            "loss(log_probs_BT, old_log_probs_BT, advantages, mask_BT, params, weights) is not loss(inputs",
        ),
        ({"loss": lambda *_, **__: None}, "loss() is None"),
        ({"loss": loss(loss_numerator=torch.tensor(1.0))}, "loss_numerator is a tensor without a gradient"),
        ({"loss": loss(gradient_weight_BT=torch.ones(4))}, "gradient_weight_BT is a tensor of shape [4]"),
        ({"loss": loss(clipped_BT=False)}, "clipped_BT is of type bool"),
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


def test_nothing_is_written(gspo_here: Gspo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from gspo_cli.algorithms.grpo import *\nUNIT, advantage = 'token', lambda r, g, p: r.x\n"
    )
    done = gspo_here("train", "--algo", "grpo,mine:", "--out", "out")
    assert done.code == 2 and "mine.py, line 2" in done.err and not (tmp_path / "out").exists()
