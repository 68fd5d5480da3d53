"""The engine that a recipe names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import RolloutConfig
from gspo_cli.models.load import stop_ids
from gspo_cli.moe.routers import needed_routing
from gspo_cli.rollout.capabilities import check_engine
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.rollout.process_host import ProcessHost
from gspo_cli.rollout.server_engine import ServerEngine, check_served_model
from gspo_cli.rollout.transformers_engine import TransformersEngine
from gspo_cli.rollout.vllm_hosts import vllm_host


def open_engine(
    config: RolloutConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    routes: bool = False,
    progress: Callable[[int, int], None] = lambda _drawn, _wanted: None,
) -> Engine:
    """Ready to sample from the weights of `model`, which a lost engine is restarted from; with `routes`, its samples
    say which experts were chosen. `progress` is told (samples drawn, samples wanted) where an engine can say.

    Errors: GspoError for a model without routers, or an engine that cannot be had, with what it needs.
    """
    shape = model.config
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    check_engine(config, model.device.type, routes, trains=False, head_dim=head_dim)
    stops = stop_ids(model, tokenizer)
    routing = needed_routing(model, "recording the engine's expert choices") if routes else None
    if config.engine == "vllm":
        host = vllm_host(config, model, stops, routes)
        return HostedEngine("vllm", host, model, stops, config.deadline_s, routing=routing)
    if config.engine == "vllm-server":
        server = ServerEngine(config.vllm, model.config.vocab_size, stops, config.deadline_s, progress)
        check_served_model(server, model)
        return server
    if config.engine == "scripted":
        options = {"stop_ids": sorted(stops), "vocabulary": model.config.vocab_size} | config.scripted.model_dump()
        script = partial(ProcessHost, sys.executable, "scripted_host.py", options, dict(os.environ), config.deadline_s)
        return HostedEngine("scripted", script, model, stops, config.deadline_s, checked=False)
    return TransformersEngine(model, stops, config.kv_budget_gb, config.deadline_s, routing)
