"""An engine plugin whose process fails on demand: `rollout.engine = "faulty_engine:dies_at_call_3"`."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig
from gspo_cli.distributed import Ranks
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import ProcessHost

BACKEND = Path(__file__).with_name("faulty_backend.py")
Opener = Callable[[RolloutConfig, PreTrainedModel, frozenset[int], Ranks], HostedEngine]


def with_fault(fault: str | None = None, call: int = 1, every: bool = False) -> Opener:
    """Opens engines whose processes show `fault` (see `FAULTS` in faulty_backend.py) at that call of `generate`, and at
    all later ones with `every`; a restarted process counts from 1 again."""

    def open_engine(
        config: RolloutConfig, model: PreTrainedModel, stop_ids: frozenset[int], ranks: Ranks
    ) -> HostedEngine:
        options = {"stop_ids": sorted(stop_ids), "vocabulary": model.config.vocab_size,
                   "fault": fault, "call": call, "every": every}  # fmt: skip
        host = partial(ProcessHost, sys.executable, BACKEND, options, dict(os.environ), config.deadline_s)
        return HostedEngine("faulty", host, model, stop_ids, config.deadline_s, checked=False, ranks=ranks)

    return open_engine


sound = with_fault()
dies_at_call_3 = with_fault("die", call=3)
dies_from_call_2 = with_fault("die", call=2, every=True)
