"""`gspo eval benchmarks` as a user meets it: real data end to end, settings, several benchmarks, bad input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from program import Done, Gspo, check_refused, objects, ok, tree, write_rows

from gspo_cli.seeds import derive_seed

FAST = ["--set", "model.threads=1", "--max-tokens", "6"]
AIME = [{"id": 60 + i, "problem": f"What is {i} + 1?", "answer": f"{i + 1:03}"} for i in range(3)]


@pytest.fixture
def aime(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "aime.jsonl", AIME)


@pytest.mark.parametrize(("name", "size"), [("aime24", 30), ("math500", 20)])
def test_end_to_end_on_real_problems(evaluate: Callable[..., Done], shared_data: Path, name: str, size: int) -> None:
    data = ("--data", f"{name}={shared_data / name}.jsonl", "--limit", "20" if size == 20 else "99")
    done = ok(evaluate("--bench", name, *data, "--samples", "1", "--json"))
    (said,) = objects(done.out)
    folder = Path(said.pop("folder"))
    assert said == json.loads((folder / "summary.json").read_text())
    assert (said["num_problems"], said["num_answers"], said["metric"]) == (size, size, f"{name}/avg@1")
    assert said["data"]["fingerprint"] == said["data"]["fingerprint_expected"]
    rows = pq.read_table(folder / "answers.parquet").to_pylist()
    assert {row["verdict"] for row in rows} <= {"wrong", "no_answer", "correct"}
    assert not any(row["grader_error"] for row in rows)


def test_right_answers_score(evaluate: Callable[..., Done], aime: Path, answering: Callable[..., None]) -> None:
    """Problem 60 (answer 1): both samples right; 61 (2): one right; 62 (3): a wrong one, and none."""
    said = {
        ("60", 0): "So \\boxed{001}.", ("60", 1): "<think>\\boxed{7}</think> \\boxed{1}",
        ("61", 0): "\\boxed{2}", ("61", 1): "\\boxed{3}", ("62", 0): "it is \\boxed{100}", ("62", 1): "3 or so",
    }  # fmt: skip
    answering(lambda problem, sample: said[problem, sample])
    done = evaluate("--bench", "aime24", "--data", f"aime24={aime}", "--samples", "2", "--json")
    (summary,) = objects(done.out)
    assert summary["average"] == 0.5
    assert summary["verdicts"] == {"correct": 3, "wrong": 2, "no_answer": 1, "grader_error": 0}
    assert any("fingerprint" in warning for warning in summary["warnings"])


def test_the_summary_records_what_the_answers_depend_on(evaluate: Callable[..., Done], aime: Path) -> None:
    done = evaluate("--bench", "aime24", "--data", f"aime24={aime}", "--samples", "3", "--top-k", "7", "--seed", "4", "--json")  # fmt: skip # noqa: E501
    (summary,) = objects(done.out)
    assert summary["sampling"] == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 7, "min_p": 0.0, "max_new_tokens": 6, "n": 1,
        "seed": "one an answer, see answers.parquet",
    }  # fmt: skip
    assert {
        "seed", "engine", "dtype", "model_commit", "model_sha256", "tokenizer_sha256", "chat_template_sha256",
    } <= summary.keys()  # fmt: skip
    assert {"release", "window", "revision", "ids_sha256", "excluded", "files"} <= summary["data"].keys()
    assert {"version", "python", "numpy", "sandbox", "unsafe_local"} <= summary["grader"].keys()
    rows = pq.read_table(Path(summary["folder"]) / "answers.parquet").to_pylist()
    seeds = [row["seed"] for row in rows]
    assert seeds == [derive_seed(4, "eval-aime24", 0, row["problem_id"], row["sample"]) for row in rows]
    assert len(set(seeds)) == 9


def test_the_same_seed_gives_the_same_answers_however_many_are_drawn(
    evaluate: Callable[..., Done], aime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = []
    for portion, samples in ((256, "4"), (2, "4"), (3, "2")):
        monkeypatch.setattr("gspo_cli.evals.runner.PORTION", portion)
        done = evaluate("--bench", "aime24", "--data", f"aime24={aime}", "--samples", samples, "--overwrite", "--json")
        rows = pq.read_table(Path(objects(done.out)[0]["folder"]) / "answers.parquet").to_pylist()
        tables.append({(row["problem_id"], row["sample"]): row["text"] for row in rows})
    assert tables[0] == tables[1]
    assert tables[2].items() <= tables[0].items() and len(tables[2]) == 6


def test_several_benchmarks_go_on_when_one_fails(evaluate: Callable[..., Done], aime: Path, tmp_path: Path) -> None:
    done = evaluate("--bench", "aime24,gsm8k,arithmetic", "--data", f"aime24={aime}", "--samples", "1", "--limit", "2")
    assert done.code == 2
    assert "cannot get the problems of gsm8k" in done.err and "hf download openai/gsm8k" in done.err
    assert "aime24" in done.out and "arithmetic" in done.out and "gsm8k" not in done.out
    assert sorted(p.name for p in next((tmp_path / "out").iterdir()).iterdir()) == ["aime24", "arithmetic"]


def test_a_chat_template_is_used_and_its_open_thinking_part_counts(
    gspo_here: Gspo, tiny: Path, aime: Path, tmp_path: Path, answering: Callable[..., None]
) -> None:
    chat = tmp_path / "chat"
    shutil.copytree(tiny, chat)
    (chat / "chat_template.jinja").write_text("<user>{{ messages[0]['content'] }}</user>{{ '<think>' }}")
    answering(lambda _problem, sample: "\\boxed{1}" if sample else "hm</think>\\boxed{1}")
    done = gspo_here(
        "eval", "benchmarks", chat, "--out", tmp_path / "out", *FAST, "--bench", "aime24", "--data", f"aime24={aime}",
        "--samples", "2", "--limit", "1", "--json",
    )  # fmt: skip
    (summary,) = objects(done.out)
    assert len(summary["chat_template_sha256"]) == 64
    assert summary["verdicts"]["correct"] == 1 and summary["reasons"].get("unclosed") == 1
    stored = Path(summary["folder"]) / "answers.parquet"
    command = ("eval", "benchmarks", "--answers", stored, "--bench", "aime24", "--data", f"aime24={aime}", "--json")
    assert objects(ok(gspo_here(*command, "--out", tmp_path / "again")).out)[0]["verdicts"] == summary["verdicts"]


def test_stored_answers_are_graded_again_when_what_decides_changes(
    evaluate: Callable[..., Done], aime: Path, answering: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(lambda _problem, _sample: "\\boxed{1}")
    command = ("--bench", "aime24", "--data", f"aime24={aime}", "--samples", "1", "--json")
    assert objects(ok(evaluate(*command)).out)[0]["average"] == pytest.approx(1 / 3)
    monkeypatch.setattr("gspo_cli.rollout.builtin.engine.sample", None)  # nothing may be drawn
    again = ok(evaluate(*command))
    assert "used again" in again.err
    write_rows(aime, [row | {"answer": "1"} for row in AIME])
    again = ok(evaluate(*command))
    assert "are graded again (data.files.aime.jsonl: " in again.err and objects(again.out)[0]["average"] == 1.0


def test_stored_answers_replace_no_other_evaluation(
    gspo_here: Gspo, tiny: Path, aime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, "mine")
    write_rows(tmp_path / "mine.jsonl", [{"problem_id": "60", "sample": 0, "text": "1"}])
    data = ("--bench", "aime24", "--data", f"aime24={aime}", "--out", "out")
    ok(gspo_here("eval", "benchmarks", "mine", *FAST, *data, "--samples", "1"))
    place = tmp_path / "out" / "eval-mine" / "aime24"
    before = tree(place)
    check_refused(gspo_here("eval", "benchmarks", "--answers", "mine.jsonl", *data), "holds graded answers")
    (place / "summary.json").unlink()  # as if it had been killed
    check_refused(
        gspo_here("eval", "benchmarks", "--answers", "mine.jsonl", *data), "with other settings", "--overwrite"
    )
    assert tree(place).items() <= before.items()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_stored_answers_are_graded_without_a_model(gspo_here: Gspo, aime: Path, tmp_path: Path, suffix: str) -> None:
    import pandas as pd

    rows = [
        {"problem_id": "60", "sample": 0, "text": "\\boxed{1}"},
        {"problem_id": "60", "sample": 1, "text": "\\boxed{2}"},
        {"problem_id": "61", "sample": 0, "text": "\\boxed{2} \x00\x1b[31m" + ("\ud800" if suffix == "jsonl" else "")},
    ]
    path = tmp_path / f"mine.{suffix}"
    if suffix == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        write_rows(path, rows)
    command = ("eval", "benchmarks", "--answers", path, "--bench", "aime24", "--data", f"aime24={aime}")
    done = gspo_here(*command, "--out", tmp_path / "out", "--json")
    (summary,) = objects(done.out)
    assert summary["average"] == 0.75 and summary["engine"] is None
    assert any("1 of 3 problems have no answer" in w for w in summary["warnings"])
    stored = pq.read_table(tmp_path / "out" / "eval-mine" / "aime24" / "answers.parquet").to_pylist()
    assert [row["text_repaired"] for row in stored] == [False, False, suffix == "jsonl"]
    assert gspo_here(*command, "--out", tmp_path / "out").code == 2
    assert gspo_here(*command, "--out", tmp_path / "out", "--overwrite").code == 0


def test_list_shows_the_published_settings(gspo_here: Gspo) -> None:
    found = {entry["name"]: entry for entry in objects(gspo_here("eval", "list", "--json").out)}
    assert {"aime24", "aime25", "math500", "gsm8k", "arithmetic"} <= found.keys()
    assert (found["aime24"]["samples"], found["aime24"]["temperature"], found["aime24"]["top_p"]) == (32, 0.6, 0.95)


# Bad input


def refused(done: Done, tmp_path: Path, *words: str) -> None:
    check_refused(done, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--samples", "0"], ["--samples 0", "it should be greater than or equal to 1"]),
        (["--max-tokens", "0"], ["--max-tokens 0"]),
        (["--temperature", "nan"], ["--temperature nan"]),
        (["--top-p", "0"], ["--top-p 0.0", "greater than 0"]),
        (["--min-p", "2"], ["--min-p 2.0"]),
        (["--samples", "8", "--greedy"], ["8 samples at temperature 0", "--samples 1"]),
        (["--greedy", "--temperature", "1"], ["--greedy and --temperature"]),
        (["--max-tokens", "5000"], ["the model reads 4096 tokens", "--max-tokens 4"]),
        (["--bench", "aime2024"], ["no benchmark 'aime2024'", "did you mean 'aime24'?"]),
        (["--bench", ","], ["names no benchmark"]),
        (["--data", "aime24=x.jsonl"], ["'aime24' is not among --bench arithmetic"]),
        (["--data", "arithmetic=x.jsonl"], ["arithmetic takes no data"]),
        (["--bench", "gsm8k", "--data", "gsm8k=a", "--revision", "gsm8k=main"], ["a local file has no revision"]),
        (["--bench", "gsm8k"], ["cannot get the problems of gsm8k", "--local-dir gsm8k-data"]),
        (["--all-checkpoints"], ["is not a run", "--all-checkpoints"]),
        (["--greedy", "--top-k", "5"], ["--top-k at temperature 0"]),
        (["--bench", "math500", "--top-p", "0.5"], ["math500: --top-p at temperature 0"]),
        (["--grader", "script"], ["--bench arithmetic with --grader", "no effect"]),
        (["--workers", "2"], ["--bench arithmetic with --workers"]),
        (["--unsafe-local"], ["--bench arithmetic with --unsafe-local"]),
        (["--bench", "codeforces", "--grader", "official"], ["--bench codeforces with --grader"]),
        (["--set", "model.lora.rank=4"], ["has no part in an evaluation"]),
        (["--resume", "--overwrite"], ["--resume and --overwrite"]),
        (["--answers", "x.jsonl"], ["takes one --bench and no model"]),
    ],
)  # fmt: skip
def test_bad_settings(gspo_here: Gspo, tiny: Path, tmp_path: Path, more: list[str], words: list[str]) -> None:
    done = gspo_here("eval", "benchmarks", tiny, "--out", tmp_path / "out", "--set", "model.threads=1", *more)
    refused(done, tmp_path, *words)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.parquet", "PAR1 no", "cannot read"),
        ("a.jsonl", "PAR1 no", "line 1 is not JSON"),
        ("a.jsonl", '{"problem_id": "60", "sample": 0}\n', "no 'text'"),
        ("a.jsonl", '{"problem_id": "60", "sample": 0, "text": ""}\n' * 2, "occurs twice"),
        ("a.jsonl", '{"problem_id": "9", "sample": 0, "text": ""}\n', "no problem of that id"),
    ],
)
def test_bad_stored_answers(gspo_here: Gspo, aime: Path, tmp_path: Path, name: str, content: str, word: str) -> None:
    (tmp_path / name).write_text(content)
    command = ("eval", "benchmarks", "--answers", tmp_path / name, "--bench", "aime24", "--data", f"aime24={aime}")
    refused(gspo_here(*command, "--out", tmp_path / "out"), tmp_path, word)


def test_a_model_without_an_end_of_sequence(gspo_here: Gspo, tiny: Path, tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    shutil.copytree(tiny, endless)
    config = endless / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": None}))
    before = tree(tmp_path)
    done = gspo_here("eval", "benchmarks", endless, "--out", tmp_path / "out")
    refused(done, tmp_path, "names no end-of-sequence token")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"sample": 1.7}, "sample: Input"),
        ({"sample": -1}, "sample: Input"),
        ({"sample": "٣"}, "sample: Input"),
        ({"sample": 2**32}, "sample: Input"),
        ({"text": ["a"]}, "'text' is not text"),
        ({"n_tokens": "x"}, "n_tokens: Input"),
        ({"seed": 1e30}, "seed: "),
        ({"finish_reason": "eos"}, "finish_reason: Input"),
        ({"prompt_sha256": 7}, "prompt_sha256: Input"),
    ],
)
def test_bad_columns(gspo_here: Gspo, aime: Path, tmp_path: Path, change: dict[str, object], word: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"problem_id": "60", "sample": 0, "text": ""} | change])
    command = ("eval", "benchmarks", "--answers", path, "--bench", "aime24", "--data", f"aime24={aime}")
    refused(gspo_here(*command, "--out", tmp_path / "out"), tmp_path, word)
