"""Code that comes with a model: refused with nothing run, unless the command pins what was read. Files of a hostile
model that could run code, read other files or fill the memory: refused by every command that loads a model."""

import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Gspo, ok

from gspo_cli.config import TinyModel
from gspo_cli.errors import GspoError
from gspo_cli.models import remote_code
from gspo_cli.models.files import check_model_folder
from gspo_cli.models.remote_code import allow_code, code_revision
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A harmless model; no command has allowed any code."""
    monkeypatch.setattr(remote_code, "_allowed", None)
    for part in build_tiny(TinyModel(kind="qwen3", hidden=8, layers=1), seed=1):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def model(folder: Path, tmp_path: Path, canary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, whose configuration names code of its own, in two files."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
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
    assert "error: cannot load the model" in said and "why: it comes with its own Python code" in said
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
    assert done.code == 2 and "its own Python code" in done.err
    ok(gspo_here(*longer, *trust))
    done = ok(gspo_here("eval", "benchmarks", run, "--limit", "1", "--max-tokens", "2", *trust))
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
    for given in ((file,), (SMOKE, "--set", f"{key}='{COMMIT}'")):
        done = gspo_here("train", *given, "--out", tmp_path / "out")
        said = " ".join(done.err.split())
        assert done.code == 2 and f"a recipe cannot set {key!r}" in said and "--trust-remote-code REVISION" in said
        assert not (tmp_path / "out").exists()


class Evil:
    """Pickled, it is a command that leaves the canary behind when it is read."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def pickled_weights(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(canary)))


def pickle_named_safetensors(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Evil(canary)))


def index_to_pickled_weights(folder: Path, canary: Path) -> None:
    pickled_weights(folder, canary)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def tokenizer_with_code(folder: Path, canary: Path) -> None:
    (folder / "tok.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).write_text('run')\n")
    path = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": ["tok.Own", "tok.Own"]}, "tokenizer_class": "Own"}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))


def huge_header(folder: Path, _canary: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes((1 << 40).to_bytes(8, "little") + weights.read_bytes()[8:])


def header_of_nesting(folder: Path, _canary: Path) -> None:
    header = b'{"a":' * 100_000
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def weights_beyond_the_end(folder: Path, _canary: Path) -> None:
    tensor = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    header = json.dumps({"model.norm.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def link_out(name: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, canary: Path) -> None:
        secret = canary.with_name("secret")
        if (folder / name).exists():
            (folder / name).rename(secret)
        else:
            secret.write_text("a secret")
        (folder / name).symlink_to(secret)

    return make


def index_out_of_the_folder(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").rename(canary.with_name("outside.safetensors"))
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def endless_vocabulary(folder: Path, _canary: Path) -> None:
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    table["model"]["vocab"]["a"] = 1 << 31
    path.write_text(json.dumps(table))


HOSTILE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "pickled weights": (pickled_weights, "are pickled"),
    "a pickle named safetensors": (pickle_named_safetensors, "model.safetensors is damaged"),
    "an index to pickled weights": (index_to_pickled_weights, "are pickled"),
    "a huge header": (huge_header, "model.safetensors is damaged"),
    "a deep header": (header_of_nesting, "model.safetensors is damaged"),
    "weights beyond the end": (weights_beyond_the_end, "model.safetensors is damaged"),
    "linked weights": (link_out("model.safetensors"), "is a symbolic link to"),
    "a linked configuration": (link_out("config.json"), "is a symbolic link to"),
    "a linked chat template": (link_out("chat_template.jinja"), "is a symbolic link to"),
    "an endless vocabulary": (endless_vocabulary, "numbers a token 2,147,483,648"),
    "an index that leads out": (index_out_of_the_folder, "not in its folder"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_model_is_refused_with_nothing_run(
    folder: Path, tmp_path: Path, canary: Path, gspo_here: Gspo, case: str
) -> None:
    change, reason = HOSTILE[case]
    change(folder, canary)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for command in commands(folder, tmp_path / "out").values():
        done = gspo_here(*command)
        said = " ".join(done.err.split())
        assert done.code == 2 and "Traceback" not in done.err, done.err
        assert [part for part in ("error: ", "why: ", "do: ") if part not in said] == []
        assert reason in said.replace("- ", "-")
        assert "a secret" not in done.err
    assert not canary.exists() and not list(tmp_path.glob("out/*/*/run.json"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB: no gigabyte was taken


def test_a_tokenizers_code_is_left_alone_where_there_is_a_class_of_transformers(
    model: Path, canary: Path, tmp_path: Path, gspo_here: Gspo
) -> None:
    config = json.loads((model / "config.json").read_text())
    plain = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "auto_map"} | plain))
    tokenizer_with_code(model, canary)
    assert gspo_here(*commands(model, tmp_path / "out")["rollout"]).code == 0
    assert not canary.exists()


def test_a_plan_never_asks_whether_to_run_code(model: Path, canary: Path, gspo_here: Gspo) -> None:
    done = gspo_here("train", SMOKE, "--model", model, "--dry-run")
    assert done.code == 2 and "Do you wish" not in done.out + done.err
    assert not canary.exists()


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    """`models--x/snapshots/COMMIT/config.json` is a link to `models--x/blobs/HASH`."""
    snapshot, blobs = tmp_path / "models--x/snapshots" / COMMIT, tmp_path / "models--x/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "hash").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/hash")
    check_model_folder(snapshot)
    (snapshot / "other").symlink_to(tmp_path)
    with pytest.raises(GspoError, match="symbolic link"):
        check_model_folder(snapshot)
