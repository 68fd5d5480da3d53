"""The numbers of a decoder that determine memory and time: from its configuration, or as published."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gspo_cli.config import Lora, ModelConfig, TinyModel
from gspo_cli.errors import GspoError
from gspo_cli.hub import prepare_hub

KINDS = ("qwen3", "qwen3_moe", "qwen2", "llama", "mistral")
"""`model_type` of the configurations whose parameters are counted here."""
TINY_VOCABULARY = {"characters": 99, "bytes": 259}


@dataclass(frozen=True)
class Architecture:
    """A decoder of one of `KINDS`. Counts are in parameters, operations per token."""

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Inner width of a dense feed-forward block."""
    vocabulary: int
    tied: bool
    experts: int = 0
    top_k: int = 0
    expert_inner: int = 0
    dense_layers: int = 0
    """Layers of a mixture-of-experts model without experts."""

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_matrices(self) -> int:
        """2 H d (q + kv): the four projections of a layer."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def small_vectors(self) -> int:
        """Two norms per layer (2 H), and norms of queries and keys (2 d) or biases if the kind has them."""
        norms = 2 * self.head_dim if self.kind.startswith("qwen3") else 0
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) if self.kind == "qwen2" else 0
        return 2 * self.hidden + norms + biases

    @property
    def expert_parameters(self) -> int:
        """P_e = 3 L E H I."""
        return 3 * self.moe_layers * self.experts * self.hidden * self.expert_inner

    @property
    def head(self) -> int:
        """V H: the language-model head, or the embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """P = L (2 H d (q + kv) + 2 H + 2 d) + P_e + L E H + H + 2 V H (V H if tied); dense blocks 3 H I each."""
        dense = (self.layers - self.moe_layers) * 3 * self.hidden * self.inner
        routers = self.moe_layers * self.experts * self.hidden
        attention = self.layers * (self.attention_matrices + self.small_vectors)
        return attention + dense + routers + self.expert_parameters + self.hidden + self.head * (1 if self.tied else 2)

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest decoder layer."""
        block = self.experts * (self.hidden + 3 * self.hidden * self.expert_inner) if self.moe_layers else 0
        dense = 3 * self.hidden * self.inner if self.layers > self.moe_layers else 0
        return self.attention_matrices + self.small_vectors + max(block, dense)

    @property
    def active(self) -> int:
        """A = L (2 H d (q + kv) + E H + 3 k H I) + V H: the weights that multiply one token."""
        experts = self.moe_layers * self.hidden * (self.experts + 3 * self.top_k * self.expert_inner)
        dense = (self.layers - self.moe_layers) * 3 * self.hidden * self.inner
        return self.layers * self.attention_matrices + experts + dense + self.head

    def forward_flop(self, length: float) -> float:
        """F = 2 A + 2 L q d T per token of a causal sequence of T = `length` tokens."""
        return 2 * self.active + 2 * self.layers * self.heads * self.head_dim * length

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of one token's keys and values: 2 L kv d numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    @property
    def routes_bytes(self) -> int:
        """Bytes of one token's recorded experts: L k slots of one byte up to 255 experts, else of two."""
        return self.moe_layers * self.top_k * (1 if self.experts <= 255 else 2)

    def lora_parameters(self, lora: Lora) -> int:
        """Parameters of the adapters: r (inputs + outputs) for each adapted layer. Targets have their usual names."""
        h, d, i = self.hidden, self.head_dim, self.inner
        sizes = {
            "q_proj": h + self.heads * d, "k_proj": h + self.kv_heads * d, "v_proj": h + self.kv_heads * d,
            "o_proj": h + self.heads * d, "gate_proj": h + i, "up_proj": h + i, "down_proj": h + i,
        }  # fmt: skip
        block = ("gate_proj", "up_proj", "down_proj")
        wanted = lora.targets or tuple(sizes)
        counts = {name: self.layers - self.moe_layers if name in block else self.layers for name in sizes}
        adapted = sum(sizes[name] * counts[name] for name in wanted if name in sizes)
        if lora.experts:
            adapted += self.moe_layers * self.experts * (2 * h + 3 * self.expert_inner)  # gate and up are one
        return lora.rank * adapted


def of_tiny(tiny: TinyModel) -> Architecture:
    """The architecture of a recipe's `model.tiny`."""
    return Architecture(
        kind=tiny.kind, hidden=tiny.hidden, layers=tiny.layers, heads=4, kv_heads=2,
        head_dim=tiny.head_dim or tiny.hidden // 4, inner=2 * tiny.hidden,
        vocabulary=TINY_VOCABULARY[tiny.tokenizer], tied=True,
        **{} if tiny.kind == "qwen3" else {
            "experts": tiny.experts, "top_k": tiny.top_k, "expert_inner": tiny.expert_width or tiny.hidden
        },
    )  # fmt: skip


def of_config(config: Any) -> Architecture:
    """The architecture of a transformers configuration of one of `KINDS`."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    moe: dict[str, int] = {}
    if config.model_type == "qwen3_moe":
        every, dense = config.decoder_sparse_step or 1, config.mlp_only_layers or []
        moe = {
            "experts": config.num_experts, "top_k": config.num_experts_per_tok,
            "expert_inner": config.moe_intermediate_size,
            "dense_layers": sum(i in dense or (i + 1) % every != 0 for i in range(layers)),
        }  # fmt: skip
    return Architecture(
        kind=config.model_type, hidden=config.hidden_size, layers=layers, heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads, inner=config.intermediate_size,
        vocabulary=config.vocab_size, tied=bool(config.tie_word_embeddings), **moe,
    )  # fmt: skip


VOCABULARY = 151_936


def _dense(hidden: int, layers: int, heads: int, inner: int, tied: bool) -> Architecture:
    return Architecture("qwen3", hidden, layers, heads, 8, 128, inner, VOCABULARY, tied)


PUBLISHED = {
    "Qwen/Qwen3-0.6B": _dense(1024, 28, 16, 3072, True),
    "Qwen/Qwen3-1.7B": _dense(2048, 28, 16, 6144, True),
    "Qwen/Qwen3-4B": _dense(2560, 36, 32, 9728, True),
    "Qwen/Qwen3-8B": _dense(4096, 36, 32, 12288, False),
    "Qwen/Qwen3-30B-A3B": Architecture("qwen3_moe", 2048, 48, 32, 4, 128, 6144, VOCABULARY, False, 128, 8, 768),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Architecture("llama", 576, 30, 9, 3, 64, 1536, 49_152, True),
}


def architecture_of(model: ModelConfig, config: dict[str, Any] | None = None) -> tuple[Architecture, str]:
    """The architecture, and where it was read: the `config` of the model, else the built-in table, else a folder or the
    hub.

    Errors: GspoError for a model whose configuration cannot be read, or of a kind that the planner cannot count.
    """
    if model.tiny is not None:
        return of_tiny(model.tiny), "the recipe's model.tiny"
    assert model.path is not None
    if config is None and model.path.removesuffix("-Base") in PUBLISHED:
        return PUBLISHED[model.path.removesuffix("-Base")], "the built-in table of published numbers"
    try:
        if config is None:
            from transformers import AutoConfig  # loads torch

            if not Path(model.path).is_dir():
                prepare_hub()
            config = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False).to_dict()
        kind = config["model_type"]
        found = of_config(SimpleNamespace(**config)) if kind in KINDS else None
    except Exception as error:  # a configuration holds any value, and transformers raises almost anything over it
        raise GspoError(
            f"cannot read the configuration of {model.path}",
            (str(error).strip().splitlines() or [type(error).__name__])[0],
            f"give a model folder with --model; without network the planner knows {', '.join(PUBLISHED)}",
        ) from error
    if found is None:
        raise GspoError(
            f"the planner cannot count a model of type {kind!r}",
            f"it knows {', '.join(KINDS)}",
            "train without --dry-run: the trainer takes more kinds than the planner",
        )
    return found, f"the configuration of {model.path}"
