"""Everything that a plan is computed from, taken out of a recipe once."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.config import Recipe
from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.hardware import GPUS, Gpu

PROMPT_TOKENS = 256
MEAN_SHARE = 0.5
"""Of the length limit: the mean response."""
ITEMSIZE = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Setup:
    """One arm of a recipe on its machine."""

    recipe: Recipe
    model: Architecture

    @property
    def gpu(self) -> Gpu | None:
        """None = the recipe has no `[cluster]`: one device of unknown kind."""
        return GPUS[self.recipe.cluster.gpu] if self.recipe.cluster else None

    @property
    def ranks(self) -> int:
        """Processes that train, a GPU each."""
        cluster = self.recipe.cluster
        return cluster.nodes * cluster.gpus_per_node if cluster else 1

    @property
    def shards(self) -> int:
        """Of them, those over which parameters, gradients and optimizer are divided."""
        cluster = self.recipe.cluster
        return cluster.gpus_per_node if cluster and self.recipe.train.divide == "machine" else self.ranks

    @property
    def stored(self) -> int:
        """Bytes of a parameter as the optimizer sees it."""
        return ITEMSIZE[self.recipe.model.dtype]

    @property
    def computed(self) -> int:
        """Bytes of a number in a pass."""
        return ITEMSIZE[self.recipe.model.compute or self.recipe.model.dtype]

    @property
    def engine_itemsize(self) -> int:
        """Bytes of a weight in the engine; the built-in one has the trainer's weights or a copy of them."""
        asked = self.recipe.rollout.vllm.dtype if self.recipe.rollout.engine == "vllm" else None
        return ITEMSIZE[asked] if asked else self.stored

    @property
    def parallel(self) -> int:
        """GPUs that one engine is spread over."""
        return self.recipe.rollout.vllm.tensor_parallel if self.recipe.rollout.engine == "vllm" else 1

    @property
    def responses(self) -> int:
        """In a rollout batch."""
        return self.recipe.rollout.prompts * self.recipe.rollout.samples

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return PROMPT_TOKENS + self.recipe.rollout.max_new_tokens

    @property
    def mean_response(self) -> float:
        """Tokens."""
        return MEAN_SHARE * self.recipe.rollout.max_new_tokens

    @property
    def mean_row(self) -> float:
        """Tokens of prompt and mean response."""
        return PROMPT_TOKENS + self.mean_response

    @property
    def batch_tokens(self) -> float:
        """That a rollout batch's passes are fed: responses, and each prompt once."""
        return self.responses * self.mean_response + self.recipe.rollout.prompts * PROMPT_TOKENS

    @property
    def micro_tokens(self) -> int:
        """Of the largest pass: a micro-batch holds at least one row, and no more than a rank has in a mini-batch."""
        rows = -(-self.responses // (self.minibatches * self.ranks))
        return max(self.longest, min(self.recipe.train.micro_batch_tokens, rows * self.longest))

    @property
    def minibatches(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.recipe.algo.minibatches or self.recipe.train.minibatches

    @property
    def trained(self) -> int:
        """Parameters with a gradient."""
        lora = self.recipe.model.lora
        return self.model.parameters if lora is None else self.model.lora_parameters(lora)
