"""What is not to be trusted: names, links, recipes, secrets in the environment."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from program import Gspo, tree
from safetensors.torch import load_file, save_file

from gspo_cli.config import ModelConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import load_policy
from gspo_cli.runlog import fs
from gspo_cli.runlog.folder import study_folder

CANARY = "hf_CANARY0123456789abcdefghijklmnop"
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GSPO_SOMETHING_NEW")
BAD_NAMES = [
    "../x", "/abs", "a/b", "a\\b", "..", ".", "", "a\0b", "a\n", "a" * 300, "-x", ".hidden", "end.", "\u0430bc", "a b",
    "con", "NUL", "lpt1.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GspoError) as caught:
        study_folder(tmp_path, name, "recipe")
    assert caught.value.code is ExitCode.USER_ERROR
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["study", "a.b_c-1", "0", "console"])
def test_an_ordinary_name_is_taken(tmp_path: Path, name: str) -> None:
    assert study_folder(tmp_path, name, "recipe") == tmp_path / name


@pytest.mark.parametrize("where", ["metrics.jsonl", "checkpoints/step-000009", "rollouts/step_000009.parquet"])
def test_a_link_in_a_run_folder_is_refused(start: Path, ram: Path, where: str) -> None:
    run = toy.train(toy.recipe(start), ram / "study")
    victim = ram / "victim"
    victim.write_text("precious")
    (run / where).unlink(missing_ok=True)
    (run / where).symlink_to(victim)
    with pytest.raises(GspoError, match="symbolic link") as caught:
        toy.train(toy.recipe(start), ram / "study", {"train": {"steps": 3}}, ("train.steps",))
    assert caught.value.code is ExitCode.STORAGE
    assert victim.read_text() == "precious"


def test_a_line_is_never_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(GspoError):
        fs.append_lines(tmp_path / "log", ["line"])
    assert (tmp_path / "victim").read_text() == "precious"


def test_deleting_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("precious")
    (tmp_path / "doomed").mkdir()
    (tmp_path / "doomed" / "link").symlink_to(tmp_path / "victim")
    fs.remove_tree(tmp_path / "doomed")
    assert (tmp_path / "victim" / "file").read_text() == "precious" and not (tmp_path / "doomed").exists()


@pytest.mark.parametrize("damage", ["missing", "other shape"])
def test_a_weight_that_is_not_in_the_files_is_not_invented(start: Path, tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(start, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    tensors = {k: v for k, v in tensors.items() if k != name} | ({} if damage == "missing" else {name: torch.ones(3)})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GspoError, match=r"not in its files|cannot load") as caught:
        load_policy(ModelConfig(path=str(folder)), folder)
    assert caught.value.code is ExitCode.USER_ERROR


Tensors = dict[str, torch.Tensor]
Q = "model.layers.0.self_attn.q_proj"


def another_layer(weights: Tensors) -> Tensors:
    return {n.replace(".0.", ".1."): w.clone() for n, w in weights.items() if ".layers.0." in n}


@pytest.mark.parametrize(
    ("config", "more", "why"),
    [
        ({}, another_layer, "model.layers.1."),
        ({}, lambda _: {f"{Q}.bias": torch.ones(64)}, f"{Q}.bias"),
        ({}, lambda w: {f"{Q}.weight": w[f"{Q}.weight"].int()}, f"{Q}.weight"),
        ({}, lambda w: {"model.norm.weight": w["model.norm.weight"].bool()}, "model.norm.weight"),
        ({"tie_word_embeddings": False}, dict, "lm_head.weight"),
        ({"num_local_experts": 7}, dict, "model.layers.0.mlp.experts"),
        ({"max_position_embeddings": 0}, dict, "max_position_embeddings = 0"),
        ({"max_position_embeddings": 1 << 60}, dict, "max_position_embeddings = 1.15e+18"),
    ],
    ids=["layer", "bias", "whole numbers", "truth values", "head", "experts", "no positions", "positions"],
)
def test_weights_that_are_not_the_models_are_refused(
    start: Path, tmp_path: Path, config: dict[str, Any], more: Callable[[Tensors], Tensors], why: str
) -> None:
    folder = Path(shutil.copytree(start, tmp_path / "model"))
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | config))
    weights = load_file(folder / "model.safetensors")
    save_file(weights | more(weights), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GspoError) as caught:
        load_policy(ModelConfig(path=str(folder)), folder)
    assert caught.value.code is ExitCode.USER_ERROR and why in caught.value.why


def test_what_no_model_needs_may_be_in_its_files(start: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(start, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    attention = "model.layers.0.self_attn"
    weights |= {"lm_head.weight": weights["model.embed_tokens.weight"].clone(), "v_head.summary.weight": torch.ones(3)}
    weights |= {f"{attention}.rotary_emb.inv_freq": torch.ones(8), f"{attention}.masked_bias": torch.tensor(-1e4)}
    weights |= {"vision_tower.layers.9.weight": torch.ones(3), "position_ids": torch.arange(9)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_policy(ModelConfig(path=str(folder)), folder)


@pytest.mark.parametrize("kind", ["qwen3_moe", "llama", "gpt_neo"])
def test_a_configuration_alone_takes_no_memory(start: Path, tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(start, tmp_path / "model"))
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "max_position_embeddings": 1 << 20}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(GspoError, match=r"cannot load the model|not in its files"):
        load_policy(ModelConfig(path=str(folder)), folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 19)  # KiB


@pytest.mark.parametrize("end", ["crash", "whole"])
def test_secrets_of_the_environment_are_nowhere(gspo_forked: Gspo, smoke: Path, tmp_path: Path, end: str) -> None:
    (tmp_path / "spoiled.py").write_text(
        "import os\n"
        "from gspo_cli.types import Score\n"
        "def reward(problem, text):\n"
        "    secret = os.environ['HF_TOKEN']\n"
        f"    if {end == 'crash'} and text not in ('', problem.answer): raise ValueError('broken')\n"
        "    return Score(float(len(text)), 'length')\n"
    )
    done = gspo_forked(
        "train", smoke, "--out", tmp_path / "out", "--name", "x", "--set", "task.reward='spoiled:reward'", "--set",
        "eval.bench=[]", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        **dict.fromkeys(SECRETS, CANARY),
    )  # fmt: skip
    assert done.code == (0 if end == "whole" else 5), done.err
    written = tree(tmp_path / "out")
    assert written.keys() >= {"x/gspo-s0/run.json", "x/gspo-s0/events.jsonl"}
    assert [name for name, data in written.items() if CANARY.encode() in data] == []
    assert CANARY not in done.out + done.err
    recorded = json.loads(written["x/gspo-s0/run.json"])["environment"]
    assert not set(SECRETS) & set(recorded)
