"""A server follows the trainer, or is left so that nobody samples from it."""

import copy
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FileSender, Server, serving
from transformers import PreTrainedModel
from vllm_models import moved

from gspo_cli.config import RolloutConfig, VllmConfig
from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout import engines
from gspo_cli.rollout.engine import SampleKey, generate_checked
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.vllm import server as vllm_server
from gspo_cli.rollout.vllm import transfer
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.types import Prompt, Sampling

PROMPTS = [Prompt("a", (4, 5, 6))]
SEEDS: dict[SampleKey, int] = {("a", i): i for i in range(4)}
PAUSE, GIVE_UP = "/pause?mode=keep&clear_cache=true", ["/pause?mode=abort", "/shutdown_weight_transfer_engine"]


def update(version: int) -> list[str]:
    return [PAUSE, "/start_weight_update", "/update_weights", f"/finish_weight_update {version}", "/weight_info",
            "/resume"]  # fmt: skip


@pytest.fixture
def server(tiny_moe: PreTrainedModel) -> Iterator[Server]:
    with serving(tiny_moe) as running:
        yield running


def following(server: Server, model: PreTrainedModel) -> HostedEngine:
    config = RolloutConfig(engine="vllm-server", deadline_s=60, vllm=VllmConfig(url=server.url))
    engine = open_engine(config, model, character_tokenizer(), trains=True)
    assert isinstance(engine, HostedEngine)
    return engine


def overdue(engine: HostedEngine, deadline_s: float) -> None:
    engine.deadline_s = engine.host.client.deadline_s = deadline_s  # type: ignore[attr-defined]


def test_it_is_paused_handed_the_weights_asked_for_their_version_resumed_and_checked(
    server: Server, tiny_moe: PreTrainedModel
) -> None:
    trainer = moved(copy.deepcopy(tiny_moe), 1)  # the server has been left with other weights
    engine = following(server, trainer)
    opened = ["generate", "/init_weight_transfer_engine", *update(0), "generate", *update(0), "generate"]
    assert server.calls == opened
    server.calls.clear()
    for version in (1, 2):
        report = engine.sync(moved(trainer, version), version)
        assert report is not None and report.version == version and report.absdiff_max < 1e-5
        assert report.tensors == len(list(trainer.parameters()))
    drawn = generate_checked(engine, PROMPTS, Sampling(1.0, 8), SEEDS, 2)
    assert {s.weight_version for s in drawn.values()} == {2}
    assert server.calls == [*update(1), "generate", *update(2), "generate"]  # each once: versions through finish alone
    engine.close()
    assert not server.paused and server.calls[-1] == "/shutdown_weight_transfer_engine"


FAULTS = [
    *((f"/{name}", "500", f"/{name}") for name in ("pause", "update_weights")),
    *(pytest.param(f"/{name}", "500", f"/{name}", marks=pytest.mark.slow)
      for name in ("start_weight_update", "finish_weight_update", "resume")),
    ("/update_weights", "hang", "timed out"),
    ("/finish_weight_update", "drop", "/finish_weight_update"),
    ("/weight_info", "lie", "step 17"),
    ("weights", "lie", "log-probabilities"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "fault", "reason"), FAULTS)
def test_an_error_on_the_way_leaves_it_paused(
    server: Server, tiny_moe: PreTrainedModel, route: str, fault: str, reason: str
) -> None:
    trainer = copy.deepcopy(tiny_moe)
    engine = following(server, trainer)
    server.calls.clear()
    server.faults[route] = fault
    if fault == "hang":
        overdue(engine, 0.5)
    with pytest.raises(GspoError) as caught:
        engine.sync(moved(trainer, 1), 1)
    assert caught.value.code is ExitCode.ENGINE and reason in caught.value.why and caught.value.hint
    assert server.paused and server.calls[-2:] == GIVE_UP
    taken = [call for call in server.calls[:-2] if call not in ("generate", "/weight_info")]
    whole = [call for call in update(1) if call != "/weight_info"]
    assert taken == whole[: len(taken)]  # nothing twice, nothing after the failure
    server.calls.clear()
    engine.close()
    assert server.calls == []  # nor does the run's end wake it up


def test_a_server_that_fails_at_the_start_is_left_paused_too(server: Server, tiny_moe: PreTrainedModel) -> None:
    server.faults["/update_weights"] = "500"
    with pytest.raises(GspoError):
        following(server, tiny_moe)
    assert server.paused and server.calls[-2:] == GIVE_UP


@pytest.mark.parametrize(("backend", "reason"), [("", "is none, needed is file"), ("nccl", "is nccl, needed is file")])
def test_one_that_was_not_started_for_it_is_left_alone(
    server: Server, tiny_moe: PreTrainedModel, backend: str, reason: str
) -> None:
    server.backend = backend
    with pytest.raises(GspoError, match=rf"(?s)cannot take over.*{reason}.*VLLM_SERVER_DEV_MODE=1"):
        following(server, tiny_moe)
    assert server.calls == ["generate"] and not server.paused


def test_samples_of_two_versions_reject_the_batch(
    server: Server, tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = following(server, tiny_moe)
    real = server.answer

    def mixed(body: dict[str, Any]) -> dict[str, Any]:
        answer = real(body)
        answer["choices"][0]["weight_versions"] = [{"version": "0"}, {"version": "1"}]
        return answer

    monkeypatch.setattr(server, "answer", mixed)
    with pytest.raises(GspoError, match=r"(?s)rejected.*step -1, not 0"):
        generate_checked(engine, PROMPTS, Sampling(1.0, 8), SEEDS, 0)


@pytest.fixture
def senders(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FileSender]:
    """The transfer of GPUs, with what stands in for vLLM's sender."""
    made: list[FileSender] = []
    places: list[dict[str, Any]] = []

    def open_sender(place: dict[str, Any], *args: Any) -> FileSender:
        places.append(place)
        made.append(FileSender(tmp_path, *args))
        return made[-1]

    server.backend = "nccl"
    monkeypatch.setattr(engines, "FileTransfer", transfer.NcclTransfer)
    monkeypatch.setattr(transfer, "open_sender", open_sender)
    yield made  # type: ignore[misc]
    assert all(place["world_size"] == 5 and place["master_address"] == "127.0.0.1" for place in places)


def test_vllms_own_sender_is_given_the_version_that_it_does_not_name(
    server: Server, tiny_moe: PreTrainedModel, senders: list[FileSender]
) -> None:
    trainer = copy.deepcopy(tiny_moe)
    engine = following(server, trainer)
    server.calls.clear()
    report = engine.sync(moved(trainer, 1), 1)
    assert report is not None and report.absdiff_max < 1e-5 and report.tensors == len(list(trainer.parameters()))
    assert server.calls == [*update(1), "generate"] and len(senders) == 1
    assert server.updates[-1]["path"] == senders[0].file


def test_a_transfer_that_hangs_ends_at_the_deadline(
    server: Server, tiny_moe: PreTrainedModel, senders: list[FileSender]
) -> None:
    engine = following(server, tiny_moe)
    overdue(engine, 0.3)
    senders[0].hang_s = 3.0
    began = time.monotonic()
    with pytest.raises(GspoError, match="was lost") as caught:
        engine.sync(tiny_moe, 1)
    assert "not done after 0.3 s" in caught.value.why and time.monotonic() - began < 2.5
    assert server.paused and server.calls[-2:] == GIVE_UP


def test_a_broken_pass_is_gathered_to_its_end(
    server: Server, tiny_moe: PreTrainedModel, senders: list[FileSender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks gather every tensor; this one must, too, or they wait for it."""
    engine = following(server, tiny_moe)
    gathered: list[str] = []
    real = transfer.WeightStream.drain
    monkeypatch.setattr(transfer.WeightStream, "drain",
                        lambda self: (gathered.extend(name for name, _ in self._left), real(self)))  # fmt: skip
    server.faults["/start_weight_update"] = "500"
    with pytest.raises(GspoError):
        engine.sync(tiny_moe, 1)
    assert gathered == [name for name, _ in tiny_moe.named_parameters()] and len(senders) == 1


@pytest.fixture
def two(tiny_moe: PreTrainedModel, server: Server) -> Iterator[tuple[Server, Server]]:
    with serving(tiny_moe) as other:
        yield server, other


def of_both(two: tuple[Server, Server], model: PreTrainedModel) -> engines.Servers:
    urls = (two[0].url, two[1].url)
    config = RolloutConfig(engine="vllm-server", deadline_s=60, vllm=VllmConfig(url=urls, concurrency=3))
    engine = open_engine(config, model, character_tokenizer(), trains=True)
    assert isinstance(engine, engines.Servers)
    return engine


def test_two_servers_share_the_requests_and_give_what_one_gives(
    two: tuple[Server, Server], tiny_moe: PreTrainedModel
) -> None:
    seeds = {("a", i): i for i in range(9)}
    trainer = moved(copy.deepcopy(tiny_moe), 1)
    alone = following(two[0], trainer)
    expected = generate_checked(alone, PROMPTS, Sampling(1.0, 8), seeds, 0)
    engine = of_both(two, trainer)
    for server in two:
        server.bodies.clear()
    assert generate_checked(engine, PROMPTS, Sampling(1.0, 8), seeds, 0) == expected
    assert sorted(len(server.bodies) for server in two) == [4, 5]
    report = engine.sync(moved(trainer, 1), 1)
    assert report is not None and report.absdiff_max < 1e-5 and [s.version for s in two] == ["1", "1"]
    engine.close()
    assert [server.calls[-1] for server in two] == ["/shutdown_weight_transfer_engine"] * 2


def test_each_server_is_checked(two: tuple[Server, Server], tiny_moe: PreTrainedModel) -> None:
    engine = of_both(two, tiny_moe)
    two[1].faults["weights"] = "lie"
    with pytest.raises(GspoError, match="does not compute with the trainer's weights of step 1"):
        engine.sync(tiny_moe, 1)


def test_a_request_that_was_begun_is_drawn_once(two: tuple[Server, Server], tiny_moe: PreTrainedModel) -> None:
    engine = of_both(two, tiny_moe)
    for server in two:
        server.bodies.clear()
    engine.begin(PROMPTS, Sampling(1.0, 8), SEEDS)
    drawn = generate_checked(engine, PROMPTS, Sampling(1.0, 8), SEEDS, 0)
    assert sum(len(server.bodies) for server in two) == len(drawn) == 4
    again = generate_checked(engine, PROMPTS, Sampling(1.0, 8), SEEDS, 0)
    assert again == drawn and sum(len(server.bodies) for server in two) == 8


def test_what_a_begun_request_raises_comes_where_it_is_waited_for(
    two: tuple[Server, Server], tiny_moe: PreTrainedModel
) -> None:
    engine = of_both(two, tiny_moe)
    two[1].fail[:] = [400] * 8
    engine.begin(PROMPTS, Sampling(1.0, 8), SEEDS)
    with pytest.raises(GspoError, match="did not answer as it should") as caught:
        generate_checked(engine, PROMPTS, Sampling(1.0, 8), SEEDS, 0)
    assert caught.value.code == ExitCode.ENGINE


def test_requests_begun_together_are_asked_one_after_the_other_within_the_limit(
    server: Server, tiny_moe: PreTrainedModel
) -> None:
    engine = following(server, tiny_moe)
    engine.host.concurrency = 2  # type: ignore[attr-defined]
    server.delay_s, server.most = 0.1, 0
    server.bodies.clear()
    batches = [{("a", i): i for i in range(6 * k, 6 * k + 6)} for k in range(4)]
    for seeds in batches:
        engine.begin(PROMPTS, Sampling(1.0, 8), seeds)
    for seeds in batches:
        assert len(generate_checked(engine, PROMPTS, Sampling(1.0, 8), seeds, 0)) == 6
    asked = [body["sampling_params"]["seed"] // 6 for body in server.bodies]
    assert asked == sorted(asked) and server.most == 2  # so that each has the whole deadline


def test_nothing_of_what_was_begun_is_asked_or_waited_for_after_the_end(
    server: Server, tiny_moe: PreTrainedModel
) -> None:
    engine = following(server, tiny_moe)
    engine.host.concurrency = 2  # type: ignore[attr-defined]
    server.delay_s = 0.5
    before = set(threading.enumerate())
    for seeds in ({("a", i): i for i in range(50)}, {("a", i): i for i in range(50, 100)}):
        engine.begin(PROMPTS, Sampling(1.0, 8), seeds)
    time.sleep(0.2)
    asking = [one for one in set(threading.enumerate()) - before if "process_request" not in one.name]
    assert asking and all(one.daemon for one in asking)  # Python joins the others, and so the whole batch, at its end
    engine.close()
    asked = len(server.bodies)
    for one in asking:
        one.join(30)
    assert len(server.bodies) == asked and not any(one.is_alive() for one in asking)
    assert server.calls[-1] == "/shutdown_weight_transfer_engine"


def test_the_servers_before_one_that_fails_are_let_go(two: tuple[Server, Server], tiny_moe: PreTrainedModel) -> None:
    two[1].backend = ""
    with pytest.raises(GspoError, match="cannot take over"):
        of_both(two, tiny_moe)
    assert two[0].calls[-1] == "/shutdown_weight_transfer_engine" and not two[0].paused


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (["http://a:8000", "http://a:8000/"], "there twice"),
        ("http://a:8000,http://b:8000", "a list, such as"),
        (["http://a:8000", "b:8000"], "begins with http"),
        ([], "at least 1 item"),
    ],
)
def test_addresses(url: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        VllmConfig(url=url)


def test_a_process_asks_as_much_whatever_the_number_of_ranks(server: Server) -> None:
    """Divided among many ranks, a rank whose responses end early would leave the server idle."""
    client = transfer.ServerClient(server.url, 60)
    host = partial(vllm_server.ServerHost, client, frozenset({1}), 64, lambda *_: None)
    assert [host(Ranks(0, size)).concurrency for size in (1, 8, 100)] == [64, 64, 64]
