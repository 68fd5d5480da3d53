"""The engine that a recipe names."""

from __future__ import annotations

import os
import sys
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import RolloutConfig
from gspo_cli.models.load import stop_ids
from gspo_cli.moe.routers import needed_routing
from gspo_cli.ranks import ALONE, Ranks
from gspo_cli.rollout.capabilities import check_engine
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.rollout.process_host import ProcessHost
from gspo_cli.rollout.served_model import check_served_model
from gspo_cli.rollout.server_client import ServerClient
from gspo_cli.rollout.server_host import Progress, ServerHost
from gspo_cli.rollout.transfer import FileTransfer, NcclTransfer
from gspo_cli.rollout.transformers_engine import TransformersEngine
from gspo_cli.rollout.vllm_hosts import vllm_host


def open_engine(
    config: RolloutConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    routes: bool = False,
    progress: Progress = lambda _drawn, _wanted: None,
    trains: bool = False,
    ranks: Ranks = ALONE,
) -> Engine:
    """Ready to sample from the weights of `model`, which a lost engine is restarted from; with `routes`, its samples
    say which experts were chosen. `progress` is told (samples drawn, samples wanted) where an engine can say. `trains`
    = the weights will change. Among several ranks all must call it, and each has an engine of its own for its share.

    Errors: GspoError for a model without routers, or an engine that cannot be had, with what it needs.
    """
    shape = model.config
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    check_engine(config, model.device.type, routes, trains, head_dim)
    stops = stop_ids(model, tokenizer)
    routing = needed_routing(model, "recording the engine's expert choices") if routes else None
    if config.engine == "vllm":
        host = vllm_host(config, model, stops, routes, ranks)
        return HostedEngine("vllm", host, model, stops, config.deadline_s, routing=routing, ranks=ranks)
    if config.engine == "vllm-server":
        server = partial(open_server, config, model, stops, progress, trains, ranks)
        engine = HostedEngine("vllm-server", server, model, stops, config.deadline_s, checked=trains, ranks=ranks)
        if not trains:
            check_served_model(engine, model)
        return engine
    if config.engine == "scripted":
        options = {"stop_ids": sorted(stops), "vocabulary": model.config.vocab_size} | config.scripted.model_dump()
        script = partial(ProcessHost, sys.executable, "scripted_host.py", options, dict(os.environ), config.deadline_s)
        return HostedEngine("scripted", script, model, stops, config.deadline_s, checked=False, ranks=ranks)
    return TransformersEngine(model, stops, config.kv_budget_gb, config.deadline_s, routing)


def open_server(
    config: RolloutConfig, model: PreTrainedModel, stops: frozenset[int], progress: Progress, trains: bool, ranks: Ranks
) -> ServerHost:
    """The server that runs already; if the weights will change, with those of `model` in it."""
    assert config.vllm.url is not None  # see capabilities.py
    client = ServerClient(config.vllm.url, config.deadline_s)
    host = ServerHost(client, stops, config.vllm.concurrency, progress, ranks)
    if trains:
        host.follow((NcclTransfer if model.device.type == "cuda" else FileTransfer)(client, ranks), model)
    return host
