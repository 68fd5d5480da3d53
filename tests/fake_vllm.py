"""A server that answers as vLLM's does, weight transfer included, and misbehaves on demand."""

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.rollout.vllm import server as vllm_server
from gspo_cli.rollout.vllm import transfer
from gspo_cli.types import Sampling

GENERATE = "/inference/v1/generate"


class Server(ThreadingHTTPServer):
    """Samples from a model; `fail` = statuses for the next requests for samples, `delay_s` = how long one takes;
    `faults` = what the next call of a route does instead: 500, hang, drop, lie."""

    daemon_threads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.lock = copy.deepcopy(model).eval(), threading.Lock()
        self.fail: list[int] = []
        self.faults: dict[str, str] = {}
        self.delay_s, self.raw = 0.0, False
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.running = self.most = 0
        self.calls: list[str] = []
        """Orders, with the version they name; samples asked for in between as one `generate`."""
        self.version, self.paused, self.backend = "default", False, "file"
        self.updates: list[dict[str, Any]] = []
        self.pending: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted, prompt = body["sampling_params"], body["token_ids"]
        scores = None
        with self.lock, torch.no_grad():
            assert not self.paused, "vLLM would let this wait"
            if wanted["top_k"] == 1:  # what the opening asks: is the distribution cut off before its log-probabilities?
                token_ids, log_probs = [4], [-2.0 if self.raw else 0.0]
            elif "prompt_logprobs" in wanted:
                ids_BT = torch.tensor([prompt])
                found_T = token_scores(self.model, ids_BT, torch.arange(len(prompt))[None] > 0, 1.0).log_probs_BT[0, 1:]
                scores = [None, *({str(t): {"logprob": x}} for t, x in zip(prompt[1:], found_T.tolist(), strict=True))]
                token_ids, log_probs = [4], [-1.0]
            else:
                [[drawn]] = sample(
                    self.model, [tuple(prompt)], [[wanted["seed"]]],
                    Sampling(wanted["temperature"], wanted["max_tokens"]), frozenset(wanted["stop_token_ids"]), 1e12,
                )  # fmt: skip
                token_ids, log_probs = list(drawn.token_ids), list(drawn.log_probs)
        content = [{"token_id": t, "logprob": lp} for t, lp in zip(token_ids, log_probs, strict=True)]
        spans = [{"version": self.version, "start": 0, "end": len(token_ids)}]
        choice = {"token_ids": token_ids, "finish_reason": "stop", "logprobs": {"content": content}}
        return {"choices": [choice | {"weight_versions": spans}], "prompt_logprobs": scores}

    def order(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the route does to the server's state, as vLLM's routes do it."""
        if route == "/pause":
            self.paused = True
        elif route == "/resume":
            self.paused = False
        elif route == "/start_weight_update":
            assert self.pending is None
            self.pending = ""
        elif route == "/update_weights":
            assert self.pending == ""
            self.updates.append(body["update_info"])
            self.pending = body["update_info"]["path"]
        elif route == "/finish_weight_update":
            assert self.pending
            tensors = load_file(self.pending)
            if self.faults.pop("weights", "") == "lie":  # it says that it took them over
                tensors = {name: tensor * 1.5 for name, tensor in tensors.items()}
            assert not self.model.load_state_dict(tensors, strict=False).unexpected_keys
            self.version, self.pending = body["weight_version"], None
        return {"message": "done"}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        route = self.path.partition("?")[0]
        config = {
            "weight_transfer_config": {"backend": server.backend} if server.backend else None,
            "model_config": {"dtype": "torch.float32", "max_model_len": 32},
        }
        known = {
            "/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "served"}]},
            "/weight_info": {"weight_version": server.version}, "/get_world_size": {"world_size": 4},
            "/server_info": {"vllm_config": config},
        }  # fmt: skip
        fault = server.faults.pop(route, "")
        if route == "/weight_info":
            server.calls.append(route)
        if fault == "lie":
            known["/weight_info"] = {"weight_version": "17"}
        self.reply(*((500, {"error": "as asked"}) if fault == "500" else (200, known[route])))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        route, _, query = self.path.partition("?")
        if route == GENERATE:
            self.generate(body)
            return
        server = self.server
        version = body.get("weight_version")
        server.calls.append(route + (f"?{query}" if query else "") + (f" {version}" if version else ""))
        fault = server.faults.pop(route, "")
        if fault == "hang":
            time.sleep(2)
        elif fault == "drop":
            self.close_connection = True
        elif fault == "500":
            self.reply(500, {"error": {"message": "the worker failed, as asked"}})
        else:
            self.reply(200, server.order(route, body))

    def generate(self, body: dict[str, Any]) -> None:
        server = self.server
        with server.lock:
            if server.calls[-1:] != ["generate"]:
                server.calls.append("generate")
            server.bodies.append(body)
            server.keys.add(self.headers.get("Authorization"))
            server.running += 1
            server.most = max(server.most, server.running)
            status = server.fail.pop(0) if server.fail else 200
        time.sleep(server.delay_s)
        answer = server.answer(body) if status == 200 else {"error": "as asked"}
        with server.lock:
            server.running -= 1  # before the answer leaves: its reader may ask again at once
        self.reply(status, answer)

    def reply(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked has given up
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(model: PreTrainedModel) -> Iterator[Server]:
    """A server of a copy of the model, in a thread; its clients wait less before they try again."""
    with Server(model) as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PAUSE_S", 0.01)
        patch.setattr(vllm_server, "SAMPLES", 2)
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


class FileSender:
    """Stands in for vLLM's NCCL sender (0.32, vllm/distributed/weight_transfer/nccl_engine.py): the same calls in the
    same order, with a file in place of the broadcast."""

    def __init__(self, folder: Path, rank: int, orders: Any, stream: Any) -> None:
        self.file, self.rank, self.orders, self.stream = str(folder / "sent"), rank, orders, stream
        self.hang_s = 0.0
        if rank == 0:
            orders.init_weight_transfer_engine({"rank_offset": 1})

    def send_weights(self) -> None:
        from safetensors.torch import save_file

        meta = self.stream.metadata()
        time.sleep(self.hang_s)
        if self.rank:
            for _ in self.stream:
                pass
            return
        self.orders.start_weight_update()
        sent = list(self.stream)
        assert [(name, t.dtype, tuple(t.shape)) for name, t in sent] == [tuple(m) for m in meta]
        save_file(dict(sent), self.file)
        self.orders.update_weights({"path": self.file})
        self.orders.finish_weight_update()  # vLLM's sender names no version

    def shutdown(self) -> None:
        pass
