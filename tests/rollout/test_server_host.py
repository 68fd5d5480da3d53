"""Engine `vllm-server` against a server that answers as vLLM's does, and misbehaves on demand (fake_vllm.py)."""

import time
from collections.abc import Iterator

import pytest
from fake_vllm import Server, serving
from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig, VllmConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import SamplingProgress
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.rollout.engine import Engine, SampleKey, generate_checked
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.vllm import transfer
from gspo_cli.types import Prompt, Sampling

PROMPTS = [Prompt("a", (4, 5, 6)), Prompt("b", (7, 8))]
SEEDS: dict[SampleKey, int] = {(p, i): 10 * i + ord(p) for p in "ab" for i in range(4)}
SAMPLING = Sampling(0.7, 12)
FIELDS = {"n", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "logprobs", "stop_token_ids",
          "ignore_eos", "detokenize"}  # fmt: skip


@pytest.fixture
def server(tiny_moe: PreTrainedModel) -> Iterator[Server]:
    with serving(tiny_moe) as running:
        yield running


def connected(server: Server, model: PreTrainedModel, deadline_s: float = 60.0, concurrency: int = 3) -> Engine:
    vllm = VllmConfig(url=server.url, concurrency=concurrency)
    config = RolloutConfig(engine="vllm-server", deadline_s=deadline_s, vllm=vllm)
    return open_engine(config, model, character_tokenizer(), progress=PROGRESS.append)


PROGRESS: list[SamplingProgress] = []


def test_ids_and_log_probs_are_carried(
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
    assert [(p.done, p.wanted, p.share) for p in PROGRESS] == [(i, 8, i / 8) for i in range(1, 9)]
    assert PROGRESS[-1].tokens == sum(len(found.token_ids) for found in drawn.values())
    assert engine.info.versions == {"vllm": "0.32.0", "model": "served"}
    assert server.keys == {"Bearer secret"} and server.most <= 3
    assert all(set(body["sampling_params"]) == FIELDS for body in server.bodies)  # nothing is left to its defaults


def test_a_failure_that_passes_is_repeated(server: Server, tiny_moe: PreTrainedModel) -> None:
    engine = connected(server, tiny_moe)
    expected = generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    server.fail = [503, 429, 500]
    assert generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0) == expected


@pytest.mark.parametrize(("fail", "reason"), [([400], "400"), ([503] * 50, r"503.*4 tries")])
def test_one_that_stays_ends_the_batch(server: Server, tiny_moe: PreTrainedModel, fail: list[int], reason: str) -> None:
    engine = connected(server, tiny_moe, concurrency=1)
    server.fail = list(fail)
    with pytest.raises(GspoError, match=rf"(?s)did not answer.*{reason}") as caught:
        generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    assert caught.value.code is ExitCode.ENGINE


def test_a_silent_server_ends_within_the_deadline(server: Server, tiny_moe: PreTrainedModel) -> None:
    engine = connected(server, tiny_moe)
    engine.deadline_s = 0.5  # type: ignore[attr-defined]
    server.delay_s = 6.0
    start = time.monotonic()
    with pytest.raises(GspoError, match="did not answer"):
        generate_checked(engine, PROMPTS, SAMPLING, SEEDS, 0)
    assert time.monotonic() - start < 5


def test_a_server_that_is_not_there_is_named(tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSE_S", 0.01)
    config = RolloutConfig(engine="vllm-server", vllm=VllmConfig(url="http://127.0.0.1:9"))
    with pytest.raises(GspoError, match=r"127\.0\.0\.1:9 did not answer"):
        open_engine(config, tiny_moe, character_tokenizer())


def test_log_probs_of_another_distribution_are_refused(server: Server, tiny_moe: PreTrainedModel) -> None:
    server.raw = True
    with pytest.raises(GspoError, match=r"(?s)another distribution.*--logprobs-mode processed_logprobs"):
        connected(server, tiny_moe)


def test_another_model_is_refused(server: Server, tiny_dense: PreTrainedModel) -> None:
    with pytest.raises(GspoError, match="does not serve"):
        connected(server, tiny_dense)
