"""The plan's ranges against what others published of RL and FSDP training; the sources are in docs/real-models.md."""

from dataclasses import dataclass

import pytest

from gspo_cli import recipe as recipes
from gspo_cli.config import Recipe
from gspo_cli.plan import time, workload
from gspo_cli.plan.architecture import PUBLISHED, Architecture
from gspo_cli.plan.time import TRAIN_DENSE, TRAIN_EXPERTS, Efficiency
from gspo_cli.plan.workload import GPUS, Workload

QWEN_8B, QWEN_30B = PUBLISHED["Qwen/Qwen3-8B"], PUBLISHED["Qwen/Qwen3-30B-A3B"]
QWEN_32B = Architecture("qwen3", 5120, 64, 64, 8, 128, 25600, 151_936, tied=False)
QWEN2_7B = Architecture("qwen2", 3584, 28, 28, 4, 128, 18944, 152_064, tied=False)
LLAMA_8B = Architecture("llama", 4096, 32, 32, 8, 128, 14336, 128_256, tied=False)
QWEN35_FLOP = 2 * (8_953_803_264 - 248_320 * 4096)
"""Qwen3.5-9B, which the planner cannot count: two operations for each weight but the embedding's."""
EIGHT = 8 * 245.5 * 2457
"""Tokens of a step: GPUs, seconds, tokens/s a GPU."""
LIMIT = 4096 - 256
"""Of a response to a prompt of 256 tokens."""
SEVEN = 8 * 36.6 * 1268


@dataclass(frozen=True)
class Row:
    """`passes` = forward passes' worth of operations per token, recomputed layers included."""

    source: str
    seconds: float
    flop: float
    tokens: float
    gpu: str
    gpus: int
    passes: int
    expected: Efficiency = TRAIN_DENSE

    @property
    def share(self) -> float:
        """Of the peak."""
        return self.passes * self.flop * self.tokens / (self.gpus * GPUS[self.gpu].flops(2)) / self.seconds


ROWS = [
    Row("torchtitan#1690, Qwen3-32B", 1.0, QWEN_32B.forward_flop(4096), 876, "h100", 1, 4),
    Row("verl#3870, Qwen3-8B, update", 111.3, QWEN_8B.forward_flop(EIGHT / 5120), EIGHT, "h100", 8, 4),
    Row("verl#3870, Qwen3-8B, old policy", 28.9, QWEN_8B.forward_flop(EIGHT / 5120), EIGHT, "h100", 8, 1),
    Row("verl#3870, Qwen2-7B, update", 9.09, QWEN2_7B.forward_flop(SEVEN / 1024), SEVEN, "h100", 8, 4),
    Row("transformers#48692, Qwen3.5-9B", 0.60, QWEN35_FLOP, 65_536, "b200", 8, 3),
    Row("NeMo AutoModel, Qwen3-30B-A3B", 1.0, QWEN_30B.forward_flop(4096), 11_842, "h100", 1, 3, TRAIN_EXPERTS),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.source)
def test_a_published_speed_of_training_is_in_the_range(row: Row) -> None:
    assert row.expected.least <= row.share <= row.expected.most, f"{row.share:.3f}"


@pytest.mark.parametrize(
    ("name", "model", "nodes", "mean", "seconds"),
    [("real/qwen3-8b-8gpu", LLAMA_8B, 2, 1060, 97.7), ("real/qwen3-30b-a3b-16xh100", QWEN_30B, 4, 3154, 225)],
)
def test_a_published_step_is_in_the_range(
    name: str, model: Architecture, nodes: int, mean: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeMo-RL: 2,048 responses in mini-batches of 512, on H100; other code for training, the same for sampling."""
    table = recipes.load(name).model_dump(mode="json")
    table["cluster"] = {"gpu": "h100", "nodes": nodes, "gpus_per_node": 8}
    table["rollout"] |= {"prompts": 128, "samples": 16, "max_new_tokens": LIMIT}
    monkeypatch.setattr(workload, "MEAN_SHARE", (mean - 256) / LIMIT)
    table |= {"eval": {"bench": []}, "checkpoint": {"every": 0}}
    _, low, high = time.total(time.phases(Workload(Recipe.model_validate(table), model)))
    assert low < seconds < high, f"{low:.0f} to {high:.0f}"
