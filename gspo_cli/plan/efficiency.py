"""Which share of a limit is reached in practice, as ranges, with where each comes from.

A limit is arithmetic; these are other people's measurements on other programs, or guesses where it says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.plan.setup import Setup


@dataclass(frozen=True)
class Share:
    """From the least to the most that is expected of a limit."""

    least: float
    most: float
    source: str

    @property
    def text(self) -> str:
        """For the list of assumptions."""
        return f"{self.least:g} to {self.most:g} of the limit: {self.source}"


TRAIN_EXPERTS = Share(
    0.03, 0.28, "published for Qwen3-30B-A3B on 8 H100: prime-rl (RL, passes of 16k) to Automodel (expert parallel)"
)
TRAIN_DENSE = Share(0.15, 0.39, "most: published for Qwen3-32B, FSDP over 8 GPUs (torchtitan#1690); least: a guess")
TRAIN_FLOAT32 = Share(0.3, 0.8, "a guess: float32 off the tensor cores is easily kept busy")
DECODE_ONE = Share(0.62, 0.74, "vLLM on one H100 (ml-energy), context assumed")
DECODE_SPREAD = Share(0.45, 0.55, "vLLM on two H100 (ml-energy, about one half)")
DECODE_BUILT_IN = Share(0.01, 0.1, "a guess from 0.012 of transformers' own generate (sglang#12614, one sequence)")
LINKS = Share(0.1, 0.67, "most: 300 of 450 GB/s, assumed, between nodes too (8 adapters of 400 Gbit/s); least: a guess")
COPIES = Share(0.01, 0.67, "least: 15.8 s for 30B between 16 and 16 GPUs (published, verl); most: as the links")
ADAM = Share(0.5, 0.9, "a guess: a fused optimizer reads and writes memory and nothing else")

WHOLE_STEP = 0.043
"""Of the arithmetic's limit of a whole step: NeMo-RL's 1,102 tokens/s a GPU against 25.7k (Qwen3-30B-A3B, 32 H100)."""


def training_share(setup: Setup) -> Share:
    """Of the peak of forward and backward passes."""
    if setup.computed == 4:
        return TRAIN_FLOAT32
    return TRAIN_EXPERTS if setup.model.moe_layers else TRAIN_DENSE


def decode_share(setup: Setup) -> Share:
    """Of the memory's bandwidth while sampling."""
    if setup.recipe.rollout.engine != "vllm":
        return DECODE_BUILT_IN
    return DECODE_ONE if setup.parallel == 1 else DECODE_SPREAD
