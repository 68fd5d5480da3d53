"""Further mistakes beside those of test_bad_input: each ends with exit code 2 and a message in
three parts that names it, and nothing is written or lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from program import Gspo, check_refused, tree

OWN_CODE = b"""
raise_now = 1


def text(problem, text):
    return 'good'


class Task:
    def __init__(self, config):
        pass

    def problems(self, split):
        return 1 / 0

    reward = problems
"""
FILES = {
    "broken.toml": b'name = "x"\n[train\n',
    "rows.jsonl": b'{"question": "1+1?", "answer": null}\n',
    "log.json": b"{}",
    "folder/kept.txt": b"kept",
    "own_code.py": OWN_CODE,
    "fails.py": b"raise RuntimeError('on import')\n",
}
"""What stands in the working directory."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files to make mistakes with; no mistake may change them."""
    made = tmp_path_factory.mktemp("mistakes")
    for name, content in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(content)
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with these files."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return folder


SETTINGS = [
    (["rollout.top_p=0.9"], "top_p"),
    (["rollout.stop=['']"], "rollout.stop"),
    (["task.chat=true"], "no chat template"),
    (["task.chat_template_kwargs={tokenize=true}"], "chat_template_kwargs"),
    (["task.rewards=[{name='task'},{name='task'}]"], "the same name"),
    (["task.rewards=[{name='task'}]", "task.reward=own_code:text"], "either task.reward or task.rewards"),
    (["task.combine=gdpo"], "two [[task.rewards]] or more"),
    (["task.reward=absent_module:reward"], "absent_module"),
    (["task.reward=own_code:txet"], "did you mean 'text'?"),
    (["task.reward=own_code:raise_now"], "__call__"),
    (["task.reward=fails:reward"], "on import"),
    (["task.name=own_code:text"], "cannot make the task 'own_code:text'"),
    (["task.name=own_code:Task", "cold_start={steps=1}"], "failed in problems('train')"),
    (["task.name=own_code:raise_now"], "is no task"),
    (["task.name=gsm8k", "task.path=folder"], "folder"),
    (["cold_start.path=rows.jsonl"], "prompt"),
    (["task.name=data", "task.path=rows.jsonl", "task.held_out=20"], "share of the rows"),
]


@pytest.mark.parametrize(("settings", "word"), SETTINGS, ids=str)
def test_settings(gspo_here: Gspo, smoke: Path, here: Path, settings: list[str], word: str) -> None:
    before = tree(here)
    arguments = [part for setting in settings for part in ("--set", setting)]
    check_refused(gspo_here("train", smoke, "--out", "results", *arguments), word)
    assert tree(here) == before


COMMANDS = [
    ("train broken.toml", "broken.toml"),
    ("train --resume absent", "absent"),
    ("train --resume folder", "folder"),
    ("train --resume folder --algo grpo", "--algo with --resume"),
    ("train quickstart-dense --resume folder", "RECIPE with --resume"),
    ("rollout --set algo.clp.hihg=5 --out new", "unknown key 'algo.clp'"),
    ("cold-start --set algo.clp.hihg=5 --out new", "unknown key 'algo.clp'"),
    ("report fidelity quickstart --set algo.clp.hihg=5 --out new", "unknown key 'algo.clp'"),
    ("train --allow-change train.lr", "--allow-change without --resume"),
    ("train --tuned folder", "folder"),
    ("train --nproc 2", "--nproc"),
    ("train --gpus-per-run 1", "--gpus-per-run"),
    ("train --jobs 2 --launcher torchrun", "--jobs"),
    ("rollout gsm8k --set task.path=rows.jsonl --show-prompt", "line 1 has no 'answer'"),
    ("runs show absent", "absent"),
    ("runs verify absent", "absent"),
    ("runs export --to paper", "paper"),
    ("runs import absent.json --algo gspo --name x", "absent.json"),
    ("runs import log.json --algo gspo --name x --arm a/b", "a/b"),
    ("report compare absent", "absent"),
    (f"report compare {'x' * 300}", "File name too long"),
    (f"train --resume {'x' * 300}", "File name too long"),
    ("report claims absent", "absent"),
    ("report explain rewrd/mean", "did you mean 'reward/mean'?"),
    ("recipes copy quickstart broken.toml", "exists"),
    ("recipes new folder", "folder"),
    ("eval benchmarks folder", "folder"),
]


@pytest.mark.parametrize(("command", "word"), COMMANDS, ids=str)
def test_commands(gspo_here: Gspo, here: Path, command: str, word: str) -> None:
    before = tree(here)
    check_refused(gspo_here(*command.split()), word)
    assert tree(here) == before


def test_a_thousand_arms_are_refused_before_any_is_resolved(gspo_here: Gspo, smoke: Path) -> None:
    arms = ",".join(f"a{number}={{name='gspo'}}" for number in range(1001))
    check_refused(gspo_here("train", smoke, "--set", f"arms={{{arms}}}", "--dry-run"), "a study of 1001 arms")
