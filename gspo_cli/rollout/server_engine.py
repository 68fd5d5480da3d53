"""Engine `vllm-server`: a `vllm serve` that the user started, token ids in and out over HTTP.

It samples from the weights it was started with, for `gspo rollout` and `gspo eval`. The standard library's client is
enough for one kind of request; seeds make each of them safe to repeat.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from gspo_cli.config import VllmConfig
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.engine import EngineInfo, SampleKey, SyncReport
from gspo_cli.rollout.hosted_engine import vllm_sampling
from gspo_cli.types import Prompt, Sample, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GENERATE = "/inference/v1/generate"
TRIES, PAUSE_S, ANSWER_S = 4, 0.5, 10.0
PASSING = {429, 500, 502, 503, 504}
"""Statuses after which the same request may succeed."""
SERVED_SAMPLES, SERVED_GAP = 8, 0.1
"""Half precision on one side gives about 0.01 nats; other weights give whole nats."""
Progress = Callable[[int, int], None]


class ServerEngine:
    """The `Engine` protocol over a server whose weights stay as they are."""

    def __init__(
        self, config: VllmConfig, vocabulary: int, stop_ids: frozenset[int], deadline_s: float, progress: Progress
    ) -> None:
        assert config.url is not None  # see capabilities.py
        self.url, self.concurrency, self.deadline_s = config.url.rstrip("/"), config.concurrency, deadline_s
        self.progress, self.weight_version, self.stop_ids = progress, 0, sorted(stop_ids)
        until = time.monotonic() + ANSWER_S
        version = self._get("/version", until)["version"]
        [served, *_] = self._get("/v1/models", until)["data"]
        self.info = EngineInfo(
            "vllm-server",
            {"vllm": str(version), "model": str(served["id"])},
            "unknown",
            tuple(self.stop_ids),
            vocabulary,
        )
        self._check_log_probs()

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`: one request a sample, at most `concurrency` of them at a time.

        Errors: GspoError (exit code 5) when a request fails for good or the deadline passes; nothing is kept then.
        """
        until = time.monotonic() + self.deadline_s
        ids = {p.problem_id: p.token_ids for p in prompts}
        samples: list[Sample] = []
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            wanted = [pool.submit(self._sample, ids[key[0]], sampling, key, seed, until) for key, seed in seeds.items()]
            for done in as_completed(wanted, timeout=self.deadline_s):
                samples.append(done.result())
                self.progress(len(samples), len(wanted))
        except TimeoutError as error:
            raise self._lost(f"{len(seeds) - len(samples)} of {len(seeds)} samples missing after "
                             f"{self.deadline_s:g} s") from error  # fmt: skip
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return samples

    def _sample(self, prompt: tuple[int, ...], sampling: Sampling, key: SampleKey, seed: int, until: float) -> Sample:
        choice = self._choice(prompt, vllm_sampling(sampling), seed, until)
        token_ids = tuple(choice["token_ids"])
        log_probs = tuple(float(c["logprob"]) for c in choice["logprobs"]["content"])
        # the server says "stop" where its engine gave no reason: what ended the sample is read off the sample
        stopped = bool(token_ids) and token_ids[-1] in self.stop_ids
        full = len(token_ids) == sampling.max_new_tokens
        mixed = len(choice.get("weight_versions") or [0]) != 1
        return Sample(
            *key, seed, token_ids, log_probs, "stop" if stopped else "length" if full else "abort", -1 if mixed else 0
        )

    def _choice(self, prompt: tuple[int, ...], sampling: dict[str, Any], seed: int, until: float) -> dict[str, Any]:
        """The one answer to one request, in which nothing is left to the server's defaults."""
        fixed = {"n": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True, "stop_token_ids": self.stop_ids}
        body = {"token_ids": list(prompt), "sampling_params": sampling | fixed | {"seed": seed}, "stream": False}
        answer = self._repeated(lambda: self._request(GENERATE, body, until), until)
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def _check_log_probs(self) -> None:
        """A token drawn from its own top-1 has probability 1, if log-probabilities are those it was drawn with.

        Errors: GspoError when the server gives those before temperature and truncation.
        """
        only = vllm_sampling(Sampling(temperature=1.0, max_new_tokens=1, top_k=1))
        choice = self._choice((self.stop_ids[0],), only, 0, time.monotonic() + self.deadline_s)
        if abs(float(choice["logprobs"]["content"][0]["logprob"])) > 1e-3:
            raise GspoError(
                f"the server at {self.url} gives log-probabilities of another distribution than it samples from",
                "vLLM takes them before temperature and truncation unless it is told otherwise",
                "start it with --logprobs-mode processed_logprobs",
            )

    def sync(self, weights: Any, version: int) -> SyncReport | None:
        """Never possible: a recipe that would need it is refused before anything is loaded (`capabilities.py`).

        Errors: GspoError.
        """
        raise GspoError(
            f"the server at {self.url} cannot take over the weights of {type(weights).__name__} after step {version}",
            "engine vllm-server samples for `gspo rollout` and `gspo eval`, from the weights it was started with",
            "rollout.engine = 'vllm' or 'transformers' to train",
        )

    def rest(self) -> None:
        """The server's memory is its own."""

    def close(self) -> None:
        """The server is the user's and stays."""

    def _get(self, path: str, until: float) -> dict[str, Any]:
        return self._repeated(lambda: self._request(path, None, until), until)

    def _repeated(self, request: Callable[[], dict[str, Any]], until: float) -> dict[str, Any]:
        """A request, repeated after a growing pause while its failure may pass."""
        for attempt in range(TRIES):
            try:
                return request()
            except urllib.error.HTTPError as error:
                why = f"{error.code} {error.reason}: {error.read(500).decode(errors='replace').strip()}"
                if error.code not in PASSING:
                    raise self._lost(why) from error
            except (OSError, ValueError) as error:  # no connection, a broken one, or half an answer
                why = str(error) or type(error).__name__
            pause = PAUSE_S * 2**attempt
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
        raise self._lost(f"{why} ({attempt + 1} tries)")

    def _request(self, path: str, body: dict[str, Any] | None, until: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=max(0.1, until - time.monotonic())) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _lost(self, why: str) -> GspoError:
        return GspoError(
            f"the server at {self.url} did not answer as it should",
            why,
            "see its own log; rollout.vllm.concurrency and rollout.deadline_s set how hard and how long it is asked",
            ExitCode.ENGINE,
        )


def check_served_model(server: ServerEngine, model: PreTrainedModel) -> None:
    """Samples a few tokens and compares their log-probabilities with those of `model`, whose name the batch will bear.

    Errors: GspoError when the server must be serving other weights.
    """
    prompt = Prompt("served", (model.config.vocab_size // 2,) * 2)
    seeds = {(prompt.problem_id, i): i for i in range(SERVED_SAMPLES)}
    gaps: list[float] = []
    for sample in server.generate([prompt], Sampling(temperature=1.0, max_new_tokens=16), seeds):
        ids_BT = torch.tensor([[*prompt.token_ids, *sample.token_ids]], device=model.device)
        mask_BT = torch.arange(ids_BT.shape[1], device=model.device)[None] >= len(prompt.token_ids)
        with torch.no_grad():
            ours_T = token_scores(model.eval(), ids_BT, mask_BT, 1.0).log_probs_BT[mask_BT].tolist()
        gaps += [abs(ours - theirs) for ours, theirs in zip(ours_T, sample.log_probs, strict=True)]
    gap = fmean(gaps)
    if not gap <= SERVED_GAP:
        raise GspoError(
            f"the server at {server.url} does not serve {model.name_or_path}",
            f"its log-probabilities of {len(gaps)} tokens differ from that model's by {gap:.2g} nats in the mean; it "
            f"serves {server.info.versions['model']}",
            "name the model that it serves",
        )
