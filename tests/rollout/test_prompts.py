"""Prompts as the model gets them: templates, system prompts, chat templates, stop strings."""

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import Gspo, ok
from transformers import PreTrainedTokenizerFast

from gspo_cli.config import TaskConfig, TinyModel
from gspo_cli.errors import GspoError
from gspo_cli.models.tiny import build_tiny, byte_tokenizer
from gspo_cli.recipe import load
from gspo_cli.rollout.prompts import cut_at_stop, decode, encode, fitting
from gspo_cli.tasks import make_task
from gspo_cli.training.cold_start import cache_key
from gspo_cli.types import Problem, Sample

CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if thinking is defined and not thinking %}[no think]{% endif %}[assistant]"
)
PROBLEM = Problem("p", "1+1?", "2")


@pytest.fixture(scope="module")
def chat() -> PreTrainedTokenizerFast:
    """One token per byte, with a chat template that has one variable."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT
    return tokenizer


def text_of(tokenizer: Any, **task: Any) -> str:
    return str(tokenizer.decode(list(encode(tokenizer, PROBLEM, TaskConfig(**task)).token_ids)))


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({}, "[user]1+1?\n[assistant]"),
        ({"chat": True}, "[user]1+1?\n[assistant]"),
        ({"chat": False}, "1+1?"),
        ({"system": "Be brief."}, "[system]Be brief.\n[user]1+1?\n[assistant]"),
        ({"chat_template_kwargs": {"thinking": False}}, "[user]1+1?\n[no think][assistant]"),
    ],
    ids=str,
)
def test_the_exact_text(chat: PreTrainedTokenizerFast, task: dict[str, Any], text: str) -> None:
    assert text_of(chat, **task) == text


REFUSES = "{{ raise_exception('no system prompt, please') }}"


@pytest.mark.parametrize(
    ("template", "task", "said"),
    [
        *((None, task, "the tokenizer has no chat template")
          for task in ({"chat": True}, {"system": "x"}, {"chat_template_kwargs": {"a": 1}})),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, "no such variable"),
        (REFUSES, {"system": "x"}, "the chat template refuses(.|\n)*no system prompt, please(.|\n)*task.template"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_template_cannot_give_is_named(template: str | None, task: dict[str, Any], said: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(GspoError, match=said):
        text_of(tokenizer, **task)


@pytest.mark.parametrize(
    "template",
    [pytest.param("{{ 10 ** (10 ** 9) }}", marks=pytest.mark.slow),  # five seconds of processor time
     "{{ 'x' * 2000000000 }}", "{{ 'x' * 50000000 }}", "{{ 'x'.center(4000000000) }}",
     "{% set ns = namespace(a='ab') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}",
     "{{ '\\ud800' }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% if %}", "{{ 1 / 0 }}",
     "{{ [1, 2] | random }}", "{{ lipsum() }}"],
)  # fmt: skip
def test_a_template_has_limits(template: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, the most that this process has ever held
    with pytest.raises(GspoError, match="the chat template refuses") as refused:
        text_of(tokenizer)
    assert refused.value.why and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)
    tokenizer.chat_template = CHAT
    assert text_of(tokenizer) == "[user]1+1?\n[assistant]"


def test_a_prompt_has_the_tokens_of_transformers(chat: PreTrainedTokenizerFast) -> None:
    chat.chat_template = "{{ bos_token }}" + CHAT + "{{ eos_token }}{{ messages | tojson }}"
    try:
        messages = [{"role": "user", "content": PROBLEM.prompt}]
        theirs = chat.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert list(encode(chat, PROBLEM).token_ids) == theirs
    finally:
        chat.chat_template = CHAT


def test_the_template_replaces_the_tasks_own_instruction(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "What is {x}^2?", "answer": "4"}\n')
    template = 'Q: {question}\n{"reply": '
    [problem] = make_task(TaskConfig(name="gsm8k", path=str(path), template=template)).problems("train")
    assert problem.prompt == 'Q: What is {x}^2?\n{"reply": '
    [plain] = make_task(TaskConfig(name="gsm8k", path=str(path))).problems("train")
    assert plain.prompt.startswith("What is {x}^2?\nReason step by step")
    assert make_task(TaskConfig(template="Add: {question}")).problems("train")[0].prompt.startswith("Add: ")


def test_a_long_system_prompt_counts_towards_the_limit(chat: PreTrainedTokenizerFast) -> None:
    long = TaskConfig(system="x" * 900)
    assert fitting([PROBLEM], chat, 900, 8, TaskConfig()) == [PROBLEM]
    with pytest.raises(GspoError, match="is too long"):
        fitting([PROBLEM], chat, 900, 8, long)


def drawn(tokenizer: Any, text: str, finish: Any = "length") -> Sample:
    ids = tuple(tokenizer(text)["input_ids"])
    log_probs = tuple(-0.1 * (i + 1) for i in range(len(ids)))
    routes = np.arange((3 + len(ids) - 1) * 2, dtype=np.uint8).reshape(-1, 2, 1)
    return Sample("p", 0, 7, ids, log_probs, finish, 0, routes)


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [("a é</x> b</x>", ("</x>",), "a é</x>"), ("12\n34", ("#", "\n"), "12\n"), ("abc", ("c",), "abc"),
     ("abc", ("z",), None)],
)  # fmt: skip
def test_a_response_ends_with_the_first_stop_string(text: str, stops: tuple[str, ...], kept: str | None) -> None:
    tokenizer = byte_tokenizer()
    sample = drawn(tokenizer, text)
    cut = cut_at_stop(tokenizer, sample, stops, num_prompt_tokens=3)
    if kept is None:
        assert cut is sample
        return
    size = len(kept.encode())
    assert decode(tokenizer, cut) == kept and cut.finish == "stop_string"
    assert cut.token_ids == sample.token_ids[:size] and cut.log_probs == sample.log_probs[:size]
    assert cut.routes_TLK is not None and len(cut.routes_TLK) == 3 + size - 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat model's folder."""
    folder = tmp_path_factory.mktemp("chat")
    made, tokenizer = build_tiny(TinyModel(kind="qwen3", tokenizer="bytes", hidden=16, layers=1), seed=0)
    tokenizer.chat_template = CHAT
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_run_with_several_rewards_and_stops(gspo_here: Gspo, smoke: Path, model: Path, tmp_path: Path) -> None:
    rewards = '[{name="task"},{name="length",weight=0.5,tokens=[1,8]}]'
    settings = (
        f"task.rewards={rewards}", "task.system=Add.", "rollout.stop=['a','e']", "rollout.store=1", "eval.bench=[]",
        "checkpoint.every=0", "checkpoint.start=false",
    )  # fmt: skip
    ok(gspo_here(
        "train", smoke, "--model", model, "--steps", "1", "--out", tmp_path, "--name", "x",
        *(part for key in settings for part in ("--set", key)),
    ))  # fmt: skip
    run = tmp_path / "x" / "gspo-s0"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    parts = [line["metrics"][f"reward/part/{label}"] for label in ("task", "length")]
    assert line["metrics"]["reward/mean"] == pytest.approx(parts[0] + 0.5 * parts[1])
    assert parts[1] < 0 and line["counts"]["reward/part/length"] == line["counts"]["reward/mean"]

    import pyarrow.parquet as pq

    rows = pq.read_table(run / "rollouts" / "step_000001.parquet").to_pylist()
    cut = [row for row in rows if row["finish"] == "stop_string"]
    assert cut and all(row["text"][-1] in "ae" for row in cut)
    assert all(not set("ae") & set(row["text"][:-1]) for row in rows)
    assert [label for label, _ in rows[0]["parts"]] == ["task", "length"]


def test_another_reward_keeps_the_cold_start_and_another_prompt_does_not(smoke: Path) -> None:
    def key(*settings: str) -> str:
        return cache_key(load(str(smoke), {}, settings))

    assert key() == key("task.rewards=[{name='task'},{name='format'}]") == key("task.deadline_s=9")
    assert key() != key("task.template='Add {question}'")
