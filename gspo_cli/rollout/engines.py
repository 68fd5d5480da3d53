"""The engine that a recipe names, and engines in parallel: each rank samples its share."""

import base64
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import RolloutConfig
from gspo_cli.distributed import SINGLE_PROCESS, Ranks, interleave
from gspo_cli.errors import GspoError
from gspo_cli.models.load import stop_ids
from gspo_cli.models.trunk import head_dim
from gspo_cli.moe.routers import needed_routing
from gspo_cli.plugins import is_plugin, load_plugin
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.engine import Engine, OverlappingEngine, Progress, SampleKey, SyncReport, check_engine
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import vllm_host
from gspo_cli.rollout.vllm.server import ServerHost, check_served_model
from gspo_cli.rollout.vllm.transfer import FileTransfer, NcclTransfer, ServerClient
from gspo_cli.rollout_config import addresses
from gspo_cli.tasks import Crediting, Task
from gspo_cli.tasks.scoring import score
from gspo_cli.types import Problem, Prompt, Sample, Sampling, Score


def open_engine(
    config: RolloutConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    routes: bool = False,
    progress: Progress = lambda _: None,
    trains: bool = False,
    ranks: Ranks = SINGLE_PROCESS,
) -> Engine:
    """Ready to sample from the weights of `model`, which a lost engine is restarted from; with `routes`, its samples
    say which experts were chosen. `progress` is told how far a request is, except by an engine of the user's. `trains`
    = the weights will change. Among several ranks all must call it, and each has an engine of its own for its share.

    Errors: GspoError for a model without routers, or an engine that cannot be had, with what it needs.
    """
    check_engine(config, model.device.type, routes, trains, head_dim(model))
    stops = stop_ids(model, tokenizer)
    if is_plugin(config.engine):
        engine: Engine = load_plugin(config.engine, needs=("__call__",))(config, model, stops, ranks)
        return engine
    routing = needed_routing(model, "recording the engine's expert choices") if routes else None
    if config.engine == "vllm":
        host = vllm_host(config, model, stops, routes, ranks, progress)
        return HostedEngine("vllm", host, model, stops, config.deadline_s, routing=routing, ranks=ranks)
    if config.engine == "vllm-server":
        servers: list[HostedEngine] = []
        try:
            for url in addresses(config.vllm.url):
                server = partial(open_server, url, config, model, stops, progress, trains, ranks)
                servers.append(
                    HostedEngine("vllm-server", server, model, stops, config.deadline_s, checked=trains, ranks=ranks)
                )
                if not trains:
                    check_served_model(servers[-1], model)
            return servers[0] if len(servers) == 1 else Servers(servers)
        except BaseException:
            for opened in servers:
                opened.close()
            raise
    return TransformersEngine(
        model, stops, config.kv_budget_gb, config.deadline_s, routing, progress, compiles=config.compile
    )


def open_server(
    url: str, config: RolloutConfig, model: PreTrainedModel, stops: frozenset[int], progress: Progress, trains: bool,
    ranks: Ranks,
) -> ServerHost:  # fmt: skip
    """The server that runs already; if the weights will change, with those of `model` in it."""
    client = ServerClient(url, config.deadline_s)
    host = ServerHost(client, stops, config.vllm.concurrency, progress, ranks)
    if trains:
        host.follow((NcclTransfer if model.device.type == "cuda" else FileTransfer)(client, ranks), model)
    return host


class Servers:
    """The `Engine` protocol over several servers of the same model, each checked by itself. Every sample has its
    own seed, so it does not matter which server draws it."""

    def __init__(self, engines: list[HostedEngine]) -> None:
        self.engines, self.info, self.weight_version = engines, engines[0].info, engines[0].weight_version
        if different := [engine.info for engine in engines if engine.info != self.info]:
            raise GspoError(
                "the servers of rollout.vllm.url are not alike",
                f"the first is {self.info.versions} in {self.info.dtype}, another {different[0].versions} in "
                f"{different[0].dtype}",
                "start all of them with the same vLLM, model and --dtype",
            )

    def begin(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> None:
        """See `OverlappingEngine.begin`."""
        for engine, share in self._shares(seeds):
            engine.begin(prompts, sampling, share)

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`. Progress is that of the first server."""
        first, *others = self._shares(seeds)
        for engine, share in others:
            engine.begin(prompts, sampling, share)
        return [s for engine, share in (first, *others) for s in engine.generate(prompts, sampling, share)]

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        """See `Engine.sync`: the report of the server that is farthest from the trainer."""
        self.weight_version = version
        reports = [engine.sync(weights, version) for engine in self.engines]
        return max((r for r in reports if r), key=lambda report: report.absdiff_max, default=None)

    def rest(self) -> None:
        """A server's memory is its own."""

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _shares(self, seeds: dict[SampleKey, int]) -> list[tuple[HostedEngine, dict[SampleKey, int]]]:
        number = len(self.engines)
        shares = [dict(list(seeds.items())[place::number]) for place in range(number)]
        return [(engine, share) for engine, share in zip(self.engines, shares, strict=True) if share]


class SharedEngine:
    """The `Engine` protocol over one engine per rank, or per `spread` ranks. Every sample has its own seed, so it does
    not matter which rank draws it."""

    def __init__(self, engine: Engine, ranks: Ranks, spread: int = 1) -> None:
        self.engine, self.ranks, self.spread = engine, ranks, spread
        self.info, self.weight_version = engine.info, engine.weight_version

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """See `Engine.generate`; all ranks must pass the same arguments."""
        mine, my_seeds = self._share(prompts, seeds)

        def draw() -> list[dict[str, Any]]:
            samples = self.engine.generate(mine, sampling, my_seeds) if mine else []
            return [to_json(s) for s in samples] if self.ranks.rank % self.spread == 0 else []

        shares = self.ranks.all_gather(draw, divisible=self.spread == 1)
        return [from_json(table) for share in shares for table in share]

    def begin(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> None:
        """See `OverlappingEngine.begin`: this rank's share."""
        mine, my_seeds = self._share(prompts, seeds)
        if mine:
            cast(OverlappingEngine, self.engine).begin(mine, sampling, my_seeds)

    def _share(self, prompts: list[Prompt], seeds: dict[SampleKey, int]) -> tuple[list[Prompt], dict[SampleKey, int]]:
        mine = Ranks(self.ranks.rank // self.spread, self.ranks.size // self.spread).shard(prompts)
        ids = {prompt.problem_id for prompt in mine}
        return mine, {key: seed for key, seed in seeds.items() if key[0] in ids}

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        self.weight_version = version
        return self.engine.sync(weights, version)

    def rest(self) -> None:
        self.engine.rest()

    def close(self) -> None:
        self.engine.close()


class SharedTask:
    """A task whose responses are scored by all ranks, each its share."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        self.task, self.ranks = task, ranks
        if isinstance(task, Crediting):
            self.token_credits = task.token_credits

    def problems(self, split: str) -> list[Problem]:
        return self.task.problems(split)

    def reward(self, problem: Problem, text: str) -> Score:
        return self.task.reward(problem, text)

    def rewards(self, responses: list[tuple[Problem, str]]) -> list[Score]:
        """See `Batched.rewards`: each response is scored once, so that all ranks agree on it."""
        shares = self.ranks.all_gather(lambda: [asdict(s) for s in score(self.task, self.ranks.shard(responses))])
        tables = interleave(shares)
        return [Score(t["value"], t["reason"], tuple((label, value) for label, value in t["parts"])) for t in tables]


def to_json(sample: Sample) -> dict[str, Any]:
    table = {name: getattr(sample, name) for name in sample.__slots__ if name != "routes_TLK"}
    if (routes := sample.routes_TLK) is not None:
        packed = base64.b64encode(np.ascontiguousarray(routes).tobytes()).decode()
        table["routes"] = [packed, str(routes.dtype), list(routes.shape)]
    return table


def from_json(table: dict[str, Any]) -> Sample:
    routes = table.pop("routes", None)
    table["token_ids"], table["log_probs"] = tuple(table["token_ids"]), tuple(table["log_probs"])
    if routes is not None:
        packed, dtype, shape = routes
        table["routes_TLK"] = np.frombuffer(base64.b64decode(packed), dtype=dtype).reshape(shape)
    return Sample(**table)
