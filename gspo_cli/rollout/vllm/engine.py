"""An engine whose model lives in a host: samples by key, weights handed over and checked, one restart a run."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from transformers import PreTrainedModel

from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.moe.routers import Routing
from gspo_cli.rollout.engine import EngineInfo, SampleKey, SyncReport
from gspo_cli.rollout.vllm.host import Host, HostLost, HostRefused, vllm_sampling
from gspo_cli.rollout.vllm.sync_check import SyncProbe
from gspo_cli.types import Prompt, Sample, Sampling

T = TypeVar("T")


class HostedEngine:
    """The `Engine` protocol over a host.

    A host that dies or does not answer in time is replaced once, with the trainer's weights as they are; the request is
    repeated with the same seeds, so the batch is the one that would have come. The second loss ends the run. Among
    several ranks, each with a host, the first one does: one rank alone cannot gather weights that all hold.
    """

    def __init__(
        self, name: str, open_host: Callable[[], Host], weights: PreTrainedModel, stop_ids: frozenset[int],
        deadline_s: float, checked: bool = True, routing: Routing | None = None, ranks: Ranks = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        self.weights, self.deadline_s, self.weight_version = weights, deadline_s, 0
        self.open_host, self.restarts, self.routing, self.ranks = open_host, 0, routing, ranks
        self.on_restart: Callable[[str], None] = lambda _reason: None
        self.begun: list[tuple[dict[SampleKey, int], Future[list[Sample]]]] = []
        self.name = name
        self.probe: SyncProbe | None = None
        self.host = self._open()
        self.info = EngineInfo(
            name=name, versions=self.host.facts["versions"], dtype=self.host.facts["dtype"],
            stop_ids=tuple(sorted(stop_ids)), vocabulary=weights.config.vocab_size, routes=routing is not None,
        )  # fmt: skip
        if checked:
            self.probe = self._call(self._make_probe)

    def begin(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> None:
        """Begins a request in a thread, unless it has begun, for a host that answers while the trainer works: a later
        `generate` with these seeds waits for it. What it raises comes there. It is asked after those begun before it,
        as each has the whole deadline."""
        if any(keys == seeds for keys, _ in self.begun):
            return
        before, done = [earlier for _, earlier in self.begun[-1:]], Future[list[Sample]]()

        def draw() -> None:
            try:
                for earlier in before:
                    earlier.result()
                done.set_result(self._generate(prompts, sampling, seeds))
            except BaseException as error:
                done.set_exception(error)

        self.begun.append((seeds, done))
        threading.Thread(target=draw, daemon=True).start()  # which nothing waits for if the batch is abandoned

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`."""
        for place, (keys, done) in enumerate(self.begun):
            if keys == seeds:
                del self.begun[place]
                return done.result()
        return self._generate(prompts, sampling, seeds)

    def _generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        keys = list(seeds)
        place = {p.problem_id: i for i, p in enumerate(prompts)}
        request = {
            "prompts": [list(p.token_ids) for p in prompts],
            "requests": [[place[problem], seeds[problem, index]] for problem, index in keys],
            "sampling": vllm_sampling(sampling),
        }
        answer = self._call(lambda host: host.ask("generate", **request, deadline_s=self.deadline_s))
        return [self._sample(keys, seeds, *fields) for fields in answer["samples"]]

    def _sample(
        self, keys: list[SampleKey], seeds: dict[SampleKey, int], request: int, version: int, finish: Any,
        token_ids: list[int], log_probs: list[float], routes_TLK: Any = None,
    ) -> Sample:  # fmt: skip
        key = keys[request]
        if self.routing is not None:  # vLLM gives a row for dense layers as well
            routes_TLK = routes_TLK[:, list(self.routing.layers)]
            routes_TLK = routes_TLK.astype(str(self.routing.dtype).removeprefix("torch."))
        return Sample(*key, seeds[key], tuple(token_ids), tuple(log_probs), finish, version, routes_TLK)

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        """See `Engine.sync`."""
        self.weights, self.weight_version = weights, version
        return self._call(self._load)

    def rest(self) -> None:
        """See `Engine.rest`."""
        self._call(lambda host: host.ask("rest"))

    def close(self) -> None:
        """Ends the host."""
        self.host.close()

    def _make_probe(self, host: Host) -> SyncProbe:
        """What later loads are checked with, after a first load that must change nothing."""
        probe = SyncProbe(host, self.weights, self.deadline_s, self.ranks)
        probe.check_reload(host, self.weights)
        return probe

    def _load(self, host: Host) -> SyncReport | None:
        """Weights into the host, and the one-prompt check."""
        tensors = host.load(self.weights, self.weight_version)
        return self.probe.check(host, self.weights, self.weight_version, tensors) if self.probe else None

    def _call(self, request: Callable[[Host], T]) -> T:
        """A request, repeated once with a new host if this one is lost.

        Errors: GspoError (exit code 5) for the second loss, one that cannot be mended, and a refusal.
        """
        try:
            try:
                return request(self.host)
            except HostLost as lost:
                self.host.give_up()
                if self.restarts or not self.host.replaceable or self.ranks.size > 1:
                    raise
                self.restarts += 1
                self.on_restart(str(lost))
                self.host = self._open()
                self._load(self.host)
                return request(self.host)
        except (HostLost, HostRefused) as error:
            self.host.give_up()
            gone = f"engine {self.name} was lost" + (" again after a restart" if self.restarts else "")
            raise GspoError(
                gone if isinstance(error, HostLost) else f"engine {self.name} refused",
                f"{error} (weights of step {self.weight_version})",
                "the log holds everything up to the last whole rollout batch; `gspo doctor` checks the engine, "
                "rollout.deadline_s is its time limit",
                ExitCode.ENGINE,
            ) from error
        except GspoError:
            self.host.give_up()
            raise

    def _open(self) -> Host:
        try:
            return self.open_host()
        except (HostLost, HostRefused) as error:
            raise GspoError(
                f"engine {self.name} did not start", str(error), "`gspo doctor` checks what it needs", ExitCode.ENGINE
            ) from error
