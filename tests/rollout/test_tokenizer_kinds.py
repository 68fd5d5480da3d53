"""Prompts and demonstrations with every kind of tokenizer: what it puts around a text belongs to no response."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from gspo_cli.config import TaskConfig, TinyModel
from gspo_cli.models.load import load_tokenizer
from gspo_cli.models.tiny import TOKENIZERS, build_tiny, byte_tokenizer, tiny_tokenizer
from gspo_cli.recipe import load
from gspo_cli.rollout.chat_template import TemplateError, render
from gspo_cli.rollout.plain_tokenizer import PlainTokenizer, read_model
from gspo_cli.rollout.prompts import cut_at_stop, describe_prompt, encode, encode_response, prompt_notes
from gspo_cli.training.cold_start import demonstrations
from gspo_cli.training.study.inputs import tiny_of_plan
from gspo_cli.types import Problem, Sample

BOS, EOS, CLS, SEP = "<s>", "<eos>", "[CLS]", "[SEP]"
PROBLEM = Problem("p", "Was ist 1+1? é", "2")


def around(template: str) -> PreTrainedTokenizerFast:
    """One token per byte, and `template` around every text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [BOS, CLS, SEP]})
    names = [name for name in template.split() if name != "$A"]
    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in names]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama's: BOS before a text, a space before its first word, bytes for what is not in the vocabulary."""
    pieces = ["<unk>", BOS, "</s>", *(f"<0x{b:02X}>" for b in range(256)), *map(chr, range(33, 127)), "\u2581"]
    merges = [("\u2581", c) for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    pieces += [a + b for a, b in merges]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token="</s>", unk_token="<unk>")


def spaced() -> PreTrainedTokenizerFast:
    """As RoBERTa's: a space before every text."""
    tokenizer = around(f"{BOS} $A {EOS}")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


KINDS: dict[str, tuple[Callable[[], PreTrainedTokenizerBase], str, str]] = {
    "nothing": (lambda: byte_tokenizer(), "", ""),
    "BOS": (lambda: around(f"{BOS} $A"), BOS, ""),
    "EOS": (lambda: around(f"$A {EOS}"), "", EOS),
    "both": (lambda: around(f"{BOS} $A {EOS}"), BOS, EOS),
    "CLS and SEP": (lambda: around(f"{CLS} $A {SEP}"), CLS, SEP),
    "BOS that is EOS": (lambda: around(f"{EOS} $A"), EOS, ""),  # OPT
    "SentencePiece": (sentencepiece, BOS, ""),
    "a space": (spaced, BOS, EOS),
    "written in Python": (lambda: ByT5Tokenizer(extra_ids=0), "", "</s>"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[PreTrainedTokenizerBase, str, str]:
    make, before, after = KINDS[request.param]
    return make(), before, after


def test_a_prompt_keeps_what_comes_before_it_alone(kind: tuple[PreTrainedTokenizerBase, str, str]) -> None:
    tokenizer, before, after = kind
    prompt = encode(tokenizer, PROBLEM)
    assert str(tokenizer.decode(list(prompt.token_ids))).replace(" ", "") == before + PROBLEM.prompt.replace(" ", "")
    notes = prompt_notes(tokenizer, prompt)
    assert [after in note and "after every text" in note for note in notes] == ([True] if after else [])


def test_a_response_is_its_text_and_one_eos(kind: tuple[PreTrainedTokenizerBase, str, str]) -> None:
    tokenizer, _, _ = kind
    for text in ("42", "a = 1\n    b", "\n\nso: é", " 7"):
        ids = encode_response(tokenizer, text)
        assert ids.count(tokenizer.eos_token_id) == 1 and ids[-1] == tokenizer.eos_token_id
        assert not {tokenizer.bos_token_id, *tokenizer.convert_tokens_to_ids([BOS, CLS, SEP])} & set(ids[:-1]) - {
            None, tokenizer.unk_token_id
        }  # fmt: skip
        # beside a prompt, where a decoder strips nothing
        beside = tokenizer.decode([*tokenizer("x", add_special_tokens=False)["input_ids"], *ids[:-1]])
        assert str(beside).endswith(f"x{text}")


def test_a_response_that_writes_bos_or_eos_has_no_more_of_them(kind: tuple[PreTrainedTokenizerBase, str, str]) -> None:
    tokenizer, _, _ = kind
    if tokenizer.bos_token and tokenizer.bos_token != tokenizer.eos_token:
        assert encode_response(tokenizer, f"{tokenizer.bos_token}42") == encode_response(tokenizer, "42")
    assert encode_response(tokenizer, f"42{tokenizer.eos_token}") == encode_response(tokenizer, "42")


def test_bos_in_the_text_is_not_doubled() -> None:
    tokenizer = around(f"{BOS} $A")
    written = encode(tokenizer, Problem("p", f"{BOS}1+1?", ""))
    assert written.token_ids == encode(tokenizer, Problem("p", "1+1?", "")).token_ids


@pytest.mark.parametrize("name", KINDS)
def test_a_chat_template_writes_its_own(name: str) -> None:
    tokenizer = KINDS[name][0]()
    tokenizer.chat_template = "{{ bos_token or '' }}{% for m in messages %}[{{ m.content }}]{% endfor %}>"
    prompt = encode(tokenizer, PROBLEM)
    assert prompt.token_ids.count(tokenizer.bos_token_id) == (1 if tokenizer.bos_token else 0)
    assert str(tokenizer.decode(list(prompt.token_ids))).rstrip().endswith("]>")
    assert not prompt_notes(tokenizer, prompt)


@pytest.mark.parametrize("task", [TaskConfig(), TaskConfig(chat=False)], ids=["template", "text"])
def test_prompts_that_end_in_eos_are_named(task: TaskConfig) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    prompt = encode(tokenizer, PROBLEM if task.chat is None else Problem("p", f"1+1?{EOS}", ""), task)
    [note] = prompt_notes(tokenizer, prompt, task)
    assert EOS in note and ("chat template" if task.chat is None else "text of the problem") in note


def test_the_text_of_single_tokens_keeps_its_spaces(kind: tuple[PreTrainedTokenizerBase, str, str]) -> None:
    tokenizer, before, _ = kind
    problem = Problem("p", "so it is 3", "")
    text, ids, tokens = describe_prompt(tokenizer, encode(tokenizer, problem))
    assert "".join(tokens).removeprefix(before).removeprefix(" ") == problem.prompt
    assert len(tokens) == len(ids) and problem.prompt in text


def test_a_stop_string_may_be_a_special_token() -> None:
    tokenizer = around("$A")
    ids = tuple(tokenizer(f"12{SEP}34")["input_ids"])
    cut = cut_at_stop(tokenizer, Sample("p", 0, 7, ids, (-0.1,) * len(ids), "length", 0), (SEP,), 3)
    assert cut.token_ids == ids[:3] and cut.finish == "stop_string"


def test_demonstrations_have_nothing_around_them(
    kind: tuple[PreTrainedTokenizerBase, str, str], smoke: Path, tmp_path: Path
) -> None:
    tokenizer, before, _ = kind
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1+1=", "response": "2"}\n')
    recipe = load(str(smoke), {}, (f"cold_start.path={path}", "cold_start.steps=1", "cold_start.batch=1"))
    [(prompt, response)] = demonstrations(recipe, tokenizer)
    assert tuple(prompt) == encode(tokenizer, Problem("p", "1+1=", ""), recipe.task).token_ids
    assert response == encode_response(tokenizer, "2")
    assert str(tokenizer.decode(prompt + response)).replace(" ", "") == f"{before}1+1=2{tokenizer.eos_token}"


TEXTS = ("", "so it is 3", "a = 1\n    b", " é \U0001f600 \x00", f"{BOS}x{EOS} [CLS]</s>", "<pad><unk>")


@pytest.mark.parametrize("name", [name for name in KINDS if name != "written in Python"])  # which a run refuses
def test_a_plan_reads_the_same_tokens_as_the_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPO_CACHE", str(tmp_path / "cache"))
    tokenizer = KINDS[name][0]()
    tokenizer.chat_template = "{{ bos_token or '' }}{% for m in messages %}[{{ m.content }}]{% endfor %}>"
    tokenizer.save_pretrained(tmp_path / "model")
    build_tiny(TinyModel(), 0)[0].save_pretrained(tmp_path / "model")
    run = load_tokenizer(str(tmp_path / "model"), None, local=True)
    read_model(str(tmp_path / "model"), None)
    plan = read_model(str(tmp_path / "model"), None).tokenizer
    assert isinstance(plan, PlainTokenizer)
    for text in TEXTS:
        for special in (False, True):
            assert (
                plan(text, add_special_tokens=special)["input_ids"]
                == run(text, add_special_tokens=special)["input_ids"]
            )
        ids = run(text)["input_ids"]
        assert [plan.decode(ids, skip_special_tokens=skip) for skip in (False, True)] == [
            run.decode(ids, skip_special_tokens=skip) for skip in (False, True)
        ]
    for task in (TaskConfig(), TaskConfig(chat=False), TaskConfig(system="Sei kurz.")):
        prompt = encode(plan, PROBLEM, task)
        assert prompt == encode(run, PROBLEM, task)
        assert prompt_notes(plan, prompt, task) == prompt_notes(run, prompt, task)
        assert describe_prompt(plan, prompt) == describe_prompt(run, prompt)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_plan_of_a_tiny_model_reads_the_same_tokens(kind: str) -> None:
    plan, run = tiny_of_plan(kind), tiny_tokenizer(kind)
    for text in TEXTS:
        assert plan(text)["input_ids"] == run(text)["input_ids"]
        assert plan.decode(run(text)["input_ids"]) == run.decode(run(text)["input_ids"])
    assert (plan.eos_token_id, plan.special_tokens_map) == (run.eos_token_id, run.special_tokens_map)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\n  {{ m | trim }}{% endfor %}",
        "{%- for m in messages -%}{% generation %}{% set x = 1 %}{{ x }}{{ m }}{% endgeneration %}{%- endfor %}{{ x }}",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 'é<', 'a': 1} | tojson(sort_keys=true) }}",
        "{{ raise_exception('no system prompt') }}",
        "{% if tools %}tools{% endif %}{{ tools is none }}{{ documents is defined }}{{ bos_token }}{{ unknown }}",
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].role) }}{% if add_generation_prompt %}A{% endif %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ messages[0].content.__class__ }}", "{{ messages.append(1) }}",
        "{{ ''.join(messages | map(attribute='role')) }}{{ messages[-1:] }}", "{% broken",
    ],
)  # fmt: skip
def test_a_chat_template_gives_what_transformers_gives(template: str) -> None:
    messages = [{"role": "system", "content": "Sei kurz. "}, {"role": "user", "content": " 1<2? \n"}]
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    try:
        wanted: str | type[Exception] = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True, **variables
        )[0][0]
    except Exception as error:
        with pytest.raises(TemplateError, match=f"^{type(error).__name__}: {re.escape(str(error))}"):
            render(template, messages, variables)
    else:
        assert render(template, messages, variables) == wanted


def test_a_template_s_clock_stands_still() -> None:
    """Else neither the same seed nor a resume would give the same prompts on another day."""
    assert render("{{ strftime_now('%d %b %Y') }}", [], {}) == "26 Jul 2024"
