"""Environments of the library `verifiers`: their prompts, rewards and held-out part, and what is refused by name."""

import itertools
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from program import refusal

from gspo_cli import plugins
from gspo_cli.config import Recipe, TaskConfig
from gspo_cli.tasks import make_task, read_problems
from gspo_cli.tasks.rewards import own_code
from gspo_cli.tasks.scoring import score
from gspo_cli.tasks.trial import try_rewards
from gspo_cli.types import Response

PARTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("environments.toml").read_text("utf-8"))
NAMES = (f"environment_{number}" for number in itertools.count())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed (pip install 'gspo[verifiers]')")
    monkeypatch.setattr(plugins, "_search_folders", [tmp_path])
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def write(folder: Path, prompt: str = 'f"{n}?"', extra: str = "", more: str = "", changes: str = "") -> str:
    """The name of a new environment; `changes` is OLD=>NEW."""
    name = next(NAMES)
    text = PARTS["environment"].replace("PROMPT", prompt).replace("EXTRA", extra).replace("MORE", more)
    old, _, new = changes.partition("=>")
    assert old in text
    (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
    return name


def config(environment: str | None, **keys: Any) -> TaskConfig:
    return TaskConfig.model_validate({"name": "verifiers", "environment": environment} | keys)


def recipe_of(task: dict[str, Any]) -> Recipe:
    return Recipe.model_validate({"name": "mine", "model": {"path": "x"}, "task": task})


def refused(environment: str | None, **keys: Any) -> str:
    made = config(environment, **keys)
    return refusal(lambda: read_problems(make_task(made), made)).replace("\nwhy:   ", ": ")


def test_what_is_wrong_in_the_recipe_is_said_before_the_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    assert "without an environment" in refused(None)
    assert "a share of the tasks is held out" in refused("reverse-text", held_out="test")
    said = refusal(make_task, config("reverse-text", held_out=0.1))
    assert "needs the library verifiers 0.4" in said and "pip install 'gspo[verifiers]'" in said


def test_its_held_out_tasks_are_the_default_benchmark_and_its_code_has_a_deadline() -> None:
    recipe = recipe_of({"name": "verifiers", "environment": "x", "held_out": 0.1})
    assert recipe.eval.bench == ("held_out",)
    assert own_code(recipe.task)
    assert not own_code(TaskConfig())


def test_prompts_are_text_or_messages_and_a_share_is_held_out(folder: Path) -> None:
    name = write(folder)
    task = make_task(config(name, held_out=0.25, args={"size": 40}))
    trained, held = task.problems("train"), task.problems("held_out")
    assert len(trained) + len(held) == 40 and len(held) in range(3, 20)
    assert not {p.prompt for p in trained} & {p.prompt for p in held}
    first = min(trained + held, key=lambda p: p.columns["idx"])
    assert (first.id, first.prompt, first.answer, first.messages) == ("row-1", "0?", "0", ())
    system = make_task(config(name, args={"system": "Be brief."})).problems("train")[3]
    assert system.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "3?"})
    several = '[vf.UserMessage(content="0?"), vf.AssistantMessage(content="0"), ' \
        'vf.UserMessage(content=[vf.TextContentPart(text=f"{n}?")])]'  # fmt: skip
    problem = make_task(config(write(folder, several))).problems("train")[5]
    assert [(one["role"], one["content"]) for one in problem.messages] == [
        ("user", "0?"), ("assistant", "0"), ("user", "5?")
    ]  # fmt: skip
    assert score(make_task(config(write(folder, several))), [(problem, Response("5", 2))])[0].value == 2.5
    text = make_task(config(name, args={"system": "Be brief."}, template="Q: {question}")).problems("train")[3]
    assert (text.prompt, text.messages) == ("Q: 3?", ())
    assert "has a system prompt, and so has the recipe" in refused(name, args={"system": "a"}, system="b")


def test_the_reward_is_the_weighted_sum_of_the_environments_own_with_its_parts(folder: Path) -> None:
    task = make_task(config(write(folder)))
    problem = task.problems("train")[7]
    answers = [Response("7", 2), Response("7", 9), Response("8", 2), Response("7", 2, "length")]
    found = score(task, [(problem, text) for text in answers])
    # 2 for the right answer, 0.5 for fewer than 3 tokens that were not cut off
    assert [one.value for one in found] == [2.5, 2.0, 0.5, 2.0]
    assert [one.parts for one in found[:2]] == [(("right", 1.0), ("short", 1.0)), (("right", 1.0), ("short", 0.0))]
    assert try_rewards(task, [problem], task_config := config("x")) == [] and task_config.environment == "x"


def test_an_error_in_a_reward_names_its_file_and_line(folder: Path) -> None:
    name = write(folder, changes="return len(trace.last_reply)=>return 1 / (trace.last_reply != '')")
    task = make_task(config(name))
    scores = score(task, [(problem, text) for problem in task.problems("train")[:1] for text in ("a", "")])
    assert scores[0].value == 0.5 and scores[1].value is None
    assert "ZeroDivisionError" in scores[1].reason and f"{name}.py, line " in scores[1].reason
    broken = make_task(config(write(folder, changes="self.data.answer)=>self.data.anwser)")))
    said = refusal(try_rewards, broken, broken.problems("train"), config(name))
    assert "tried before training" in said and "AttributeError" in said and "anwser" in said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"more": PARTS["own_env"], "changes": '["Mine"]=>["Mine", "Talk"]'}, "its own Talk leads the conversation"),
        ({"more": PARTS["harness"], "changes": '["Mine"]=>["Mine", "Agent"]'}, "an agent of its own"),
        ({"more": PARTS["tools"], "extra": PARTS["give"]}, "it has tools: Search"),
        ({"changes": "size: int=>" + PARTS["judge"] + "size: int"}, "another model judges: decision"),
        ({"changes": "def load(self)=>INFINITE = True\n    def load(self)"}, "its tasks never end"),
        ({"changes": "self, trace: vf.Trace=>self, trace, runtime"}, "acts on the agent's machine, in right"),
        ({"extra": "\n    async def setup(self, trace, runtime):\n        pass\n"}, "machine, in setup"),
        ({"extra": PARTS["intercept"]}, "rewrites messages, in cut"),
        ({"prompt": "None"}, "task 0 has no prompt"),
        ({"changes": "Data(prompt=>Data(image='python:3.11', prompt"}, "task 0 is solved in a container, python:3.11"),
        ({"prompt": PARTS["images"]}, "the prompt of task 0 holds images"),
        ({"prompt": PARTS["calls"]}, "the prompt of task 0 holds calls of tools"),
        ({"prompt": '[vf.UserMessage(content="a"), vf.AssistantMessage(content="b")]'}, "ends with an answer"),
        ({"changes": "range(self.config.size)=>range(0)"}, "has no tasks"),
        ({"changes": "for n in=>raise KeyError('no file')\n        for n in"}, "failed in load.*KeyError: 'no file'"),
    ],
)  # fmt: skip
def test_what_is_not_one_response_to_one_prompt_is_refused(folder: Path, keys: dict[str, str], said: str) -> None:
    assert re.search(said, refused(write(folder, **keys)))


def test_names_and_arguments_that_do_not_exist(folder: Path) -> None:
    assert "cannot be imported: taskset 'not-installed-here' not found" in refused("not-installed-here")
    assert "does not take task.args.sizes: Extra inputs" in refused(write(folder), args={"sizes": 3})
    assert "leads the conversation" in refused("openenv", args={"base_url": "http://127.0.0.1:1"})
    (folder / "older.py").write_text("def load_environment(): ...")
    assert "cannot be imported" in refused("older")
