"""Files from outside: each loads, or is refused with an error in three parts; what was made to harm meets a limit.

`results/programs/file_fuzz.py` runs 20,000 cases like the first test's. A case that showed a fault is in `FOUND`.
"""

import base64
import http.server
import json
import os
import pickle
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import fault_of
from program import refusal
from readers import CODE, PROBLEMS, TRL, VERL, model_readers, small_readers

from gspo_cli import recipe
from gspo_cli.evals.benchmark import DataChoice
from gspo_cli.evals.benchmarks import livecodebench
from gspo_cli.evals.benchmarks.elo import MAX_USERS, read_ratings
from gspo_cli.evals.data import raw_problems
from gspo_cli.models.files import check_model_folder, check_tokenizer
from gspo_cli.report.runs.facts import read_events
from gspo_cli.report.runs.folders import read_study
from gspo_cli.rewards.code.code_tests import MAX_OPCODES, BadTests, CodeTests, unpack_tests
from gspo_cli.rewards.code.outputs import same_value
from gspo_cli.rewards.graders import GRADERS, read_rows
from gspo_cli.rewards.math.grade import grade_math
from gspo_cli.rollout.vllm.transfer import ServerClient
from gspo_cli.runlog.folder import newest_run
from gspo_cli.runlog.import_logs import import_run
from gspo_cli.runlog.strict_json import parse_object, read_object
from gspo_cli.tasks.data import load_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run."""
    folder = tmp_path / "out" / "demo" / "gspo-s0"
    folder.mkdir(parents=True)
    about = {"run_id": "x", "arm": "gspo", "seed": 0, "created": "2026-01-01T00:00:00Z"}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"algo": {"name": "gspo"}, "train": {"steps": 2}, "name": "demo"}))
    (folder / "metrics.jsonl").write_text("")
    (folder / "events.jsonl").write_text("")
    return folder


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "events.jsonl", "run.lock"])
def test_a_pipe_is_no_file_of_a_run(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    refusal(read_study, run.parent)
    assert name != "events.jsonl" or read_events(run) == []


def test_a_pipe_is_no_record_no_file_of_a_model_and_no_log(run: Path, tmp_path: Path) -> None:
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    refusal(read_object, run / "run.json")
    refusal(newest_run, run.parents[1])
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    assert "ordinary" in refusal(check_model_folder, tmp_path)
    os.mkfifo(tmp_path / "log.json")
    refusal(import_run, tmp_path / "log.json", tmp_path / "study", "gspo", "gspo", 0)


@pytest.mark.parametrize(
    "text",
    ['{"a": 99999999999999999999}', '{"a": -99999999999999999999}', '{"a": 1' + "0" * 4000 + "}", '{"a": "\\ud800"}',
     '{"\\uDFFF": 1}', '{"a": "\\ud83d"}', '{"a": "\ud800"}'],
)  # fmt: skip
def test_logs_hold_numbers_and_texts_of_bounded_kind(text: str) -> None:
    with pytest.raises(ValueError, match=r"overflows|surrogate"):
        parse_object(text)
    assert parse_object('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_duplicate_keys_are_found_at_once() -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match="duplicate key 'k7'"):
        parse_object("{" + ",".join(f'"k{i}":1' for i in [*range(50_000), 7]) + "}")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("step", [99999999999999999999, 2**40, -(10**30)])
def test_an_imported_step_is_bounded(tmp_path: Path, step: int) -> None:
    (tmp_path / "trl.json").write_text(json.dumps({"log_history": [{"step": step, "reward": 0.5}]}))
    refusal(import_run, tmp_path / "trl.json", tmp_path / "study", "gspo", "gspo", 0)
    assert not (tmp_path / "study").exists()


def test_a_long_chain_of_recipes_is_refused(tmp_path: Path) -> None:
    for i in range(1500):
        (tmp_path / f"r{i}.toml").write_text(f'extends = "r{i + 1}"\n')
    assert "too many" in refusal(recipe.load, str(tmp_path / "r0.toml"))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "host:8000", "http://u:secret@host:8000"])
def test_a_server_is_named_by_an_address_without_a_password(url: str) -> None:
    said = refusal(recipe.load, "quickstart", sets=[f"rollout.vllm.url={url}"])
    assert "rollout.vllm.url" in said and "secret" not in said
    assert recipe.load("quickstart", sets=["rollout.vllm.url=https://host/x"]).rollout.vllm.url == "https://host/x"


def test_no_error_shows_the_password_of_an_address() -> None:
    assert "secret" not in str(ServerClient("http://u:secret@host:8000", 1.0).lost("http://u:secret@host:8000/x: no"))


class Redirecting(http.server.BaseHTTPRequestHandler):
    """Sends every reader to `target`, and keeps the keys that arrive."""

    target, keys = "", []  # type: ignore[var-annotated]

    def do_GET(self) -> None:
        self.keys.append((self.path, self.headers.get("Authorization")))
        self.send_response(302 if self.path != "/there" else 200)
        self.send_header("Location", self.target)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[http.server.HTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_key_follows_no_redirect(elsewhere: http.server.HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = elsewhere.server_address[1]
    Redirecting.target, Redirecting.keys = f"http://localhost:{port}/there", []
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    client = ServerClient(f"http://127.0.0.1:{port}", 5.0)
    for ask in (client.get, client.post):
        assert "302" in refusal(ask, "/version")
    assert [path for path, _ in Redirecting.keys] == ["/version"] * 2


BOMBS = {
    "a large text": lambda: pickle.dumps("[" + " " * (64 << 20) + "]", 4),
    "many values": lambda: pickle.dumps("[" + ",".join(["[]"] * 8_000_000) + "]", 4),
    "many marks": lambda: b"\x80\x04" + b"\x94" * (8 << 20) + b".",
    "many frames": lambda: b"\x80\x04" + (b"\x95" + bytes(8)) * (1 << 20) + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_packed_tests_unpack_within_limits(name: str) -> None:
    field = base64.b64encode(zlib.compress(BOMBS[name](), 9)).decode()
    start = time.process_time()
    with pytest.raises(BadTests):
        unpack_tests("[]", field, "{}")
    assert time.process_time() - start < 2
    assert MAX_OPCODES >= 5


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', '{"a": 1' + "0" * 5000 + ', "a": 2}']
)
def test_expected_values_and_arguments_name_a_key_once(text: str) -> None:
    for inputs, outputs in (((text,), ("1",)), (("1",), (text,))):
        with pytest.raises(BadTests):
            CodeTests(inputs, outputs, "f").check()


def test_a_result_names_a_key_once() -> None:
    expected = {"a": 1, "b": 2}
    assert same_value(["d", ["a", 1], ["b", 2]], expected)
    assert not same_value(["d", ["a", 1], ["a", 1]], expected)
    assert not same_value(["d", ["a", 1], [["i", "0x1"], 1]], expected)


@pytest.mark.parametrize("gold", [float("nan"), float("inf")])
def test_a_gold_answer_that_is_no_number_rewards_nobody(tmp_path: Path, gold: float) -> None:
    assert grade_math(r"\boxed{nan}", "nan").verdict == "grader_error"
    row = {"id": 1, "problem": "p", "answer": gold, "response": "r", "gold": gold}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    refusal(read_rows, tmp_path / "a.jsonl", GRADERS["math"])
    refusal(raw_problems, [tmp_path / "a.jsonl"])
    columns = {"prompt": "problem", "answer": "answer"}
    refusal(load_rows, str(tmp_path / "a.jsonl"), None, "train", columns)


def replaced(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*steps: dict[str, Any], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: steps}


ALONE, SPACES = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"}, {"type": "Metaspace"}
LONG = base64.b64encode(bytes(4) + b"a" * 9999).decode()
EOS = {"SpecialToken": {"id": "<eos>", "type_id": 0}}


@pytest.mark.parametrize(
    "bomb",
    [
        {"normalizer": sequence(*[replaced("a", "a" * 10)] * 6)},
        {"normalizer": sequence(sequence(replaced("ab", "ab" * 99)), sequence(replaced("ab", "ab" * 99)))},
        {"normalizer": sequence(*[replaced("", "a")] * 20)},
        {"normalizer": sequence(*[replaced("a{1}?", "a", "Regex")] * 20)},
        {"normalizer": sequence(*[{"type": "NFKD"}, replaced("l", "\ufdfa")] * 4)},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": LONG}},
        {"pre_tokenizer": sequence(*[{"type": "ByteLevel"}] * 20, name="pretokenizers")},
        {"pre_tokenizer": sequence(*[ALONE, SPACES] * 20, name="pretokenizers")},
        {"decoder": sequence(*[replaced("a", "aa")] * 20, name="decoders")},
        {"post_processor": {
            "type": "TemplateProcessing", "single": [EOS] * 99, "special_tokens": {"<eos>": {"ids": [1] * 99}}}},
    ],
)  # fmt: skip
def test_a_tokenizer_that_multiplies_a_text_is_refused(tmp_path: Path, bomb: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}} | bomb))
    assert "times as long" in refusal(check_tokenizer, tmp_path)


@pytest.mark.parametrize(
    "real",
    [
        {"normalizer": replaced(" ", "▁"), "decoder": sequence(replaced("▁", " "), {"type": "Fuse"}, name="decoders")},
        {"normalizer": sequence(replaced("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
                                replaced(" {2,}", " ", "Regex"))},
        {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence(
            {"type": "Split", "pattern": {"Regex": r"\p{L}+"}}, {"type": "ByteLevel"}, name="pretokenizers")},
        {"normalizer": {"type": "BertNormalizer"}, "post_processor": {
            "type": "TemplateProcessing", "single": [EOS, {"Sequence": {"id": "A"}}, EOS],
            "special_tokens": {"<eos>": {"ids": [1]}}}},
    ],
)  # fmt: skip
def test_a_tokenizer_as_models_have_them_is_taken(tmp_path: Path, real: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}} | real))
    check_tokenizer(tmp_path)


CASES = int(os.environ.get("GSPO_FUZZ_CASES", "25"))
SMALL = small_readers()


@pytest.mark.parametrize("name", SMALL)
def test_files_of_data_and_logs(tmp_path: Path, name: str) -> None:
    found = [(seed, fault) for seed in range(CASES) if (fault := fault_of(SMALL[name], seed, tmp_path))]
    assert found == []


def test_files_of_models(tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    for name, reader in model_readers(tmp_path).items():
        if name != "training data":  # slow to start
            for seed in range(max(1, CASES // 10)):
                assert fault_of(reader, seed, tmp_path / "case") == "", (name, seed)


HUGE = "9" * 400
FOUND = {
    "a reward too large for a float": ("t.json", json.dumps(TRL).replace("0.7", HUGE)),
    "a deep log": ("t.json", "[" * 3000),
    "a deep line": ("v.jsonl", "[" * 3000),
    "an endless step": ("v.jsonl", json.dumps(VERL[0]).replace('"step": 1', '"step": 1e999')),
    "values that are a list": ("v.jsonl", '{"step": 1, "data": 3}'),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_broken_log_of_another_trainer_leaves_no_half_run(tmp_path: Path, case: str) -> None:
    name, text = FOUND[case]
    (tmp_path / name).write_text(text)
    assert "cannot import" in refusal(import_run, tmp_path / name, tmp_path / "study", "gspo", "gspo", 0)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_endless_time_of_another_trainer_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text(json.dumps(VERL[0]).replace("2.0", "1e999"))
    run = import_run(tmp_path / "v.jsonl", tmp_path / "study", "gspo", "gspo", 0)
    assert '"reward/mean":0.5' in (run / "metrics.jsonl").read_text()


@pytest.mark.parametrize("table", [{"1200": 10**15, "1300": -(10**15)}, {"1e999": 1}, {"1200": float("inf")}])
def test_a_rating_table_cannot_fill_the_memory(tmp_path: Path, table: dict[str, float]) -> None:
    (tmp_path / "r.json").write_text(json.dumps(table))
    start = time.monotonic()
    assert "not a rating table" in refusal(read_ratings, tmp_path / "r.json")
    assert time.monotonic() - start < 20 and MAX_USERS < 10**8


@pytest.mark.parametrize("key", ["question_id", "question_content"])
def test_a_problem_with_half_a_surrogate_pair_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(CODE | {key: "\ud800"}))
    assert "is no text" in refusal(livecodebench.load, DataChoice((tmp_path / "test.jsonl",)))
    (tmp_path / "p.jsonl").write_text(json.dumps(PROBLEMS[0] | {"problem": "\ud800"}))
    assert "surrogate" in refusal(raw_problems, [tmp_path / "p.jsonl"])
