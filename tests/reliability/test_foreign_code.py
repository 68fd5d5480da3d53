"""Code that comes with a model: refused with nothing run, unless the command pins what was read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo

from gspo_cli.config import TinyModel
from gspo_cli.models import foreign_code
from gspo_cli.models.foreign_code import allow_code, code_revision
from gspo_cli.models.tiny import build_tiny

MODULE = """
from pathlib import Path
from transformers import Qwen3Config, Qwen3ForCausalLM
from .more import CANARY

Path(CANARY).write_text("run")


class OwnConfig(Qwen3Config):
    model_type = "own"


class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""
SMOKE = Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = ("--set", "task.name='toy:letters'", "--set", "rollout.prompts=4", "--set", "rollout.samples=2", "--set",
         "rollout.max_new_tokens=4", "--set", "train.steps=1", "--set", "eval.bench=[]")  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """What the code writes when it is run."""
    return tmp_path / "canary"


@pytest.fixture
def model(tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose configuration names code of its own, in two files."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(foreign_code, "_allowed", None)
    folder = tmp_path / "model"
    for part in build_tiny(TinyModel(kind="qwen3", hidden=8, layers=1), seed=1):
        part.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    own = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config | own))
    (folder / "modeling_own.py").write_text(MODULE)
    (folder / "more.py").write_text(f"CANARY = {str(canary)!r}\n")
    return folder


def commands(model: Path, out: Path) -> dict[str, list[str]]:
    """Every command that loads a model."""
    return {
        "train": ["train", str(SMOKE), "--model", str(model), *SMALL, "--out", str(out), "--name", "x"],
        "rollout": ["rollout", str(SMOKE), "--model", str(model), *SMALL, "--out", str(out)],
        "eval": ["eval", "benchmarks", str(model), "--limit", "1", "--max-tokens", "2", "--out", str(out)],
    }


@pytest.mark.parametrize("command", ["train", "rollout", "eval"])
def test_it_is_not_run_unasked(model: Path, canary: Path, tmp_path: Path, gspo_here: Gspo, command: str) -> None:
    done = gspo_here(*commands(model, tmp_path / "out")[command])
    assert done.code == 2 and "Traceback" not in done.err
    said = " ".join(done.err.split())
    assert "error: cannot load the model" in said and "why: it comes with Python code of its own" in said
    assert f"--trust-remote-code {code_revision(model)}" in said
    assert not canary.exists() and not list(tmp_path.glob("out/*/*/run.json"))


def test_what_was_read_is_run_and_recorded(model: Path, canary: Path, tmp_path: Path, gspo_here: Gspo) -> None:
    trust = ("--trust-remote-code", code_revision(model))
    done = gspo_here(*commands(model, tmp_path / "out")["train"], *trust)
    assert done.code == 0 and canary.exists(), done.err
    run = tmp_path / "out" / "x" / "gspo-s0"
    assert json.loads((run / "run.json").read_text())["trust_remote_code"] == trust[1]
    longer = ("train", "--resume", run, "--steps", "2", "--allow-change", "train.steps")
    done = gspo_here(*longer)
    assert done.code == 2 and "Python code of its own" in done.err
    done = gspo_here(*longer, *trust)
    assert done.code == 0, done.err
    done = gspo_here("eval", "benchmarks", run, "--limit", "1", "--max-tokens", "2", *trust)
    assert done.code == 0, done.err
    for file in ("more.py", "modeling_own.py"):
        (model / file).write_text((model / file).read_text() + "# changed\n")
        canary.unlink(missing_ok=True)
        done = gspo_here(*commands(model, tmp_path / "out2")["train"], *trust)
        assert done.code == 2 and "is not revision" in done.err and not canary.exists()


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper(), COMMIT + "0", COMMIT + "\n", ""])
def test_only_a_whole_commit_pins_it(model: Path, canary: Path, tmp_path: Path, gspo_here: Gspo, revision: str) -> None:
    for command in ("train", "rollout", "eval"):
        done = gspo_here(*commands(model, tmp_path / "out")[command], "--trust-remote-code", revision)
        assert done.code == 2 and "names no commit" in done.err and not canary.exists()
    done = gspo_here("cold-start", SMOKE, "--out", tmp_path / "cold", "--trust-remote-code", revision)
    assert done.code == 2 and "names no commit" in done.err and not (tmp_path / "cold").exists()


def test_no_command_trusts_what_an_earlier_one_did(model: Path, tmp_path: Path, gspo_here: Gspo) -> None:
    allow_code(code_revision(model))
    assert gspo_here(*commands(model, tmp_path / "out")["rollout"]).code == 2


@pytest.mark.parametrize("key", ["model.trust_remote_code", "trust_remote_code", "model.code_revision"])
def test_a_recipes_key_is_refused_with_the_way(tmp_path: Path, gspo_here: Gspo, key: str) -> None:
    table, _, name = key.rpartition(".")
    file = tmp_path / "mine.toml"
    file.write_text(
        f'extends = "{SMOKE.with_suffix("")}"\n' + (f"[{table}]\n" if table else "") + f'{name} = "{COMMIT}"\n'
    )
    done = gspo_here("train", file, "--out", tmp_path / "out")
    said = " ".join(done.err.split())
    assert done.code == 2 and f"{key!r} is no key of a recipe" in said and "--trust-remote-code REVISION" in said
    assert not (tmp_path / "out").exists()
