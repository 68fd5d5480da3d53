"""Engine `vllm-server`: a `vllm serve` that the user started, token ids in and out over HTTP.

Without a transfer it samples from the weights it was started with; with one it follows the trainer: paused, handed the
weights, asked for their version, resumed. (It answers nothing while it is paused, so the one-prompt check comes after.)
"""

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.events import SamplingProgress
from gspo_cli.rollout.engine import Progress
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import HostLost, vllm_sampling
from gspo_cli.rollout.vllm.sync_check import trainer_log_probs
from gspo_cli.rollout.vllm.transfer import ANSWER_S, ServerClient, Transfer
from gspo_cli.types import Prompt, Sampling

GENERATE = "/inference/v1/generate"
GREEDY = vllm_sampling(Sampling(temperature=0.0, max_new_tokens=1))


class ServerHost:
    """A host (see `Host`) whose process is the user's: never replaced, never ended."""

    replaceable = False

    def __init__(
        self, client: ServerClient, stop_ids: frozenset[int], concurrency: int, progress: Progress, ranks: Ranks
    ) -> None:
        self.client, self.stop_ids, self.ranks = client, sorted(stop_ids), ranks
        self.concurrency, self.progress = concurrency, progress
        self.transfer: Transfer | None = None
        self.closed = threading.Event()
        version = client.get("/version")["version"]
        [served, *_] = client.get("/v1/models")["data"]
        self.facts = {"versions": {"vllm": str(version), "model": str(served["id"])}, "dtype": "unknown"}
        self._check_log_probs()

    def follow(self, transfer: Transfer, weights: PreTrainedModel) -> None:
        """From now on the server holds the trainer's weights, handed over by `transfer`.

        Errors: GspoError for a server that was not started for it; otherwise as `load`.
        """
        try:
            found = self.client.get("/server_info?config_format=json", self.client.deadline_s)["vllm_config"]
            backend = (found["weight_transfer_config"] or {}).get("backend", "none")
            fits = backend == transfer.backend
            lacking = "" if fits else f"its weight transfer backend is {backend}, needed is {transfer.backend}"
        except GspoError as error:
            lacking = error.why
        if lacking:
            raise GspoError(
                f"the server at {self.client.url} cannot take over the trainer's weights",
                lacking,
                "start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config; docs/vllm.md has the lines to "
                "paste",
            )
        model = found["model_config"]
        dtype = str(model["dtype"]).removeprefix("torch.")
        self.facts |= {"dtype": dtype, "positions": model["max_model_len"]}
        self.transfer = transfer
        try:
            transfer.open(dtype)
            self.load(weights, 0)
        except (GspoError, HostLost):
            self.give_up()
            raise

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """See `Host.ask`."""
        answer: dict[str, Any] = getattr(self, do)(**request)
        return answer

    def generate(
        self, prompts: list[list[int]], requests: list[list[int]], sampling: dict[str, Any], deadline_s: float,
        stop: bool = True,
    ) -> dict[str, Any]:  # fmt: skip
        """As `Backend.generate` of worker/vllm_backend.py: one request a sample, `concurrency` of them at a time, in
        threads that the end of the process does not wait for.

        Errors: GspoError (exit code 5) when a request fails for good or the deadline passes; nothing is kept then.
        """
        until = time.monotonic() + deadline_s
        waiting, answers = deque(enumerate(requests)), SimpleQueue[list[Any] | BaseException]()

        def work() -> None:
            with suppress(IndexError):  # none is left
                while True:
                    index, (prompt, seed) = waiting.popleft()
                    try:
                        if self.closed.is_set():
                            raise self.client.lost("nobody waits for the answer any more")
                        answers.put(self._sample(index, prompts[prompt], sampling, seed, until, stop))
                    except BaseException as error:
                        answers.put(error)

        samples: list[list[Any]] = []
        tokens = 0
        try:
            for _ in range(min(self.concurrency, len(requests))):
                threading.Thread(target=work, daemon=True).start()
            while len(samples) < len(requests):
                answer = answers.get(timeout=max(0.0, until - time.monotonic()))
                if isinstance(answer, BaseException):
                    raise answer
                samples.append(answer)
                tokens += len(answer[3])
                if threading.current_thread() is threading.main_thread():  # not of what was begun beside other work
                    done, wanted = len(samples), len(requests)
                    self.progress(SamplingProgress(done, wanted, tokens, done / wanted))
        except Empty as error:
            missing = f"{len(requests) - len(samples)} of {len(requests)} samples missing after {deadline_s:g} s"
            raise self.client.lost(missing) from error
        finally:
            waiting.clear()
        return {"samples": samples}

    def score(self, sequences: list[list[int]], deadline_s: float) -> dict[str, Any]:
        """As `Backend.score`: log-probabilities at temperature 1 of every token but the first."""
        until = time.monotonic() + deadline_s
        found = []
        for ids in sequences:
            given = self._answer(ids, GREEDY | {"prompt_logprobs": 0}, 0, until, stop=False)["prompt_logprobs"]
            found.append([at[str(token)]["logprob"] for token, at in zip(ids[1:], given[1:], strict=True)])
        return {"log_probs": found}

    def load(self, weights: PreTrainedModel, version: int) -> int:
        """See `Host.load`. Its key-value cache goes with the pause.

        Errors: GspoError, on all ranks; the server is then neither resumed nor fit to be.
        """
        assert self.transfer is not None
        self.ranks.barrier()  # until no rank has a request under way: it would wait, and be answered by the new weights
        self.ranks.broadcast(lambda: self.client.post("/pause?mode=keep&clear_cache=true"))
        tensors = self.transfer.send(weights, version)
        self.ranks.broadcast(lambda: self._resume(version))
        return tensors

    def rest(self) -> dict[str, Any]:
        """The server's memory is its own."""
        return {}

    def close(self) -> None:
        """The server is the user's and stays, with the weights it has."""
        transfer, self.transfer = self.transfer, None
        self.closed.set()
        if transfer is not None:
            transfer.close()
            self._try("/shutdown_weight_transfer_engine")

    def give_up(self) -> None:
        """See `Host.give_up`: a server that has followed the trainer is left paused, its requests ended."""
        if self.transfer is not None:
            self.transfer = None
            self._try("/pause?mode=abort")
            self._try("/shutdown_weight_transfer_engine")

    def _try(self, path: str) -> None:
        if self.ranks.is_main:
            with suppress(GspoError):  # it may be gone
                self.client.post(path, within_s=ANSWER_S)

    def _resume(self, version: int) -> None:
        found = self.client.get("/weight_info")["weight_version"]
        if found != str(version):
            raise GspoError(
                f"the server at {self.client.url} did not take over the weights of step {version}",
                f"it says that it holds those of step {found}",
                "it is left paused: start it again, then gspo train --resume; one trainer a server",
                ExitCode.ENGINE,
            )
        self.client.post("/resume")

    def _sample(
        self, index: int, prompt: list[int], sampling: dict[str, Any], seed: int, until: float, stop: bool
    ) -> list[Any]:
        [choice] = self._answer(prompt, sampling, seed, until, stop)["choices"]
        token_ids = list(choice["token_ids"])
        log_probs = [float(c["logprob"]) for c in choice["logprobs"]["content"]]
        # the server says "stop" where its engine gave no reason: what ended the sample is read off the sample
        stopped = stop and bool(token_ids) and token_ids[-1] in self.stop_ids
        full = len(token_ids) == sampling["max_tokens"]
        finish = "stop" if stopped else "length" if full else "abort"
        spans = choice.get("weight_versions") or [{"version": 0}]
        # weights that changed on the way are no version
        version = -1 if len(spans) != 1 else int(spans[0]["version"]) if self.transfer is not None else 0
        return [index, version, finish, token_ids, log_probs]

    def _answer(
        self, prompt: list[int], sampling: dict[str, Any], seed: int, until: float, stop: bool
    ) -> dict[str, Any]:
        """The answer to one request, in which nothing is left to the server's defaults."""
        stops = self.stop_ids if stop else []
        fixed = {"n": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True, "stop_token_ids": stops, "seed": seed}
        body = {"token_ids": prompt, "sampling_params": sampling | fixed, "stream": False}
        return self.client.repeated(GENERATE, body, until)

    def _check_log_probs(self) -> None:
        """A token drawn from its own top-1 has probability 1, if log-probabilities are those it was drawn with.

        Errors: GspoError when the server gives those before temperature and truncation.
        """
        only = vllm_sampling(Sampling(temperature=1.0, max_new_tokens=1, top_k=1))
        until = time.monotonic() + self.client.deadline_s
        [choice] = self._answer([self.stop_ids[0]], only, 0, until, stop=True)["choices"]
        if abs(float(choice["logprobs"]["content"][0]["logprob"])) > 1e-3:
            raise GspoError(
                f"the server at {self.client.url} gives log-probabilities of another distribution than it samples from",
                "vLLM takes them before temperature and truncation unless it is told otherwise",
                "start it with --logprobs-mode processed_logprobs",
            )


SAMPLES, GAP = 8, 0.1
"""Half precision on one side gives about 0.01 nats; other weights give whole nats."""


def check_served_model(engine: HostedEngine, model: PreTrainedModel) -> None:
    """Samples a few tokens and compares their log-probabilities with those of `model`.

    Errors: GspoError when the server must be serving other weights.
    """
    prompt = Prompt("served", (model.config.vocab_size // 2,) * 2)
    seeds = {(prompt.problem_id, i): i for i in range(SAMPLES)}
    gaps: list[float] = []
    for sample in engine.generate([prompt], Sampling(temperature=1.0, max_new_tokens=16), seeds):
        ours = trainer_log_probs(model, [*prompt.token_ids, *sample.token_ids]).tolist()[1:]  # not the prompt's second
        gaps += [abs(x - y) for x, y in zip(ours, sample.log_probs, strict=True)]
    gap = fmean(gaps)
    if not gap <= GAP:
        raise GspoError(
            f"the server does not serve {model.name_or_path}",
            f"its log-probabilities of {len(gaps)} tokens differ from that model's by {gap:.2g} nats in the mean; it "
            f"serves {engine.info.versions['model']}",
            "name the model that it serves",
        )
