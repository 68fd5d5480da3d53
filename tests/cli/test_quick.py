"""What needs no tensor answers without loading torch, which takes seconds."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from program import Forked, Gspo, write_rows

from gspo_cli.config import TinyModel
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.plain_tokenizer import read_model

PROGRAM = """
import functools, json, sys
import typer.main, typer.testing
from gspo_cli.cli.main import app

typer.testing._get_command = functools.cache(typer.main.get_command)
for words in map(json.loads, sys.argv[1:]):
    done = typer.testing.CliRunner().invoke(app, words)
    heavy = sorted({"torch", "transformers", "vllm"} & set(sys.modules))
    print(json.dumps({"code": done.exit_code, "out": done.output, "heavy": heavy}))
"""
COMMANDS: list[tuple[tuple[str, ...], int, str]] = [
    (("train", "--algo", "grop"), 2, "did you mean 'grpo'?"),
    (("train", "--set", "algo.dual_clip=0.5"), 2, "dual_clip = 0.5"),
    (("train", "gsm8k", "--set", "task.path=missing.jsonl", "--dry-run"), 2, "missing.jsonl"),
    (("train", "gsm8k", "--set", "task.path=rows.jsonl", "--dry-run"), 2, "question"),
    (("train", "gsm8k", "--set", "task.path=rows.jsonl"), 2, "question"),
    (("train", "--algo", "grpo,gspo", "--dry-run"), 0, "checked: 20000 problems; tokenizer"),
    (("train", "real/qwen3-30b-a3b-8xh200", "--dry-run"), 0, "30.53 B parameters"),
    (("rollout", "quickstart", "--show-prompt"), 0, "10 tokens"),
    (("recipes", "validate", "quickstart", "gsm8k", "claims/when"), 0, "ok"),
    (("recipes", "show", "quickstart", "--resolved"), 0, '"clip"'),
    (("recipes", "schema"), 0, "dual_clip"),
    (("report", "explain", "gspo"), 0, "clip.low = 0.0003"),
    (("doctor", "--json"), 0, '"import torch", "found": "works", "verdict": "ok"'),
    (("eval", "list"), 0, "aime24"),
    (("eval", "benchmarks", "bees.csv"), 2, "no model in bees.csv"),
    (("eval", "benchmarks", "b/fakemodel"), 2, "not in the hub's cache"),
    (("eval", "benchmarks", "b/fakemodel", "--temperature", "0", "--samples", "4"), 2, "4 samples at temperature 0"),
    (("rollout", "quickstart", "--model", "b/fakemodel"), 2, "not in the hub's cache"),
    (("rollout", "quickstart", "--out", "bees.csv"), 2, "a file is in the way"),
    (("report", "batch", "bees.csv", "--model", "b/fakemodel"), 2, "cannot read bees.csv as parquet"),
    (("train", "--resume", "bees.csv"), 2, "nothing to resume in bees.csv"),
    (("train", "--out", "bees.csv"), 2, "a file is in the way"),
    (("train", "--name", "quick", "--out", "."), 2, "already holds a run"),
    (("runs", "ls"), 0, "no runs"),
]


def said_by(commands: Iterable[Sequence[str]], folder: Path) -> list[dict[str, Any]]:
    """What a fresh process says to these commands, one after the other, and what it has loaded after each."""
    words = [sys.executable, "-c", PROGRAM, *map(json.dumps, commands)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_torch_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "rows.jsonl").write_text('{"frage": "1 + 1?", "antwort": "2"}\n')
    (tmp_path / "bees.csv").write_text("a,b\n")
    (tmp_path / "quick" / "gspo-s0").mkdir(parents=True)
    answers = said_by([words for words, _, _ in COMMANDS], tmp_path)
    for (words, code, said), found in zip(COMMANDS, answers, strict=True):
        assert (found["code"], found["heavy"]) == (code, []) and said in found["out"], (words, found)


def test_a_change_that_a_resume_refuses_is_refused_before_torch(tmp_path: Path, trained: Path) -> None:
    words = ["train", "--resume", str(trained), "--set"]
    refused, meaningless = said_by([[*words, "train.lr=1"], [*words, "train.lrr=1"]], tmp_path)
    assert (refused["code"], refused["heavy"]) == (meaningless["code"], meaningless["heavy"]) == (2, [])
    assert "part of the experiment" in refused["out"] and "train.lrr" in meaningless["out"]


def test_a_second_plan_knows_the_model(tmp_path: Path, gspo_here: Gspo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPO_CACHE", str(tmp_path / "cache"))
    model, tokenizer = build_tiny(TinyModel(tokenizer="bytes"), 0)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}>"
    model.config.max_position_embeddings = 77
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", [{"question": f"{n}+1=", "answer": "1"} for n in range(200)])
    settings = (f"task.path={rows}", "task.template={question}", "rollout.max_new_tokens=9")
    words = ["rollout", "gsm8k", "--model", str(tmp_path / "model"), "--show-prompt", "--json"]
    words += [f"--set={one}" for one in settings]
    before, (after,) = gspo_here(*words), said_by([words], tmp_path)
    assert after["heavy"] == [] and before.out == after["out"]
    assert read_model(str(tmp_path / "model"), None).limit == 77
    # another file, another model
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}:")
    assert json.loads(gspo_here(*words).out)["text"].endswith("=:")


def test_a_signal_in_the_first_run_names_the_study(tmp_path: Path, smoke: Path, gspo_here: Gspo) -> None:
    words = ("train", smoke, "--algo", "grpo,gspo", "--seeds", "0-1", "--out", tmp_path, "--name", "cut")
    program, study = Forked(*words, "--steps", "500"), tmp_path / "cut"
    log = study / "grpo-s0" / "metrics.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 3):
        time.sleep(0.05)
    program.send(signal.SIGTERM)
    done = program.wait()
    assert done.code == 143 and f"do:    gspo train --resume {study} " in done.err, done.err
    rest = "grpo with seed 1, gspo with seed 0, gspo with seed 1"
    done = gspo_here("runs", "ls", study)
    assert f"cut: not begun: {rest}; to train what remains: gspo train --resume {study}" in " ".join(done.err.split())
    assert "not begun" not in gspo_here("runs", "ls", study / "grpo-s0").err
    assert rest in gspo_here("report", "compare", study).err
