"""Problems from every schema and format, repeats, fingerprints, and what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from program import refusal, write_rows

from gspo_cli.evals.benchmark import DataChoice, ProblemSet
from gspo_cli.evals.benchmarks import BENCHMARKS
from gspo_cli.evals.benchmarks.math import AIME24_DATA
from gspo_cli.evals.data import hashes

Rows = list[dict[str, Any]]
ANSWERS = [25, 7, 204]
QUESTIONS = ["How many?", "How far,\n  then?", "Who {is} \\frac{1}{2}?"]
PAIRS = list(zip(QUESTIONS, ANSWERS, strict=True))

SCHEMAS: dict[str, Rows] = {
    "aime_2024": [{"id": 60 + i, "problem": q, "answer": f"{a:03}", "year": "2024"} for i, (q, a) in enumerate(PAIRS)],
    "capitals": [{"ID": f"2024-{i}", "Problem": q, "Answer": a} for i, (q, a) in enumerate(PAIRS)],
    "numbered": [{"problem_idx": i, "problem": q, "answer": float(a)} for i, (q, a) in enumerate(PAIRS)],
    "solution only": [{"problem": q, "solution": f"\\boxed{{1}} no: $\\boxed{{{a}}}$"} for q, a in PAIRS],
    "verl": [{"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": q}],
              "reward_model": {"ground_truth": str(a)}, "extra_info": {"index": i}} for i, (q, a) in enumerate(PAIRS)],
    "unique_id": [{"unique_id": f"{i}.json", "problem": q, "answer": str(a)} for i, (q, a) in enumerate(PAIRS)],
    "gsm8k": [{"question": q, "answer": f"so it is\n#### {a}"} for q, a in PAIRS],
}  # fmt: skip


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_rows(path, rows)
    return path


def load(name: str, *paths: Path) -> ProblemSet:
    return BENCHMARKS[name].load(DataChoice(tuple(paths)))


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_loads_to_the_same_problems(tmp_path: Path, schema: str, suffix: str) -> None:
    found = load("aime24", write(tmp_path / f"data.{suffix}", SCHEMAS[schema]))
    assert [p.answer for p in found.problems] == ["25", "7", "204"]
    assert [p.prompt.partition("\n\nPlease")[0] for p in found.problems] == QUESTIONS
    assert found.problems[0].prompt.endswith("put your final answer within \\boxed{}.")
    assert len({p.id for p in found.problems}) == 3
    assert found.source["fingerprint"] != found.source["fingerprint_expected"]
    assert "not the answers of the published set" in found.warnings[-1]


def test_two_halves_are_joined(tmp_path: Path) -> None:
    rows = SCHEMAS["numbered"]
    halves = [{"problem_idx": 1} | {k: v for k, v in row.items() if k != "problem_idx"} for row in rows[:2]]
    paths = [write(tmp_path / f"part_{i}.jsonl", [half]) for i, half in enumerate(halves)]
    for given in (paths, [tmp_path]):
        assert [p.id for p in load("aime24", *given).problems] == ["part_0/1", "part_1/1"]


def test_a_set_that_repeats_itself_counts_once(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("problem", "answer")} for row in SCHEMAS["aime_2024"]]
    spaced = [row | {"problem": row["problem"].replace(" ", "  ")} for row in rows]
    once = load("aime24", write(tmp_path / "once.jsonl", rows))
    many = load("aime24", write(tmp_path / "many.jsonl", (rows + spaced) * 16))
    assert many.problems == once.problems
    assert many.source["repeats_dropped"] == 93 and "93 rows repeat" in many.warnings[0]


def test_contradictions_are_errors(tmp_path: Path) -> None:
    row = SCHEMAS["aime_2024"][0]
    answers = write(tmp_path / "a.jsonl", [row, row | {"id": 99, "answer": "26"}])
    assert "two answers to one problem" in refusal(load, "aime24", answers)
    ids = write(tmp_path / "b.jsonl", [row, row | {"problem": "Another?"}])
    assert "two problems with the id 60" in refusal(load, "aime24", ids)


@pytest.mark.parametrize("answer", ["12.5", "-3", "1000", "x", "0o7", ""])
def test_no_aime_answer(tmp_path: Path, answer: str) -> None:
    rows = [SCHEMAS["aime_2024"][0] | {"answer": answer}]
    said = refusal(load, "aime24", write(tmp_path / "a.jsonl", rows))
    assert "60" in said or "line 1" in said


def test_a_benchmark_reads_references_as_training_does(tmp_path: Path) -> None:
    """No number is made of `3,5` or `(1,2)`, and a worked answer is its last box."""
    rows = [{"question": f"q{i}", "answer": f"x #### {a}"} for i, a in enumerate(["3,5", "1,234", "(1,2)"])]
    assert [p.answer for p in load("gsm8k", write(tmp_path / "a.jsonl", rows)).problems] == ["3,5", "1,234", "(1,2)"]
    rows = [{"problem": "q", "answer": "So \\boxed{5}"}]
    assert [p.answer for p in load("math500", write(tmp_path / "b.jsonl", rows)).problems] == ["5"]


def test_each_of_two_files_of_one_name_has_its_hash(tmp_path: Path) -> None:
    files = []
    for folder in "ab":
        (tmp_path / folder).mkdir()
        files.append(write(tmp_path / folder / "x.jsonl", [{"problem": folder, "answer": "5"}]))
    assert len(hashes(files)) == 2 and list(hashes(files[:1])) == ["x.jsonl"]


def test_answers_are_base_ten(tmp_path: Path) -> None:
    rows = [{"problem": f"q{i}", "answer": a} for i, a in enumerate(["025", "008", "000", "010"])]
    assert [p.answer for p in load("aime24", write(tmp_path / "a.jsonl", rows)).problems] == ["25", "8", "0", "10"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", ["holds no rows"]),
        ("a.json", b'"problem"', ["not a list of objects"]),
        ("a.jsonl", b'{"problem": "x", "answer": "1"}\n{"prob', ["line 2 is not JSON"]),
        ("a.jsonl", b'\xff{"a": 1}\n', ["line 1 is not UTF-8"]),
        ("a.parquet", b"PAR1 but not really", ["not a complete parquet file"]),
        ("a.txt", b"problem,answer\n", ["the suffix must be one of"]),
        ("a.jsonl", b'{"text": "x", "label": "1"}\n', ["text, label", "problem + answer", "question + answer"]),
        ("a.jsonl", b'{"problem": "x", "answer": null}\n', ["line 1 has no answer"]),
        ("a.jsonl", b'{"problem": "", "answer": "1"}\n', ["line 1 has no question"]),
        ("a.jsonl", b'{"problem": "x", "solution": "no box \\\\boxed{1"}\n', ["line 1 has no answer"]),
    ],
)
def test_unreadable_data(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    said = refusal(load, "aime24", path)
    assert all(word in said for word in words)


def test_without_data_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    said = refusal(load, "aime25")
    assert f"hf download {BENCHMARKS['aime25'].hub} " in said and "--revision " in said
    assert "no data file" in refusal(load, "aime24", tmp_path / "absent.jsonl")
    assert "no data in the folder" in refusal(load, "aime24", tmp_path)


def test_what_the_cache_holds_of_the_pin_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "datasets--HuggingFaceH4--aime_2024" / "snapshots" / AIME24_DATA.revision
    (snapshot / "data").mkdir(parents=True)
    write(snapshot / AIME24_DATA.files[0], SCHEMAS["aime_2024"])
    found = load("aime24")
    assert len(found.problems) == 3
    assert (found.source["source"], found.source["revision"]) == (AIME24_DATA.repo, AIME24_DATA.revision)


def test_arithmetic_is_embedded() -> None:
    found = load("arithmetic")
    assert len(found.problems) == 200
    longer = load("arithmetic", Path("8-11"))
    assert {problem.prompt.count("+") + 1 for problem in longer.problems} == {8, 9, 10, 11}
    assert len(longer.problems) == 200 and longer.source["rows"] == [8, 11]
    for wrong in ("x.jsonl", "11-8", "1-5", "2-4", "8-11-12"):
        assert "takes no data" in refusal(load, "arithmetic", Path(wrong))


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [("aime24", "aime24", 30), ("aime25", "aime25", 30), ("math500", "math500", 500), ("gsm8k", "gsm8k_test", 1319)],
)
def test_real_data_has_the_published_fingerprint(shared_data: Path, name: str, file: str, size: int) -> None:
    found = load(name, shared_data / f"{file}.jsonl")
    assert len(found.problems) == size
    assert found.warnings == ()
    assert found.source["fingerprint"] == found.source["fingerprint_expected"]
    assert len(found.ids_sha256) == 64
