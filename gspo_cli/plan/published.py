"""The published numbers of the Qwen3 models (arXiv 2505.09388, and the configurations on the hub).

Used where a configuration is not at hand, so that planning needs neither network nor download. A model and its base
share them.
"""

from __future__ import annotations

from gspo_cli.plan.architecture import Architecture

VOCABULARY = 151_936


def _dense(hidden: int, layers: int, heads: int, inner: int, tied: bool) -> Architecture:
    return Architecture("qwen3", hidden, layers, heads, 8, 128, inner, VOCABULARY, tied)


PUBLISHED = {
    "Qwen/Qwen3-0.6B": _dense(1024, 28, 16, 3072, True),
    "Qwen/Qwen3-1.7B": _dense(2048, 28, 16, 6144, True),
    "Qwen/Qwen3-4B": _dense(2560, 36, 32, 9728, True),
    "Qwen/Qwen3-8B": _dense(4096, 36, 32, 12288, False),
    "Qwen/Qwen3-30B-A3B": Architecture("qwen3_moe", 2048, 48, 32, 4, 128, 6144, VOCABULARY, False, 128, 8, 768),
}


def published(name: str | None) -> Architecture | None:
    """The architecture of a hub name that the table knows."""
    return None if name is None else PUBLISHED.get(name.removesuffix("-Base"))
