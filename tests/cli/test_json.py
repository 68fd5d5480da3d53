"""`--json`: every command has it, prints objects alone on stdout, and errors as one object on stderr."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from program import GSPO, Gspo

from gspo_cli.cli import completion
from gspo_cli.cli.main import app


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command of the program by its words."""
    found: dict[tuple[str, ...], Any] = {}
    for name, command in group.commands.items():
        found |= commands(command, (*path, name)) if hasattr(command, "commands") else {(*path, name): command}
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.fixture(scope="module")
def place(gspo: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of one run and a stored batch, in which every command finds something."""
    folder = tmp_path_factory.mktemp("json")
    out = folder / "results"
    sets = ("--set", "eval.bench=[]", "--set", "algo.name=grpo")
    done = gspo("train", smoke, *sets, "--steps", "1", "--out", out, "--name", "s", "--json")
    assert json.loads(done.out)["arm"] == "grpo", done.err
    (folder / "answers.jsonl").write_text('{"id": "1", "response": "\\\\boxed{7}", "gold": "7"}\n')
    (folder / "log.json").write_text('{"log_history": [{"step": 1, "reward": 0.5}]}')
    (folder / "contests.json").write_text("[]")
    return folder


RUN = "results/s/grpo-s0"
LINES: dict[str, list[str]] = {
    "train": ["train", "quickstart", "--dry-run"],
    "cold-start": ["cold-start", "SMOKE", "--set", "cold_start.steps=2", "--out", "start"],
    "rollout": ["rollout", "SMOKE", "--out", "batch"],
    "doctor": ["doctor"],
    "eval benchmarks": ["eval", "benchmarks", RUN, "--samples", "1", "--limit", "2"],
    "eval list": ["eval", "list"],
    "eval grade": ["eval", "grade", "answers.jsonl", "--grader", "aime"],
    "recipes ls": ["recipes", "ls"],
    "recipes show": ["recipes", "show", "quickstart"],
    "recipes copy": ["recipes", "copy", "gsm8k", "mine.toml"],
    "recipes validate": ["recipes", "validate", "quickstart"],
    "recipes schema": ["recipes", "schema"],
    "recipes new": ["recipes", "new", "a-new-one"],
    "report plots": ["report", "plots", "results/s"],
    "report compare": ["report", "compare", "results/s", "--metric", "reward/mean:last10"],
    "report claims": ["report", "claims", "results/s"],
    "report html": ["report", "html", "results/s"],
    "report batch": ["report", "batch", RUN, "--model", f"{RUN}/checkpoints/step-000001/model", "--out", "figures"],
    "report explain": ["report", "explain"],
    "runs ls": ["runs", "ls"],
    "runs show": ["runs", "show", RUN],
    "runs diff": ["runs", "diff", RUN, RUN],
    "runs path": ["runs", "path", "s"],
    "runs verify": ["runs", "verify", "results/s"],
}
"""A command line that does something in `place`."""
ELSEWHERE = {"eval elo": "tests/evals/test_elo.py", "runs import": "tests/runlog"}
"""Commands whose input takes more to make; they are run with --json in tests of their own."""


def objects(text: str) -> list[dict[str, Any]]:
    """Each line of stdout as the object that it must be."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) for one in found)
    return found


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_it(words: tuple[str, ...]) -> None:
    options = [option for parameter in COMMANDS[words].params for option in parameter.opts]
    assert "--json" in options
    assert "json_" in inspect.signature(COMMANDS[words].callback).parameters


def test_every_command_is_run_with_it() -> None:
    assert {" ".join(words) for words in COMMANDS} == LINES.keys() | ELSEWHERE.keys()
    for name, where in ELSEWHERE.items():
        place = Path(__file__).parent.parent.parent / where
        texts = [f.read_text() for f in ([place] if place.is_file() else place.rglob("test_*.py"))]
        assert any("--json" in text and name.split()[-1] in text for text in texts), name


@pytest.mark.parametrize("name", LINES)
def test_stdout_holds_objects_alone(
    gspo_here: Gspo, smoke: Path, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place)
    done = gspo_here(*[str(smoke) if word == "SMOKE" else word for word in LINES[name]], "--json")
    found = objects(done.out)
    assert done.code in (0, 3), done.err  # 3: refused to compare one arm, something is missing here
    assert found or name == "runs diff"


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train", "--stepp", "3"], ["train", "quikstart"], ["rollout", "--seed", "x"], ["runs", "show", "none"],
     ["recipes", "copy", "quikstart"], ["report", "compare", "none"], ["eval", "benchmarks", "--bench", "none"],
     ["recipes", "show"]],
    ids=" ".join,
)  # fmt: skip
def test_an_error_is_one_object_on_stderr(gspo: Gspo, arguments: list[str]) -> None:
    done = gspo(*arguments, "--json")
    assert (done.code, done.out) == (2, "")
    (said,) = objects(done.err)
    assert said["exit"] == 2 and all(said[part].strip() for part in ("error", "why", "do"))


# Completion


def completed(line: str) -> list[str]:
    """What bash is offered after Tab at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_GSPO_COMPLETE": "complete_bash"}
    return subprocess.run([GSPO], env=os.environ | words, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gspo train qui", ["quickstart"]),
        ("gspo train --algo grpo,gspo_", ["grpo,gspo_token"]),
        ("gspo train --set train.ste", ["train.steps="]),
        ("gspo eval benchmarks --bench aime24,ma", ["aime24,math500"]),
        ("gspo report explain clip/token_frac_", ["clip/token_frac_active"]),
    ],
)
def test_names_are_completed(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_what_completes_is_what_there_is() -> None:
    from gspo_cli.algorithms import ALGORITHMS
    from gspo_cli.evals import BENCHMARKS

    assert completion.algorithms("") == list(ALGORITHMS)
    assert completion.benchmarks("") == list(BENCHMARKS)
    assert completion.algorithms("gspo,gsp") == ["gspo,gspo_token"]  # not again what stands there
    assert {"train.optimizer.betas=", "model.tiny.hidden=", "report.tuning=", "seed="} <= set(completion.keys(""))
