"""Fixtures that several test folders share: caches of their own, tiny models, the program, the shared data."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# of the programs that tests start, too: small tensors are quickest, and repeatable, with one thread
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from program import Done, Forked, Gspo, Spawned, ok
from typer.main import get_command
from typer.testing import CliRunner

from gspo_cli.cli.main import app

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # slow to import; the process that hands out the tests needs it not

TESTS = Path(__file__).parent
# the same cases in every run, so that a change is judged by nothing else; results/programs/file_fuzz.py draws new ones
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m reliability` looks into its own folder alone: reading all the others would take it a tenth of its time."""
    others = collection_path.parent == TESTS and collection_path.name != "reliability"
    return True if others and config.option.markexpr == "reliability" else None


def pytest_sessionstart() -> None:
    """What the imports make stays, so no garbage collection looks at it, then or later: a tenth of all time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """See `pytest_sessionstart`; no fork copies it either."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tiny_moe() -> PreTrainedModel:
    """A two-layer Qwen3-MoE with random weights and the character vocabulary, in eval mode; leave it unchanged."""
    import torch

    from gspo_cli.config import TinyModel
    from gspo_cli.models.tiny import build_tiny

    model, _ = build_tiny(TinyModel(hidden=16, layers=2, experts=6, top_k=2), seed=1)
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # far from uniform, so that a wrong position shows
    return model.eval()


@pytest.fixture(scope="session")
def tiny_dense() -> PreTrainedModel:
    """A two-layer dense Qwen3 of the same size."""
    from gspo_cli.config import TinyModel
    from gspo_cli.models.tiny import build_tiny

    return build_tiny(TinyModel(kind="qwen3", hidden=16, layers=2), seed=1)[0].eval()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Caches that begin empty and that pytest's processes share, so that a cold start is built once and none is left
    behind; and no way to the hub."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GSPO_CACHE", str(folder))
        patch.setenv("HF_DATASETS_CACHE", str(folder / "datasets"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        for name in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session")
def smoke() -> Path:
    """A recipe that trains in about a second."""
    return TESTS / "recipes_for_tests" / "smoke.toml"


@pytest.fixture(scope="session")
def gspo() -> Gspo:
    """Runs the program as a process of its own: `gspo("train", recipe, NO_COLOR="1")`."""

    return lambda *args, **env: Spawned(*args, **env).wait()


@pytest.fixture(scope="session")
def gspo_forked() -> Gspo:
    """The same in a fork of this process, which saves its imports."""
    return lambda *args, **env: Forked(*args, **env).wait()


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """A run's settings of torch are put back, so that tests may come in any order; hypothesis wants small floats."""
    yield
    if (torch := sys.modules.get("torch")) is None:
        return
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # also imports what each fork would import on its own
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session", autouse=True)
def parsers() -> Iterator[None]:
    """A command line's parser is built once, not for each command that a test runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


@pytest.fixture
def gspo_here() -> Gspo:
    """Runs the program within this process, which saves its imports."""

    def run(*args: str | Path) -> Done:
        result = CliRunner().invoke(app, [*map(str, args)])
        return Done(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def trained(gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`results/demo`, a study of two complete runs of the smoke recipe; leave it unchanged."""
    out = tmp_path_factory.mktemp("trained") / "results"
    ok(gspo_forked("train", smoke, "--algo", "grpo,gspo", "--out", out, "--name", "demo", "-q"))
    return out / "demo"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that the repository does not hold."""
    folder = Path(os.environ.get("GSPO_TEST_DATA") or TESTS.parent.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"shared data folder not found: {folder}")
    return folder
