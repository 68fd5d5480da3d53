"""What would make a recipe fit: single changes, tried one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gspo_cli.config import Recipe, merge
from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.hardware import GPUS
from gspo_cli.plan.plan import make_plan


def remedies(recipe: Recipe, model: Architecture) -> list[str]:
    """The `--set` assignments that make it fit, each on its own; of several sizes of one key the mildest."""
    found: dict[str, str] = {}
    for key, value in changes(recipe):
        if key not in found and make_plan(changed(recipe, key, value), model).fits:
            found[key] = f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"
    return list(found.values())


def changes(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Keys with values to try, the mildest first."""
    cluster, rollout = recipe.cluster, recipe.rollout
    if recipe.train.divide == "machine":
        yield "train.divide", "all"
    if not recipe.train.recompute:
        yield "train.recompute", True
    tokens = recipe.train.micro_batch_tokens
    yield from (("train.micro_batch_tokens", tokens >> n) for n in range(1, 6) if tokens >> n > 0)
    yield from (("rollout.kv_budget_gb", rollout.kv_budget_gb / 2**n) for n in range(1, 5))
    yield from (
        ("rollout.max_new_tokens", rollout.max_new_tokens >> n) for n in range(1, 4) if rollout.max_new_tokens >> n
    )
    if cluster is None:
        return
    if rollout.engine == "vllm":
        sizes = [n for n in (2, 4, 8) if rollout.vllm.tensor_parallel < n <= cluster.gpus_per_node]
        yield from (("rollout.vllm.tensor_parallel", n) for n in sizes)
    yield from (("cluster.gpus_per_node", n) for n in (2, 4, 8) if n > cluster.gpus_per_node)
    yield from (("cluster.nodes", cluster.nodes * n) for n in (2, 4, 8))
    larger = [name for name, gpu in GPUS.items() if gpu.memory_gib > GPUS[cluster.gpu].memory_gib]
    yield from (("cluster.gpu", name) for name in sorted(larger, key=lambda name: GPUS[name].memory_gib))


def changed(recipe: Recipe, key: str, value: Any) -> Recipe:
    """The recipe with one key set; its other tables stay as they are."""
    table, last = key.rsplit(".", 1)
    nested: dict[str, Any] = {last: value}
    for part in reversed(table.split(".")):
        nested = {part: nested}
    return Recipe.model_validate(merge(recipe.model_dump(mode="json"), nested))
