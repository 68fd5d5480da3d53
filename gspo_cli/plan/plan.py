"""Plan one arm: the largest phase against the available memory, times, and the assumptions behind them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gspo_cli.config import Recipe, merge, nest
from gspo_cli.plan import memory, time
from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.time import ADAM, COPIES, HOST, LINKS, STORAGE, TO_HOST, decode_efficiency, training_efficiency
from gspo_cli.plan.workload import GIB, GPUS, MEAN_SHARE, PROMPT_TOKENS, Gpu, Workload

SMALLEST_STEP = 1e-5
"""Learning rate up to which bfloat16, whose numbers are 0.4 to 0.8 % apart, loses most of AdamW's steps.

Weights of size 0.02 moved 0.01 (at 1e-6), 0.12 (1e-5) and 0.80 (1e-4) times as far as in float32 over 200 steps.
"""

SMALLEST_PASS = 16_384
"""Tokens. Qwen3-30B-A3B on 8 GPUs: 1.3 s of arithmetic at 0.3 of the peak, and 0.7 to 0.9 s of exchange at 300 GB/s."""


@dataclass(frozen=True)
class Plan:
    """The memory and time that one arm needs."""

    workload: Workload
    memory: dict[str, memory.Parts]
    """Phase -> parts, bytes on each GPU."""
    phases: list[time.Phase]

    @property
    def peak(self) -> float:
        """Bytes of the largest phase."""
        return max(sum(parts.values()) for parts in self.memory.values())

    @property
    def available(self) -> float | None:
        """Bytes; None if the recipe names no machine."""
        return self.workload.gpu.memory_gib * GIB if self.workload.gpu else None

    @property
    def fits(self) -> bool:
        """Whether every phase has room; an unknown machine is assumed to have it."""
        return self.available is None or self.peak <= self.available

    def faults(self) -> list[str]:
        """A line for each phase that does not fit, with its largest part."""
        lines = []
        for phase, parts in self.memory.items():
            size = sum(parts.values())
            if self.available is not None and size > self.available:
                name = max(parts, key=lambda part: parts[part])
                lines.append(
                    f"{phase}: {size / GIB:.1f} GiB a GPU and {self.available / GIB:g} there; "
                    f"most of it {name}, {parts[name] / GIB:.1f}"
                )
        return lines

    def warnings(self) -> list[str]:
        """Settings that fit but are unwise."""
        recipe, lines = self.workload.recipe, []
        lr = recipe.algo.lr or recipe.train.lr
        if recipe.model.dtype == "bfloat16" and recipe.model.lora is None and lr <= SMALLEST_STEP:
            lines.append(f"bfloat16 parameters with lr = {lr:g}: most of every step is rounded away; use float32")
        gpu = self.workload.gpu
        if gpu and self.workload.computed == 4 and gpu.bf16_flops > gpu.fp32_flops:
            share = gpu.fp32_flops / gpu.bf16_flops
            lines.append(
                f"passes in float32: the tensor cores idle, and {share:.2g} of the GPU's speed is left; "
                "--set model.compute=bfloat16"
            )
        if self.workload.ranks > 1 and self.workload.micro_tokens < SMALLEST_PASS:
            lines.append(
                f"passes of {self.workload.micro_tokens} tokens: below {SMALLEST_PASS} the exchange of weights takes "
                "longer than the arithmetic; raise train.micro_batch_tokens"
            )
        return lines

    def assumptions(self) -> list[str]:
        """What the numbers rest on besides the recipe and the data sheet."""
        workload = self.workload
        lines = [
            f"prompts of {PROMPT_TOKENS} tokens, responses of {MEAN_SHARE:g} of the limit on average",
            "every response trained: groups without spread, which are skipped, would save time",
        ]
        if workload.gpu:
            lines += [
                f"host {HOST.text}",
                f"sampling {decode_efficiency(workload).text}",
                f"training and old policy {training_efficiency(workload).text}",
                f"optimizer {ADAM.text}",
                f"checkpoints {STORAGE.text}",
            ]
        if workload.ranks > 1:
            lines += [
                f"exchange {LINKS.text}",
                f"copies of a checkpoint {TO_HOST.text}",
                "one process a GPU under torchrun; weights, gradients and optimizer sharded over "
                + ("all of them" if workload.shards == workload.ranks else "those of a node, once a node"),
            ]
        if workload.gpu and workload.recipe.rollout.engine == "vllm":
            lines.append(f"weights to the engine {COPIES.text}")
        return lines


def make_plan(recipe: Recipe, model: Architecture) -> Plan:
    """The plan of one arm's recipe, with `[algo]` filled in."""
    workload = Workload(recipe, model)
    phases = {"training": memory.training(workload), "sampling": memory.rollout(workload)}
    return Plan(workload, phases, time.phases(workload))


def remedies(recipe: Recipe, model: Architecture) -> list[str]:
    """The `--set` assignments that each make it fit; of several values for one key only the mildest."""
    found: dict[str, str] = {}
    for key, value in candidates(recipe):
        changed = Recipe.model_validate(merge(recipe.model_dump(mode="json"), nest(key, value)))
        if key not in found and make_plan(changed, model).fits:
            found[key] = f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"
    return list(found.values())


def candidates(recipe: Recipe) -> Iterator[tuple[str, Any]]:
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
    larger = [name for name, gpu in GPUS.items() if gpu.memory_gib > Gpu.of(cluster.gpu).memory_gib]
    yield from (("cluster.gpu", name) for name in sorted(larger, key=lambda name: GPUS[name].memory_gib))
