"""The engine's expert choices: those of a fresh pass over the same tokens, for every token but the last."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_sampler import NEVER, PROMPTS
from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.routers import find_routing
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.store import write_rollout
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sampling, Score

STOPS = frozenset(range(1, 30))  # rows end at different times and are dropped


def test_recorded_routes_are_those_of_a_fresh_pass(tiny_moe: PreTrainedModel) -> None:
    routing = find_routing(tiny_moe)
    seeds = [[10 * p[0] + i for i in range(6)] for p in PROMPTS]
    drawn = sample(tiny_moe, PROMPTS, seeds, Sampling(1.0, 12), STOPS, NEVER, routing)
    lengths = {len(d.token_ids) for group in drawn for d in group}
    assert len(lengths) > 3
    for prompt, group in zip(PROMPTS, drawn, strict=True):
        for d in group:
            ids = torch.tensor([[*prompt, *d.token_ids]])
            with torch.no_grad(), tapped(routing) as tap:
                assert tap is not None
                tiny_moe.base_model(input_ids=ids, use_cache=False)
                fresh_TLK = tap.natural_LRK.movedim(0, 1)[:-1]  # the last token was never forwarded
            assert d.routes_TLK is not None and d.routes_TLK.dtype == np.uint8
            assert np.array_equal(d.routes_TLK, fresh_TLK.numpy())
    plain = sample(tiny_moe, PROMPTS, seeds, Sampling(1.0, 12), STOPS, NEVER)
    assert [[d.token_ids for d in g] for g in plain] == [[d.token_ids for d in g] for g in drawn]
    assert all(d.routes_TLK is None for g in plain for d in g)


def test_an_engine_says_that_it_records_and_routes_are_stored(
    tiny_moe: PreTrainedModel, tiny_dense: PreTrainedModel, tmp_path: Path
) -> None:
    tokenizer, config, prompt = character_tokenizer(), RolloutConfig(), Prompt("p", (5, 6, 7))
    assert not open_engine(config, tiny_moe, tokenizer).info.routes
    with pytest.raises(GspoError, match=r"(?s)Qwen3ForCausalLM.*dense"):
        open_engine(config, tiny_dense, tokenizer, routes=True)
    engine = open_engine(config, tiny_moe, tokenizer, routes=True)
    samples = tuple(engine.generate([prompt], Sampling(1.0, 4), {("p", 0): 1, ("p", 1): 2}))
    assert engine.info.routes and samples[0].routes_TLK is not None
    assert samples[0].routes_TLK.shape == (3 + len(samples[0].token_ids) - 1, 2, 2)
    group = Group(Problem("p", "", ""), prompt, samples, ("", ""), (Score(1.0, ""), Score(0.0, "")))
    write_rollout(RolloutBatch(1, (group,), 4), tmp_path / "batch.parquet", {})
    table = pq.read_table(tmp_path / "batch.parquet")
    shape = [int(n) for n in table.schema.metadata[b"gspo.routes_shape"].decode().split(",")]
    for stored, one in zip(table["routes"].to_pylist(), samples, strict=True):
        assert np.array_equal(np.array(stored, np.uint8).reshape(shape), one.routes_TLK)
