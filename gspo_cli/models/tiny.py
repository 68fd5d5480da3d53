"""Tiny Qwen3 models and their tokenizers, built without a download and saved as ordinary Hugging Face folders."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from gspo_cli.config import TinyModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}


def characters() -> Tokenizer:
    """One token per character: printable ASCII, newline, `<pad>`, `<eos>`, `<unk>` (99 tokens)."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL.values(), *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def symbols_of_bytes() -> Tokenizer:
    """One token per byte, for any text: 256 byte symbols, `<pad>`, `<eos>`, `<unk>` (259 tokens)."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL.values(), *symbols])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS = {"characters": characters, "bytes": symbols_of_bytes}


def tiny_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """One of `TOKENIZERS` as transformers takes it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[kind](), clean_up_tokenization_spaces=False, **SPECIAL)


character_tokenizer, byte_tokenizer = partial(tiny_tokenizer, "characters"), partial(tiny_tokenizer, "bytes")


def build_tiny(tiny: TinyModel, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A randomly initialised model of `tiny`'s shape and its tokenizer; the same seed gives the same weights."""
    import torch  # these take seconds, and a plan does without
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer(tiny.tokenizer)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": tiny.hidden,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": tiny.head_dim or tiny.hidden // 4,
        "intermediate_size": 2 * tiny.hidden,
        "max_position_embeddings": 4096,
        # a small base lets a tiny model distinguish nearby positions
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if tiny.kind == "qwen3_moe":
        shape |= {
            "moe_intermediate_size": tiny.expert_width or tiny.hidden,
            "num_experts": tiny.experts,
            "num_experts_per_tok": tiny.top_k,
            "norm_topk_prob": True,
        }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(tiny.kind, **shape)), tokenizer
