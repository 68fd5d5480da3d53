"""The engine that a recipe names."""

from __future__ import annotations

import os
import sys
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import RolloutConfig
from gspo_cli.models.load import stop_ids
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.rollout.process_host import ProcessHost
from gspo_cli.rollout.transformers_engine import TransformersEngine


def open_engine(
    config: RolloutConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, routes: bool = False
) -> Engine:
    """Ready to sample from the weights of `model`, which a lost engine is restarted from.

    Errors: GspoError for an engine that cannot be had, with what it needs.
    """
    stops = stop_ids(model, tokenizer)
    if config.engine == "vllm":
        from gspo_cli.rollout.vllm_hosts import vllm_host

        return HostedEngine(
            "vllm", vllm_host(config, model, stops, routes), model, stops, config.deadline_s, routes=routes
        )
    if config.engine == "vllm-server":
        from gspo_cli.rollout.server_engine import ServerEngine

        return ServerEngine(config.vllm, model.config.vocab_size, stops, config.deadline_s)
    if config.engine == "scripted":
        options = {"stop_ids": sorted(stops), "vocabulary": model.config.vocab_size}
        options |= config.scripted.model_dump()
        host = partial(ProcessHost, sys.executable, "scripted_host.py", options, dict(os.environ), config.deadline_s)
        return HostedEngine("scripted", host, model, stops, config.deadline_s, checked=False)
    return TransformersEngine(model, stops, config.kv_budget_gb, config.deadline_s)
