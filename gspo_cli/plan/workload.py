"""What a plan is computed from: GPUs, and the sizes that follow from a recipe and a model."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.config import OtherGpu, Recipe
from gspo_cli.plan.architecture import Architecture

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gib: float
    """Usable by a program."""
    bf16_flops: float
    """Operations per second on tensor cores."""
    fp32_flops: float
    """Without tensor cores: torch's default for float32 matrices."""
    bandwidth: float
    """Of its memory, bytes per second."""
    link: float
    """To its neighbours in the node, one way, bytes per second."""

    @classmethod
    def of(cls, gpu: str | OtherGpu) -> Gpu:
        """One of `GPUS`, or what a recipe says of another."""
        if isinstance(gpu, str):
            return GPUS[gpu]
        fp32 = gpu.fp32_tflops or gpu.bf16_tflops
        return cls(
            "GPU", gpu.memory_gib, gpu.bf16_tflops * 1e12, fp32 * 1e12, gpu.memory_tb_s * 1e12, gpu.link_gb_s * 1e9
        )

    def flops(self, itemsize: int) -> float:
        """Peak for numbers of 2 or 4 bytes."""
        return self.bf16_flops if itemsize == 2 else self.fp32_flops


GPUS = {
    "a100": Gpu("A100 80 GB", 79, 312e12, 19.5e12, 2.039e12, 300e9),
    "h100": Gpu("H100 80 GB", 79, 989e12, 67e12, 3.35e12, 450e9),
    "h200": Gpu("H200 141 GB", 139, 989e12, 67e12, 4.8e12, 450e9),
    "b200": Gpu("B200", 178, 2250e12, 75e12, 7.7e12, 900e9),
    "rtx4090": Gpu("RTX 4090", 23.5, 165e12, 82.6e12, 1.008e12, 32e9),
}

PROMPT_TOKENS = 256
MEAN_SHARE = 0.5
"""Length of the mean response, as a share of the limit."""
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Workload:
    """One arm of a recipe on its machine."""

    recipe: Recipe
    model: Architecture

    @property
    def gpu(self) -> Gpu | None:
        """None if the recipe has no `[cluster]`: one device of unknown kind."""
        return Gpu.of(self.recipe.cluster.gpu) if self.recipe.cluster else None

    @property
    def ranks(self) -> int:
        """Processes that train, one per GPU."""
        cluster = self.recipe.cluster
        return cluster.nodes * cluster.gpus_per_node if cluster else 1

    @property
    def shards(self) -> int:
        """Ranks over which parameters, gradients and optimizer are sharded."""
        cluster = self.recipe.cluster
        return cluster.gpus_per_node if cluster and self.recipe.train.divide == "machine" else self.ranks

    @property
    def stored(self) -> int:
        """Bytes of a parameter in the optimizer."""
        return ITEMSIZE[self.recipe.model.dtype]

    @property
    def computed(self) -> int:
        """Bytes of a number in a pass."""
        return ITEMSIZE[self.recipe.model.compute or self.recipe.model.dtype]

    @property
    def engine_itemsize(self) -> int:
        """Bytes of a weight in the engine; the built-in one uses the trainer's weights or a copy of them."""
        dtype = self.recipe.rollout.vllm.dtype if self.recipe.rollout.engine == "vllm" else None
        if dtype is None and self.recipe.rollout.engine == "transformers" and self.ranks == 1:
            return self.computed
        return ITEMSIZE[dtype] if dtype else self.stored

    @property
    def parallel(self) -> int:
        """GPUs of one engine."""
        return self.recipe.rollout.vllm.tensor_parallel if self.recipe.rollout.engine == "vllm" else 1

    @property
    def responses(self) -> int:
        """Responses in a rollout batch."""
        return self.recipe.rollout.prompts * self.recipe.rollout.samples

    @property
    def longest(self) -> int:
        """Tokens of the longest row: prompt and response."""
        return PROMPT_TOKENS + self.recipe.rollout.max_new_tokens

    @property
    def mean_response(self) -> float:
        """Tokens of the mean response."""
        return MEAN_SHARE * self.recipe.rollout.max_new_tokens

    @property
    def mean_row(self) -> float:
        """Tokens of the mean row."""
        return PROMPT_TOKENS + self.mean_response

    @property
    def batch_tokens(self) -> float:
        """Tokens fed to the model for a rollout batch: responses, and each prompt once."""
        return self.responses * self.mean_response + self.recipe.rollout.prompts * PROMPT_TOKENS

    @property
    def micro_tokens(self) -> int:
        """Tokens of the largest pass: at least one row, at most what a rank has of a mini-batch."""
        rows = -(-self.responses // (self.recipe.minibatches * self.ranks))
        return max(self.longest, min(self.recipe.train.micro_batch_tokens, rows * self.longest))

    @property
    def trained(self) -> int:
        """Trained parameters."""
        lora = self.recipe.model.lora
        return self.model.parameters if lora is None else self.model.lora_parameters(lora)
