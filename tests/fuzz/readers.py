"""Every reader of files from outside, with a valid file each; and mutations of files that break them."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from program import save_tiny

from gspo_cli import recipe
from gspo_cli.config import ModelConfig
from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import livecodebench
from gspo_cli.evals.benchmarks.elo import read_contests, read_ratings, read_submissions
from gspo_cli.evals.data import raw_problems
from gspo_cli.evals.targets import find_targets
from gspo_cli.instruments.batch.data import METADATA, read_batch
from gspo_cli.models.load import load_policy
from gspo_cli.models.lora import adapter_base
from gspo_cli.plan.architecture import architecture_of
from gspo_cli.report.compare.eval_log import read_evaluation
from gspo_cli.rewards.graders import GRADERS, read_rows
from gspo_cli.runlog.import_logs import import_run
from gspo_cli.runlog.trainer_config import read_config
from gspo_cli.tasks.data import load_rows

INSPECT = Path(__file__).parents[1] / "report" / "inspect" / "base.eval"
TRAINER_YAML = b"epsilon: 0.2\nmodel: {path: x, layers: [1, 2]}\nshared: &a [x]\nagain: *a\nseed: 3\n"
DETAILS = pa.Table.from_pylist(
    [{"doc": {"id": str(n), "query": "?"}, "metric": {"em": n % 2, "f1": 0.5}} for n in range(3)]
)
SMOKE = Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"


@dataclass(frozen=True)
class Reader:
    """A way in."""

    file: str
    """The name of the file that is mutated, within the folder that `read` gets."""
    content: bytes
    read: Callable[[Path], object]
    """Reads the file in a folder. Errors: GspoError."""
    weight: int = 1
    """Its share of the cases; a slow reader gets fewer."""


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


PROBLEMS = [{"id": i, "problem": f"What is {i} + 1?", "answer": str(i + 1), "year": 2.5} for i in range(3)]
TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["2", "3"], "fn_name": None}
PROGRAMS = [{"id": "a", "kind": "stdin", "code": "print(1)", "tests": TESTS}]
TRL = {"global_step": 2, "log_history": [{"step": 1, "reward": 0.5, "grad_norm": 1.0}, {"step": 2, "reward": 0.7}]}
VERL = [{"step": i, "data": {"critic/score/mean": 0.5, "timing_s/gen": 2.0}} for i in (1, 2)]
CONTESTS = {
    "1350": {"name": "c", "problems": [{"index": "A", "points": 500}, {"index": "B", "points": None}],
             "rows": [[500, 0, 1500], [0, 10, 1200]]}
}  # fmt: skip
SUBMISSIONS = [{"contest": 1350, "problem_status": {"1350A": ["WA", "AC"]}}]
CODE = {
    "question_id": "abc", "question_title": "t", "question_content": "Add.", "contest_date": "2024-11-01T00:00:00",
    "platform": "atcoder", "starter_code": "", "metadata": "{}", "difficulty": "easy", "contest_id": "abc300",
    "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]), "private_test_cases": "",
}  # fmt: skip
ROLLOUT = pa.Table.from_pylist(
    [{"step": 1, "problem_id": "p", "sample": i, "prompt_ids": [1, 2], "token_ids": [3], "log_probs": [-0.5],
      "finish": "stop", "reward": 1.0} for i in (0, 1)]
).replace_schema_metadata({f"gspo.{name}": "1.0" for name in METADATA})  # fmt: skip


def _import_log(folder: Path, name: str) -> object:
    shutil.rmtree(folder / "study", ignore_errors=True)
    try:
        return import_run(folder / name, folder / "study", "gspo", "gspo", 0)
    except Exception:
        assert not list(folder.glob("study/*")), "half a run was written"
        raise


def _submissions(folder: Path) -> object:
    (folder / "contests.json").write_text(json.dumps(CONTESTS))
    return read_submissions(folder / "submissions.json", read_contests(folder / "contests.json"))


def _livecodebench(folder: Path) -> object:
    return livecodebench.load(DataChoice((folder / "test.jsonl",)))


def _run_folder(folder: Path) -> object:
    (folder / "checkpoints/step-000001/model").mkdir(parents=True, exist_ok=True)
    for name in ("run.json", "config.json"):
        if not (folder / name).exists():
            (folder / name).write_text('{"seed": 1, "model": {}, "rollout": {}}')
    return find_targets(str(folder), folder, False, None, [])


def small_readers() -> dict[str, Reader]:
    """Those that need no model."""
    answers = [{"id": 1, "response": "\\boxed{2}", "gold": "2"}]
    return {
        "recipe": Reader("mine.toml", SMOKE.read_bytes(), lambda f: recipe.load(str(f / "mine.toml"))),
        "problems.jsonl": Reader("p.jsonl", _lines(PROBLEMS), lambda f: raw_problems([f / "p.jsonl"])),
        "problems.json": Reader(
            "p.json", json.dumps(PROBLEMS).encode(), lambda f: raw_problems([f / "p.json"])
        ),
        "problems.parquet": Reader(
            "p.parquet", _parquet(pa.Table.from_pylist(PROBLEMS)),
            lambda f: raw_problems([f / "p.parquet"]),
        ),
        "answers.jsonl": Reader("a.jsonl", _lines(answers), lambda f: read_rows(f / "a.jsonl", GRADERS["math"])),
        "programs.jsonl": Reader("a.jsonl", _lines(PROGRAMS), lambda f: read_rows(f / "a.jsonl", GRADERS["script"])),
        "TRL log": Reader("trl.json", json.dumps(TRL).encode(), lambda f: _import_log(f, "trl.json")),
        "verl log": Reader("verl.jsonl", _lines(VERL), lambda f: _import_log(f, "verl.jsonl")),
        "trainer's YAML": Reader("c.yaml", TRAINER_YAML, lambda f: read_config(f / "c.yaml")),
        "trainer's JSON": Reader("c.json", b'{"epsilon": 0.2, "m": {"x": 1}}', lambda f: read_config(f / "c.json")),
        "Inspect's log": Reader("l.eval", INSPECT.read_bytes(), lambda f: read_evaluation(f / "l.eval")),
        "lighteval's details": Reader("d.parquet", _parquet(DETAILS), lambda f: read_evaluation(f / "d.parquet")),
        "contests": Reader("c.json", json.dumps(CONTESTS).encode(), lambda f: read_contests(f / "c.json")),
        "submissions": Reader("submissions.json", json.dumps(SUBMISSIONS).encode(), _submissions),
        "ratings": Reader("r.json", b'{"ratings": {"1200": 3, "1500": 1}}', lambda f: read_ratings(f / "r.json")),
        "livecodebench": Reader("test.jsonl", _lines([CODE]), _livecodebench),
        "rollout batch": Reader("step.parquet", _parquet(ROLLOUT), lambda f: read_batch(f / "step.parquet")),
        "run.json": Reader("run.json", b'{"seed": 1, "schema": 1}', _run_folder),
        "config.json of a run": Reader(
            "config.json", b'{"model": {"dtype": "float32"}, "rollout": {"engine": "transformers"}}', _run_folder
        ),
    }  # fmt: skip


def model_readers(folder: Path) -> dict[str, Reader]:
    """Those of a model's folder, which is made here, and of training data; `folder` = where copies may lie."""
    source = save_tiny(folder / "model", hidden=8)

    def load(f: Path) -> object:
        for path in source.iterdir():
            if not (f / path.name).exists():
                shutil.copy(path, f)
        return load_policy(ModelConfig(path=str(f), device="cpu"), f)

    readers = {
        f"model's {name}": Reader(name, (source / name).read_bytes(), load)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
                     "model.safetensors")
    }  # fmt: skip
    config = (source / "config.json").read_bytes()
    adapter = {"base_model_name_or_path": str(source), "peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    return readers | {
        "planner's config.json": Reader(
            "config.json", config, lambda f: architecture_of(ModelConfig(path=str(f))), weight=2
        ),
        "adapter_config.json": Reader(
            "adapter_config.json", json.dumps(adapter).encode(), lambda f: adapter_base(f), weight=2
        ),
        "training data": Reader(
            "t.jsonl", _lines(PROBLEMS),
            lambda f: load_rows(str(f / "t.jsonl"), None, "train", {"prompt": "problem", "answer": "answer"}),
        ),
    }  # fmt: skip


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, -0.5, "", "x" * 2000, "\0", "\ud800", "\u202e", "../x", [], [[]],
    {}, {"": None}, [None] * 50, "nan", "1e999",
)  # fmt: skip
RAW = (
    b"1e999", b"NaN", b"-Infinity", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"\x00", b'"\\ud800"', b"{",
    b"}", b"\xef\xbb\xbf", b"'", b'"""', b"\r", b"1e-400", b"-0", b"null",
)  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three changes: of its JSON values where it is JSON, else, or as often, of its bytes."""
    for _ in range(rng.randint(1, 3)):
        structured = _other_value(content, rng) if rng.random() < 0.5 else None
        content = _other_bytes(content, rng) if structured is None else structured
    return content


def _other_value(content: bytes, rng: random.Random) -> bytes | None:
    """One value of a JSON file, or of one line of it, replaced, removed, doubled or renamed; None if it is no JSON."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    whole = lines[at] if b"{" in lines[at] and len(lines) < 20 else content
    try:
        value = json.loads(whole)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value))
    if not places:
        return json.dumps(rng.choice(ODD)).encode()
    holder, key = rng.choice(places)
    change = rng.random()
    if change < 0.7:
        holder[key] = rng.choice(ODD)
    elif change < 0.85 or isinstance(holder, list):
        del holder[key]
    else:
        holder[rng.choice(("", "\ud800", "step", "x" * 300))] = holder.pop(key)
    try:
        changed = json.dumps(value).encode()
    except ValueError:  # an integer too long to print
        return None
    if whole is content:
        return changed
    return b"\n".join([*lines[:at], changed, *lines[at + 1 :]])


def _places(value: Any) -> Any:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(inner):
        yield value, key
        yield from _places(part)


def _other_bytes(content: bytes, rng: random.Random) -> bytes:
    start, length = rng.randrange(len(content) + 1), rng.choice((0, 1, 2, 8, 50))
    change = rng.random()
    if change < 0.3:
        new = bytes(rng.randrange(256) for _ in range(max(length, 1)))
        return content[:start] + new + content[start + len(new) :]
    if change < 0.6:
        return content[:start] + rng.choice(RAW) + content[start + length :]
    if change < 0.75:
        return content[:start]
    if change < 0.9:
        return content[:start] + content[start + length + 1 :]
    return content[:start] + content[max(0, start - length - 1) :]
