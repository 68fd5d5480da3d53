"""Mixtures of experts of every build are trained with volatility and replay, or what they cannot have is named."""

import copy
from pathlib import Path
from typing import Any

import pytest
from expert_walk import experts_of
from family_walk import build, saved
from program import Gspo
from transformers import AutoModelForCausalLM

from gspo_cli.errors import GspoError
from gspo_cli.models.admission import admit
from gspo_cli.moe.routers import find_routing, is_mixture, replayable

TINY: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 99, "max_position_embeddings": 128}


@pytest.mark.parametrize("kind", ["granitemoe", "lfm2_moe"])  # all others: test_every_family_is_right_or_refused
def test_a_mixture_trains_with_volatility_and_replay(kind: str) -> None:
    model = build(kind)
    plain = copy.deepcopy(model)
    admit(model, kind)
    assert experts_of(model, plain) == "volatility, replay"


@pytest.mark.parametrize("kind", ["jamba", "jetmoe", "llama4_text", "zaya"])
def test_routers_of_another_build_are_named(kind: str) -> None:
    model = build(kind)
    assert is_mixture(model) and find_routing(model) is None
    with pytest.raises(GspoError, match=f"algo.replay = 'r2' with {type(model).__name__}"):
        replayable(model, "algo.replay = 'r2'")


@pytest.mark.parametrize("kind", ["phimoe", "inkling_text"])
def test_weights_of_an_unknown_rule_are_named(kind: str) -> None:
    model = build(kind)
    routing = find_routing(model)
    assert routing is not None
    with pytest.raises(GspoError, match=type(routing.gates[0]).__name__):
        replayable(model, "algo.replay = 'r2'")


@pytest.mark.parametrize(
    ("kind", "changes", "mixture"),
    [("doge", {}, False), ("doge", {"is_moe": True}, True), ("gemma4_text", {}, False),
     ("gemma4_text", {"enable_moe_block": True, "top_k_experts": 2}, True)],
)  # fmt: skip
def test_experts_that_are_switched_off_do_not_count(kind: str, changes: dict[str, Any], mixture: bool) -> None:
    config = build(kind).config
    model = AutoModelForCausalLM.from_config(type(config).from_dict(config.to_dict() | changes))
    assert is_mixture(model) == mixture and find_routing(model) is None


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["r3", "none"])
def test_a_mixture_without_known_routers_is_named(gspo_here: Gspo, smoke: Path, tmp_path: Path, replay: str) -> None:
    """Replay that it cannot have writes nothing."""
    folder, out = saved(build("jamba", **TINY | {"num_hidden_layers": 4}), tmp_path / "model"), tmp_path / "out"
    more = ("--steps", "1", "--set", "eval.bench=[]", "--set", f"algo.replay={replay}")
    done = gspo_here("train", smoke, "--model", folder, "--out", out, "--name", "x", *more)
    assert (done.code, (out / "x").exists()) == ((0, True) if replay == "none" else (2, False)), done.err
    assert "the routers of JambaForCausalLM were not found" in done.err
