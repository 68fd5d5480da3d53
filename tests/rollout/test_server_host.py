"""Engine `vllm-server` against a server that answers as vLLM's does, and misbehaves on demand."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig, VllmConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout import server_client
from gspo_cli.rollout.engine import Engine, SampleKey, generate_checked
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.sampler import sample
from gspo_cli.types import Prompt, Sampling

PROMPTS = [Prompt("a", (4, 5, 6)), Prompt("b", (7, 8))]
SEEDS: dict[SampleKey, int] = {(p, i): 10 * i + ord(p) for p in "ab" for i in range(4)}
SAMPLING = Sampling(0.7, 12)
FIELDS = {"n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "logprobs", "stop_token_ids",
          "ignore_eos", "detokenize"}  # fmt: skip


class Server(ThreadingHTTPServer):
    """Samples from a model; `fail` = statuses for the next requests, `delay_s` = how long an answer takes."""

    daemon_threads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.lock = model, threading.Lock()
        self.fail: list[int] = []
        self.delay_s, self.raw = 0.0, False
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.running = self.most = 0

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted = body["sampling_params"]
        with self.lock:
            if wanted["top_k"] == 1:  # what the opening asks: is the distribution cut off before its log-probabilities?
                token_ids, log_probs = [4], [-2.0 if self.raw else 0.0]
            else:
                [[drawn]] = sample(
                    self.model, [tuple(body["token_ids"])], [[wanted["seed"]]],
                    Sampling(wanted["temperature"], wanted["max_tokens"]), frozenset(wanted["stop_token_ids"]), 1e12,
                )  # fmt: skip
                token_ids, log_probs = list(drawn.token_ids), list(drawn.log_probs)
        content = [{"token_id": t, "logprob": lp} for t, lp in zip(token_ids, log_probs, strict=True)]
        return {"choices": [{"token_ids": token_ids, "finish_reason": "stop", "logprobs": {"content": content}}]}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        known = {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "served"}]}}
        self.reply(200, known[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.keys.add(self.headers.get("Authorization"))
            server.running += 1
            server.most = max(server.most, server.running)
            status = server.fail.pop(0) if server.fail else 200
        time.sleep(server.delay_s)
        answer = server.answer(body) if status == 200 else {"error": "as asked"}
        with server.lock:
            server.running -= 1  # before the answer leaves: its reader may ask again at once
        with suppress(BrokenPipeError):  # who asked has given up
            self.reply(status, answer)

    def reply(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(server_client, "PAUSE_S", 0.01)
    with Server(tiny_moe) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def connected(server: Server, model: PreTrainedModel, deadline_s: float = 60.0, concurrency: int = 3) -> Engine:
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    config = RolloutConfig(
        engine="vllm-server", deadline_s=deadline_s, vllm=VllmConfig(url=url, concurrency=concurrency)
    )
    return open_engine(config, model, character_tokenizer(), progress=lambda *done: PROGRESS.append(done))


PROGRESS: list[tuple[int, int]] = []


def test_token_ids_and_log_probs_are_carried(
    server: Server, tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    engine = connected(server, tiny_moe)
    PROGRESS.clear()
    drawn = generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    ids = {p.problem_id: p.token_ids for p in PROMPTS}
    for (problem, index), found in drawn.items():
        [[expected]] = sample(tiny_moe, [ids[problem]], [[SEEDS[problem, index]]], SAMPLING, frozenset({1}), 1e12)
        assert found.token_ids == tuple(expected.token_ids)
        assert found.log_probs == pytest.approx(expected.log_probs)
        assert found.finish == ("stop" if found.token_ids[-1] == 1 else "length")  # whatever the server calls it
    assert [(i, 8) for i in range(1, 9)] == PROGRESS
    assert engine.info.versions == {"vllm": "0.32.0", "model": "served"}
    assert server.keys == {"Bearer secret"} and server.most <= 3
    assert all(set(body["sampling_params"]) == FIELDS for body in server.bodies)  # nothing is left to its defaults


def test_a_failure_that_passes_is_repeated(server: Server, tiny_moe: PreTrainedModel) -> None:
    engine = connected(server, tiny_moe)
    expected = generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    server.fail = [503, 429, 500]
    assert generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0) == expected


@pytest.mark.parametrize(("fail", "reason"), [([400], "400"), ([503] * 50, r"503.*4 tries")])
def test_one_that_does_not_ends_the_batch(
    server: Server, tiny_moe: PreTrainedModel, fail: list[int], reason: str
) -> None:
    engine = connected(server, tiny_moe, concurrency=1)
    server.fail = list(fail)
    with pytest.raises(GspoError, match="did not answer") as caught:
        generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    assert caught.value.code is ExitCode.ENGINE
    assert re.search(reason, caught.value.why)


def test_a_silent_server_ends_within_the_deadline(server: Server, tiny_moe: PreTrainedModel) -> None:
    engine = connected(server, tiny_moe)
    engine.deadline_s = 0.5  # type: ignore[attr-defined]
    server.delay_s = 6.0
    start = time.monotonic()
    with pytest.raises(GspoError, match="did not answer"):
        generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    assert time.monotonic() - start < 5


def test_a_server_that_is_not_there_is_named(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_client, "PAUSE_S", 0.01)
    config = RolloutConfig(engine="vllm-server", vllm=VllmConfig(url="http://127.0.0.1:9"))
    with pytest.raises(GspoError, match=r"127\.0\.0\.1:9 did not answer"):
        open_engine(config, tiny_moe, character_tokenizer())


def test_log_probs_of_another_distribution_are_refused(server: Server, tiny_moe: PreTrainedModel) -> None:
    server.raw = True
    with pytest.raises(GspoError, match="another distribution") as caught:
        connected(server, tiny_moe)
    assert "--logprobs-mode processed_logprobs" in caught.value.hint


def test_another_model_is_refused(server: Server, tiny_dense: PreTrainedModel) -> None:
    with pytest.raises(GspoError, match="does not serve"):
        connected(server, tiny_dense)
