"""The worked examples of docs/extending.md run as they stand there."""

import re
from pathlib import Path

import pytest
from program import Gspo

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's Python blocks written to the files that their first lines name."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        name = re.match(r"# (\S+\.py)\n", block).group(1)  # type: ignore[union-attr]
        with (tmp_path / name).open("a") as file:
            file.write(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUICK = ("--set", "model.threads=1", "--set", "model.tiny.hidden=16", "--set", "rollout.prompts=8", "--set",
        name = re.match(r"# (\S+\.py)\n", block)
        assert name is not None


def test_task_and_reward(modules: Path, gspo: Gspo) -> None:
    done = gspo("train", "quickstart", "--set", "task.name=my_tasks:Reverse", *QUICK, "--name", "task")
    assert done.code == 0, done.err
    run = (modules / "results" / "task" / "gspo-s0" / "run.json").read_text()
    assert '"my_tasks:Reverse"' in run and '"file": "my_tasks.py"' in run
    done = gspo("train", "--set", "task.reward=my_tasks:length_reward", *QUICK, "--name", "reward")
    assert done.code == 0, done.err


def test_algorithm(modules: Path, gspo: Gspo) -> None:
    done = gspo("train", "--algo", "grpo,my_algorithm:", *QUICK, "--name", "algo")
    assert done.code == 0, done.err
    assert (modules / "results" / "algo" / "my_algorithm-s0" / "metrics.jsonl").exists()


def test_a_plugin_without_the_contract_is_refused(modules: Path, gspo: Gspo) -> None:
    done = gspo("train", "--algo", "my_tasks:", *QUICK, "--name", "bad")
    assert done.code == 2 and "'Params'" in done.err
    assert not (modules / "results").exists()
