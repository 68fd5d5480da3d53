"""Wrong input ends with exit code 2, three lines that say what to do, and nothing half-written."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, check_refused, save_tiny, tree
from safetensors.torch import load_file, save_file

from gspo_cli.cli.main import slip_in
from gspo_cli.errors import GspoError
from gspo_cli.runlog.folder import writable

ROW = '{"question": "1+1?", "answer": "2"}\n'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder; leave it unchanged."""
    return save_tiny(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def model(small: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(small, tmp_path / "model")


# By the program itself: these are found before anything heavy is imported


def test_the_process_ends_with_2(gspo: Gspo, tmp_path: Path) -> None:
    done = gspo("train", "quikstart", "--out", tmp_path / "results")
    check_refused(done, "no recipe 'quikstart'", "did you mean 'quickstart'?")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --algo grpo --algo gspo", ["--algo is given twice", "--algo grpo,gspo"]),
        ("train quickstart --seed=1 --seed 2 --dry-run", ["--seed is given twice"]),
        ("report compare x --metric a --metric b --json", ["--metric is given twice"]),
        ("train -algo grpo", ["no option '-algo'", "write --algo"]),
        ("train \u2014algo=grpo", ["two hyphens", "write --algo=grpo"]),
        ("runs ls \u2013json", ["write --json"]),
        ("train --set task.template=\udcff{question}", []),
    ],
)
def test_slips_that_the_parser_would_take_in_silence(words: str, told: list[str]) -> None:
    found = slip_in(words.split())
    assert found is not None and found.code == 2 and all(word in str(found) for word in told)


@pytest.mark.parametrize(
    "words", ["train --set a=1 --set b=2", "train --dry-run --dry-run", "runs samples x --grep -no"]
)
def test_what_may_be_repeated_or_begin_with_a_hyphen(words: str) -> None:
    assert slip_in(words.split()) is None


# In this process


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algo", "gsppo"], ["no algorithm or arm 'gsppo'", "did you mean 'gspo'?"]),
        (["--algo", "gspo,grpo,gspo"], ["is not a list of arms"]),
        (["--seed", "-1"], ["seed -1 is out of range"]),
        (["--seeds", "0-x"], ["--seeds 0-x is not a list of seeds", "'0-x'"]),
        (["--name", "a/b"], ["'a/b' is not a valid study name", "--name"]),
        (["--seed", "1", "--seeds", "0-3"], ["--seed and --seeds together"]),
        (["--seeds", "1,0-2"], ["names a seed twice"]),
        (["--seeds", "9" * 5000], ["is not a list of seeds"]),
        (["--seeds", "\u0661-\u0663"], ["is not a list of seeds"]),
        (["--seeds", "0-999999999"], ["names 1000000000 seeds", "at most 10000"]),
        (["--seed", f"{2**63}"], ["is out of range"]),
        (["--name", "x" * 65], ["is not a valid study name"]),
        (["--set", "eval.bench=['arithmetik']"], ["no benchmark 'arithmetik'", "did you mean 'arithmetic'?"]),
        (["--name", "one", "--set", "name=two"], ["--name and --set name"]),
        (["--seeds", "0-1", "--set", "seed=5"], ["--seed and --set seed"]),
        (["--sweep", "train.lr=1e-4,2e-4", "--grid", "algo.lr=1e-4,2e-4"], ["--grid and --sweep"]),
        (["--set", "model.device=gpu", "--dry-run"], ["a device is auto, cpu, cuda", "given: 'gpu'"]),
        (["--set", "model.device=meta"], ["a device is auto, cpu, cuda", "given: 'meta'"]),
        (["--set", "model.device=cuda:1"], ["cannot use device 'cuda:1'", "model.device"]),
        (["--set", "rollout.prompts=30000"], ["20000 problems, but a rollout batch takes 30000"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_arguments(gspo_here: Gspo, smoke: Path, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    check_refused(gspo_here("train", smoke, "--out", tmp_path / "results", *arguments), *words)
    assert tree(tmp_path) == {}


# Data


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.jsonl", None, ["no data file", "absent.jsonl"]),
        ("rows.xlsx", "question,answer\n1+1,2\n", ["cannot read", ".jsonl"]),
        ("rows.jsonl", '{"question": "1+1?", "antwort": "2"}\n', ["no column 'answer'", "antwort"]),
        ("rows.jsonl", f'{ROW}{{"question": "1+1?"\n', ["rows.jsonl, line 2 is not JSON"]),
        ("rows.jsonl", f'{ROW}{{"question": "\\ud800", "answer": "2"}}\n', ["line 2", "is no text", "surrogate"]),
        ("rows.jsonl", "", ["rows.jsonl holds no rows"]),
        ("rows.jsonl", f'{ROW}{{"question": "1+1?", "answer": null}}\n', ["line 2 has no 'answer'", "null"]),
        ("rows.jsonl", f'{ROW}{{"question": "\xe9?", "answer": "2"}}\n'.encode("latin-1"),
         ["line 2 is not UTF-8", "0xe9", "iconv"]),
        ("rows.json", '[{"question": "\xe9?", "answer": "2"}]'.encode("latin-1"), ["rows.json is not UTF-8", "0xe9"]),
        ("rows.jsonl", ROW.encode("utf-16"), ["line 1 is not UTF-8", "iconv -f UTF-16"]),
        ("rows.csv", "question,answer\n1+1?,2\n".encode("utf-16"), ["rows.csv is not UTF-8", "iconv -f UTF-16 -t"]),
        ("rows.jsonl", '{"question": "1+1?", "answer": "2"}\n', ["1 problems, but a rollout batch takes 4"]),
    ],
)  # fmt: skip
def test_wrong_data(
    gspo_here: Gspo, smoke: Path, small: Path, tmp_path: Path, name: str, content: str | bytes | None, words: list[str]
) -> None:
    data = tmp_path / name
    if content is not None:
        data.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = tree(tmp_path)
    arguments = ["--set", "task.name=gsm8k", "--set", f"task.path={data}", "--set", "eval.bench=[]", "--model", small]
    for planning in ([], ["--dry-run"]) if "row" in words[0] else ([],):
        check_refused(gspo_here("train", smoke, "--out", tmp_path / "results", *arguments, *planning), *words)
    assert tree(tmp_path) == before


# Models


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (".", shutil.rmtree, ["no model in", "the folder does not exist"]),
        ("config.json", Path.unlink, ["no model in", "it has no config.json"]),
        ("tokenizer.json", Path.unlink, ["no tokenizer in", "save_pretrained"]),
        ("model.safetensors", Path.unlink, ["cannot load the model"]),
        ("model.safetensors", cut_off, ["model.safetensors is damaged", "by its header"]),
        ("model.safetensors.index.json", lambda file: file.write_text('{"weight_map": {"a": "model-2.safetensors"}}'),
         ["no file model-2.safetensors"]),
        ("model.safetensors.index.json", lambda file: file.write_text("{"), ["index.json is damaged"]),
        ("model.safetensors.index.json", lambda file: file.write_text('{"weight_map": {"a": 7}}'), ["index.json"]),
        ("tokenizer.json", cut_off, ["cannot load the tokenizer"]),
        ("config.json", cut_off, ["config.json"]),
    ],
)  # fmt: skip
def test_a_damaged_model_is_refused_before_anything_is_announced(
    gspo_here: Gspo, smoke: Path, model: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any],
    words: list[str],
) -> None:  # fmt: skip
    damage(model / name)
    before = tree(tmp_path)
    train = ("train", smoke, "--model", model, "--out", tmp_path / "results")
    for command in (train, (*train, "--dry-run"), ("rollout", *train[1:]), ("eval", "benchmarks", *train[3:])):
        done = gspo_here(*command)
        if "--dry-run" not in command or done.code:
            check_refused(done, *words, str(model))
        assert "study" not in done.err or damage is Path.unlink  # a folder without weights is found when it is loaded
        assert tree(tmp_path) == before
        assert not list((tmp_path / "results").glob("*"))


def put(folder: Path, file: str, **changes: Any) -> None:
    """Changes the upper keys of a JSON file."""
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))


def spoil(model: Path) -> None:
    """A weight that only a token that no prompt has would meet."""
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][-1, 0] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def shift_digits(model: Path) -> None:
    """A vocabulary of more tokens than the model has."""
    whole = json.loads((model / "tokenizer.json").read_text())["model"]
    shifted = {token: number + 5000 * token.isdigit() for token, number in whole["vocab"].items()}
    put(model, "tokenizer.json", model=whole | {"vocab": shifted})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda m: put(m, "config.json", intermediate_size=24), ["other shapes than its config.json says"]),
        (lambda m: put(m, "config.json", num_hidden_layers=0), ["num_hidden_layers = 0"]),
        (lambda m: put(m, "config.json", num_hidden_layers=10**9), ["1e+09"]),
        (lambda m: put(m, "config.json", vocab_size=10**10), ["vocab_size = 1e+10"]),
        (spoil, ["NaN or infinite", "embed_tokens"]),
        (shift_digits, ["the model has no token 50", "tokenizer"]),
        # a panic of the tokenizers library
        (lambda m: put(m, "tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
         ["tokenizer"]),
        (lambda m: put(m, "tokenizer_config.json", model_max_length="x"), ["the tokenizer fails", "TypeError"]),
        (lambda m: put(m, "tokenizer.json", model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
         ["the tokenizer fails", "UNK"]),
    ],
)  # fmt: skip
def test_a_model_or_tokenizer_that_would_fail_later_is_refused(
    gspo_here: Gspo, smoke: Path, model: Path, tmp_path: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    damage(model)
    check_refused(gspo_here("rollout", smoke, "--model", model, "--out", tmp_path / "batch"), *words)
    assert not (tmp_path / "batch").exists()


# Folders


def used(out: Path) -> Path:
    """A run folder as an interrupted run leaves it: 1 of 2 steps."""
    run = out / "mine" / "gspo-s0"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "config.json").write_text('{"train": {"steps": 2}}')
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    return run


def test_a_used_run_folder_is_refused_and_the_ways_out_named(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    run = used(tmp_path)
    before = tree(tmp_path)
    train = ("train", smoke, "--out", tmp_path, "--set", "eval.bench=[]", "--steps", "1", "--name")
    check_refused(gspo_here(*train, "mine"), f"{run} already holds a run (1 of 2 steps)", "--overwrite", "--name OTHER")
    assert tree(tmp_path) == before
    check_refused(gspo_here(*train, "mine", "--seeds", "0-1"), f"--resume {tmp_path / 'mine'} to continue")

    assert gspo_here(*train, "other").code == 0
    assert before.items() <= tree(tmp_path).items()
    assert (tmp_path / "other" / "gspo-s0" / "run.json").is_file()

    assert gspo_here(*train, "mine", "--overwrite").code == 0
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "other" / "gspo-s0" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("key", ["model.path=x", "model.tiny.layers=1", "cold_start.steps=1"])
def test_a_run_samples_with_its_own_checkpoint(gspo_here: Gspo, tmp_path: Path, key: str) -> None:
    done = gspo_here("rollout", used(tmp_path), "--out", tmp_path / "batch", "--set", key)
    check_refused(done, "a run samples with its own checkpoint")
    assert not (tmp_path / "batch").exists()


def test_overwrite_leaves_what_it_does_not_know(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    run = used(tmp_path)
    (run / "run.json").unlink()
    before = tree(tmp_path)
    done = gspo_here("train", smoke, "--out", tmp_path, "--name", "mine", "--overwrite")
    check_refused(done, "will not delete", "no run.json")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("arguments", [["--set", "eval.bench=['nothing']"], ["--model", "/no-model"]])
def test_overwrite_deletes_nothing_for_a_study_that_cannot_run(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, arguments: list[str]
) -> None:
    used(tmp_path)
    before = tree(tmp_path)
    check_refused(gspo_here("train", smoke, "--out", tmp_path, "--name", "mine", "--overwrite", *arguments))
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("taken", "words", "said"),
    [
        ("taken", "train SMOKE --out taken", "cannot write"),
        ("taken", "rollout SMOKE --out taken/results", "cannot write"),
        ("mine", "train SMOKE --out . --name mine", "is not a folder"),
        ("step_000001.parquet", "rollout SMOKE --out .", "exists"),
        ("kept", "cold-start SMOKE --out .", "exists"),
        ("kept", "cold-start gsm8k --out new", "no [cold_start]"),
    ],
)
def test_nothing_takes_the_place_of_a_file(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str, words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(taken).write_text("a file, not a folder")
    check_refused(gspo_here(*words.replace("SMOKE", str(smoke)).split()), said)
    assert tree(tmp_path) == {taken: b"a file, not a folder"}


def test_a_full_disk_leaves_no_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GspoError, match="cannot write"), writable(tmp_path / "new" / "batch"):
        pass
    assert list(tmp_path.iterdir()) == []


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
    (["task.chat=false", "task.system=x"], "system needs the chat template"),
    (["task.template=no place"], "{question}"),
    (["task.rewards=[{name='length'}]"], "tokens = [START, END]"),
    (["task.rewards=[{name='format',pattern='('}]"], "no regular expression"),
    (['model.lora.targets=["q_prj"]'], "['q_prj'] with Qwen3MoeForCausalLM"),
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


OF_TRAINING = (
    *("rollout.stop=['1']", "rollout.temperature=0.1", "rollout.samples=7", "rollout={max_lag=3}"),
    *("model.tiny.hidden=32", "model.path=nope"),
)
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
    ("train --nproc 2", "--nproc"),
    ("train --gpus-per-run 1", "--gpus-per-run"),
    ("train --jobs 2 --launcher torchrun", "--jobs"),
    ("rollout gsm8k --set task.path=rows.jsonl --show-prompt", "line 1 has no 'answer'"),
    ("runs show absent", "absent"),
    ("runs export --to paper", "paper"),
    ("runs import absent.json --algo gspo --name x", "absent.json"),
    ("runs import log.json --algo gspo --name x --arm a/b", "a/b"),
    (f"report compare {'x' * 300}", "File name too long"),
    ("report explain rewrd/mean", "did you mean 'reward/mean'?"),
    ("recipes copy quickstart broken.toml", "exists"),
    ("eval benchmarks folder", "folder"),
    ("eval benchmarks --out new", "no runs under"),
    ("train --resume folder --dry-run", "--dry-run with --resume"),
    # what has no effect
    ("train --algo gspo --set algo.lr=1e-5 --set arms.gspo.lr=1e-3 --dry-run", "no arm takes it"),
    ("train --algo gspo --sweep algo.lr=1e-5,1e-4 --set arms.gspo.lr=1e-3 --dry-run", "no arm takes it"),
    ("rollout quickstart --model m --set model.tiny.hidden=32", "both decide the model"),
    ("rollout quickstart --show-prompt --seed 5", "--show-prompt with --seed"),
    ("report fidelity --set noise.tail=student_t", "--noise and --set noise.tail"),
    ("report fidelity --pool a --pool b --seeds 7", "--pool with --seeds"),
    ("report fidelity quickstart --pool a", "--pool with RECIPE"),
    ("eval benchmarks --answers a.jsonl --limit 2", "--answers with --limit"),
    ("eval benchmarks --answers a.jsonl --set x=1", "--answers with --set"),
    *((f"eval benchmarks m --bench arithmetic --set {one}", "has no part in an evaluation") for one in OF_TRAINING),
]


@pytest.mark.parametrize(("command", "word"), COMMANDS, ids=str)
def test_commands(gspo_here: Gspo, here: Path, command: str, word: str) -> None:
    before = tree(here)
    check_refused(gspo_here(*command.split()), word)
    assert tree(here) == before


def test_a_thousand_arms_are_refused_before_any_is_resolved(gspo_here: Gspo, smoke: Path) -> None:
    arms = ",".join(f"a{number}={{name='gspo'}}" for number in range(1001))
    check_refused(gspo_here("train", smoke, "--set", f"arms={{{arms}}}", "--dry-run"), "a study of 1001 arms")
