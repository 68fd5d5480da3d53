"""What an engine lacks is said before anything is loaded."""

import sys
from typing import Any

import pytest

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import GspoError
from gspo_cli.rollout.engine import check_engine

OWN = {"engine": "vllm", "vllm": {"python": sys.executable}}
SERVER = {"engine": "vllm-server", "vllm": {"url": "http://127.0.0.1:8000"}}


def check(table: dict[str, Any], device: str = "cpu", routes: bool = False, trains: bool = False,
          head_dim: int | None = 32) -> None:  # fmt: skip
    check_engine(RolloutConfig.model_validate(table), device, routes, trains, head_dim)


@pytest.mark.parametrize(
    ("table", "given", "message", "hint"),
    [
        (SERVER, {"trains": True, "device": "cuda"}, "needs vLLM beside the trainer", "gspo[vllm]"),
        ({"engine": "vllm-server"}, {}, "needs rollout.vllm.url", "--set rollout.vllm.url="),
        (OWN, {"routes": True}, "which experts it chose on a CPU", "algo.replay = 'r3'"),
        (SERVER, {"routes": True}, "which experts it chose", "algo.replay = 'r3'"),
        ({"engine": "vllm"}, {}, "needs rollout.vllm.python", "docs/vllm.md"),
        ({"engine": "vllm", "vllm": {"python": "/no/such"}}, {}, "is not a program", "docs/vllm.md"),
        (OWN, {"head_dim": 16}, "attention heads are 16 wide", "head_dim=32"),
        ({"engine": "absent:engine"}, {}, "cannot load 'absent:engine'", "module:attribute"),
        ({"compile": True}, {"routes": True}, "rollout.compile with recorded expert choices", "algo.replay = 'r3'"),
        ({"engine": "vllm", "compile": True}, {}, "rollout.compile with engine vllm", "leave out rollout.compile"),
        ({"engine": "faulty_engine:BACKEND"}, {}, "has no '__call__'", "docs/extending.md"),
    ],
)
def test_what_is_lacking_is_named(table: dict[str, Any], given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(GspoError, match=message) as caught:
        check(table, **given)
    assert hint in caught.value.hint


def test_what_is_there_passes() -> None:
    check(OWN, trains=True)
    check(SERVER, trains=True)
    check({"engine": "vllm"}, device="cuda", routes=True, trains=True, head_dim=16)
    check({"engine": "transformers"}, routes=True, trains=True, head_dim=16)
    check({"engine": "transformers", "compile": True}, trains=True)
