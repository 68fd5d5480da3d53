"""The tables `[model]` and `[cold_start]` of a recipe: the model that a study starts from."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from gspo_cli.tables import PositiveFloat, PositiveInt, Seed, Table


class TinyModel(Table):
    """The shape of a tiny model, built instead of loaded."""

    kind: Literal["qwen3", "qwen3_moe"] = "qwen3_moe"
    tokenizer: Literal["characters", "bytes"] = "characters"
    hidden: Annotated[int, Field(ge=8, multiple_of=8)] = 64
    layers: PositiveInt = 3
    experts: PositiveInt = 8
    top_k: PositiveInt = 2
    expert_width: PositiveInt | None = None
    """Inner width of an expert; default: `hidden`."""
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    """Width of an attention head; default: a quarter of `hidden`. vLLM's CPU kernels need at least 32."""

    @model_validator(mode="after")
    def _top_k_fits(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        return self


class Lora(Table):
    """Train low-rank adapters instead of the weights."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """The adapters are scaled by alpha / rank."""
    targets: tuple[str, ...] | None = None
    """Names of linear layers, such as `q_proj`; default: all but the experts and the head."""
    experts: bool = False
    """Adapt the experts' weights too."""


class ModelConfig(Table):
    """The model to train."""

    path: str | None = None
    """A Hugging Face folder or hub name; give this or `tiny`."""
    revision: str | None = None
    tiny: TinyModel | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the parameters; log-probabilities and ratios are always float32. `float16` is refused."""
    compute: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the arithmetic of all passes, training's and the built-in sampler's; default: `dtype`. `bfloat16` with
    `dtype = "float32"` keeps weights, gradients and optimizer in float32; `float16`, with loss scaling, needs that."""
    float32_head: bool = False
    """Whether the language-model head computes in float32 whatever `compute` is, in training and in the built-in
    sampler."""
    float32_matmul: Literal["highest", "high"] = "highest"
    """Precision of float32 products on a GPU: exact, or in TF32 (`high`), which rounds their factors to 10 bits of
    mantissa. No effect on a CPU, or on vLLM."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`: cuda if available, else cpu."""
    lora: Lora | None = None
    """Train with LoRA if present, else train all weights."""
    threads: PositiveInt | None = None
    """CPU threads of torch; results can depend on it. Default: all cores."""

    @field_validator("device")
    @classmethod
    def _is_supported(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device, re.ASCII):
            raise ValueError("a device is auto, cpu, cuda, or one of several, such as cuda:1")
        return device

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.tiny is None):
            raise ValueError("give either path or tiny")
        return self

    @model_validator(mode="after")
    def _float16_has_float32_weights(self) -> Self:
        if self.dtype == "float16" or (self.compute == "float16" and self.dtype != "float32"):
            raise ValueError(
                'float16 is for passes: dtype = "float32" with compute = "float16"; in half precision most of the '
                "optimizer's steps would be rounded away"
            )
        return self


class ColdStart(Table):
    """A short supervised stage before reinforcement learning, run once and cached."""

    steps: PositiveInt = 1000
    batch: PositiveInt = 64
    lr: PositiveFloat = 3e-3
    seed: Seed = 0
    """Separate from the run's seed, so that all runs of all studies start from the same model."""
    per_seed: bool = False
    """A start model of its own for each seed of a study (cold start with `seed` plus the run's), the same for all arms.
    Without it a comparison is about one start model."""
    starts: Annotated[int, Field(ge=2)] | None = None
    """So many start models, which the seeds of a study share in turn (cold start with `seed` plus the remainder of the
    run's seed). A comparison then says how much of the variance comes from the start model."""
    path: str | None = None
    """Your own demonstrations (json, jsonl, parquet); default: the task's."""
    columns: dict[Literal["prompt", "response"], str] = Field(default={})

    @model_validator(mode="after")
    def _one_plan(self) -> Self:
        if self.per_seed and self.starts:
            raise ValueError("give either per_seed or starts")
        return self

    @property
    def varies(self) -> bool:
        """Whether not all seeds of a study share one start model."""
        return self.per_seed or self.starts is not None
