"""Hand the trainer's weights to a server: vLLM's weight-transfer API, over NCCL or through a file in memory."""

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, wait
from typing import Any
from urllib.parse import urlsplit

import torch
from transformers import PreTrainedModel

from gspo_cli.distributed import Ranks, free_port
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.rollout.vllm.host import HostLost
from gspo_cli.rollout.vllm.weights import WeightStream, write_weights

TRIES, PAUSE_S, ANSWER_S = 4, 0.5, 10.0
PASSING = {429, 500, 502, 503, 504}
"""Statuses after which the same request may succeed."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key is for the server that the user named, and for no other that it names."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: its status is an error."""


OPENER = urllib.request.build_opener(_NoRedirects)


class ServerClient:
    """One server, at `url`. Every method: GspoError (exit code 5) when the server does not answer as it should.

    The last four are the server's side of a transfer, as vLLM's own sender calls it.
    """

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url, self.deadline_s, self.sent_version = url.rstrip("/"), deadline_s, ""

    def get(self, path: str, within_s: float = ANSWER_S) -> dict[str, Any]:
        """What stands there, asked for again where the failure may pass."""
        return self.repeated(path, None, time.monotonic() + within_s)

    def post(self, path: str, body: dict[str, Any] | None = None, within_s: float | None = None) -> dict[str, Any]:
        """An order, given once: it may have been carried out although no answer came."""
        try:
            return self._request(path, body or {}, time.monotonic() + (within_s or self.deadline_s))
        except (OSError, ValueError) as error:
            raise self.lost(f"{path}: {_said(error)}") from error

    def repeated(self, path: str, body: dict[str, Any] | None, until: float) -> dict[str, Any]:
        """A request that changes nothing, repeated after a growing pause while its failure may pass."""
        for attempt in range(TRIES):
            try:
                return self._request(path, body, until)
            except (OSError, ValueError) as error:  # no connection, a broken one, half an answer, or an error's status
                why = _said(error)
                if isinstance(error, urllib.error.HTTPError) and error.code not in PASSING:
                    raise self.lost(why) from error
            pause = PAUSE_S * 2**attempt
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
        raise self.lost(f"{why} ({attempt + 1} tries)")

    def _request(self, path: str, body: dict[str, Any] | None, until: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with OPENER.open(request, timeout=max(0.1, until - time.monotonic())) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def lost(self, why: str) -> GspoError:
        """For the user."""
        return GspoError(
            f"the server at {self.url} did not answer as it should",
            why,
            "see its own log; rollout.vllm.concurrency and rollout.deadline_s set how hard and how long it is asked",
            ExitCode.ENGINE,
        )

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has the server's workers connect."""
        self.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Has them make room."""
        self.post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Has them receive and load what `update_info` says."""
        self.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Has them use it, under its version: vLLM's sender names none, so `sent_version` is taken."""
        self.post("/finish_weight_update", {"weight_version": weight_version or self.sent_version})


def _said(error: Exception) -> str:
    if not isinstance(error, urllib.error.HTTPError):
        return str(error) or type(error).__name__
    with error:
        return f"{error.code} {error.reason}: {error.read(500).decode(errors='replace').strip()}"


class FileTransfer:
    """A file without a name in rank 0's memory, for a server of the same user on the same machine: for CPUs, which NCCL
    does not know. The server's side is `worker/file_transfer.py`.

    All ranks call the methods in the same order. Errors: GspoError (exit code 5).
    """

    backend = "file"
    """Its name in the server's --weight-transfer-config."""

    def __init__(self, client: ServerClient, ranks: Ranks) -> None:
        self.client, self.ranks = client, ranks
        self.file: int | None = None
        self.dtype = torch.float32

    def open(self, dtype: str) -> None:
        """Connects; `dtype` = what the server computes in, and so what travels."""
        self.dtype = getattr(torch, dtype)
        self.file = os.memfd_create("gspo-weights") if self.ranks.is_main else None
        self.ranks.broadcast(lambda: self.client.init_weight_transfer_engine({}))

    def send(self, weights: PreTrainedModel, version: int) -> int:
        """Hands the weights over under that version; returns how many tensors there were."""
        tensors = write_weights(weights, self.dtype, self.file)

        def update() -> None:
            self.client.start_weight_update()
            self.client.update_weights({"path": f"/proc/{os.getpid()}/fd/{self.file}"})
            self.client.finish_weight_update(str(version))

        self.ranks.broadcast(update)
        return tensors

    def close(self) -> None:
        """Frees this side of the connection."""
        if self.file is not None:
            os.close(self.file)


class NcclTransfer:
    """The same with vLLM's own sender. Not yet run on a GPU."""

    backend = "nccl"

    def __init__(self, client: ServerClient, ranks: Ranks) -> None:
        self.client, self.ranks = client, ranks
        self.stream = WeightStream()
        self.sender: Any = None

    def open(self, dtype: str) -> None:
        """See `FileTransfer.open`: one group of rank 0 and every worker of the server, whatever its parallelism."""
        self.stream.dtype = getattr(torch, dtype)
        workers = self.ranks.broadcast(lambda: self.client.get("/get_world_size")["world_size"])
        place = {"master_address": own_address(self.client.url), "master_port": free_port(), "world_size": 1 + workers}
        self.sender = self._in_time(lambda: open_sender(place, self.ranks.rank, self.client, self.stream), "connecting")

    def send(self, weights: PreTrainedModel, version: int) -> int:
        """See `FileTransfer.send`."""
        self.stream.begin(weights)
        self.client.sent_version = str(version)

        def work() -> None:
            try:
                self._in_time(self.sender.send_weights, f"sending the weights of step {version}")
            except GspoError:
                self.stream.drain()  # for the ranks that gather what was not sent
                raise

        self.ranks.all_gather(work)
        return len(self.stream.metadata())

    def close(self) -> None:
        """See `FileTransfer.close`."""
        self.sender.shutdown()

    def _in_time(self, work: Any, doing: str) -> Any:
        """What `work` gives, within the deadline: after an error on one side the other waits in NCCL for ever.

        Errors: GspoError; HostLost at the deadline, when this rank can no longer say so to the others.
        """
        done = Future[Any]()
        device = torch.cuda.current_device() if torch.cuda.is_available() else None

        def run() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # a thread begins with the first one
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()  # which nothing waits for at the end
        if not wait([done], self.client.deadline_s).done:
            raise HostLost(f"{doing} to {self.client.url}: not done after {self.client.deadline_s:g} s")
        try:
            return done.result()
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            raise GspoError(
                f"{doing} to the server at {self.client.url} failed",
                f"{type(error).__name__}: {error}",
                "its workers may wait in NCCL for ever: start the server again, then gspo train --resume",
                ExitCode.ENGINE,
            ) from error


Transfer = FileTransfer | NcclTransfer


def open_sender(place: dict[str, Any], rank: int, client: ServerClient, stream: WeightStream) -> Any:
    """vLLM's sender, connected."""
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info = NCCLTrainerInitInfo(**place, rank=rank)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=stream)


def own_address(url: str) -> str:
    """This machine's address as the server reaches it."""
    there = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting sends nothing, but chooses the way
        probe.connect((there.hostname or "127.0.0.1", there.port or 80))
        return str(probe.getsockname()[0])
