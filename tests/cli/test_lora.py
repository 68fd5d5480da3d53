"""A recipe with [model.lora], trained by the program: its checkpoint, its evaluation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from program import Gspo, check_refused, strict_lines, tree
from transformers import AutoModelForCausalLM

from gspo_cli.config import ModelConfig
from gspo_cli.models import adapters as module
from gspo_cli.models.load import load_policy

LORA = ["--set", "model.lora.rank=4", "--set", "model.lora.experts=true", "--set", "algo.kl.coef=0.01"]


@pytest.mark.slow
def test_a_run_with_adapters_from_its_start_to_its_evaluation(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    done = gspo_here("train", smoke, *LORA, "--set", "eval.every=0", "--out", tmp_path, "--name", "small")
    assert done.code == 0, done.err
    full = gspo_here("train", smoke, "--out", tmp_path, "--name", "full", "--set", "eval.bench=[]", "--steps", "1")
    assert full.code == 0, full.err
    run = tmp_path / "small" / "gspo-s0"
    record, other = (json.loads((tmp_path / n / "gspo-s0" / "run.json").read_text()) for n in ("small", "full"))
    # both start from the one cold start, and from the same policy
    assert [record[k] == other[k] for k in ("start_model", "model_sha256", "data_sha256")] == [True] * 3
    assert 0 < record["num_trained"] < record["num_parameters"] / 2
    assert other["num_trained"] == other["num_parameters"]
    lines = [strict_lines(tmp_path / n / "gspo-s0" / "metrics.jsonl") for n in ("small", "full")]
    rewards = [next(line for line in log if line["kind"] == "rollout")["metrics"]["reward/mean"] for log in lines]
    assert rewards[0] == rewards[1] > 0
    assert lines[0][-2]["metrics"]["kl/ref_k3"] >= 0

    folder = run / "checkpoints" / "step-000002" / "model"
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {p.name for p in folder.iterdir()}
    ours, tokenizer = load_policy(ModelConfig(path=str(folder), device="cpu"), folder)
    start = AutoModelForCausalLM.from_pretrained(record["start_model"]).eval()
    ids = torch.tensor([tokenizer("3+5=")["input_ids"]])
    with torch.no_grad():
        before = start(ids).logits
        after = PeftModel.from_pretrained(start, folder)(ids).logits
        torch.testing.assert_close(ours(ids).logits, after, rtol=0, atol=1e-5)
    assert float((after - before).abs().max()) > 1e-3

    evaluated = gspo_here("eval", "benchmarks", run, "--samples", "1", "--json")
    assert json.loads(evaluated.out)["average"] == lines[0][-1]["metrics"]["arithmetic/avg@1"]

    files = tree(tmp_path)
    again = gspo_here("train", smoke, "--model", folder, "--out", tmp_path, "--name", "again")
    check_refused(again, "training cannot start from the adapters", "merge_and_unload")
    check_refused(
        gspo_here("cold-start", smoke, "--set", f"model={{path='{folder}'}}", "--out", tmp_path / "cold"), "adapters"
    )
    assert tree(tmp_path) == files


def test_without_peft_nothing_is_begun(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    check_refused(gspo_here("train", smoke, *LORA, "--out", tmp_path), "[model.lora] needs the package peft")
    assert tree(tmp_path) == {}
