"""One arm's plan: the largest phase against the memory there is, times, and what is assumed."""

from __future__ import annotations

from dataclasses import dataclass

from gspo_cli.config import Recipe
from gspo_cli.plan import memory, time
from gspo_cli.plan.architecture import Architecture
from gspo_cli.plan.efficiency import ADAM, COPIES, LINKS, decode_share, training_share
from gspo_cli.plan.hardware import GIB
from gspo_cli.plan.setup import MEAN_SHARE, PROMPT_TOKENS, Setup

SMALLEST_STEP = 1e-5
"""Learning rate up to which bfloat16, whose numbers are 0.4 to 0.8 % apart, loses most of what AdamW would move.

Weights of size 0.02 moved 0.01 (at 1e-6), 0.12 (1e-5) and 0.80 (1e-4) times as far as in float32 over 200 steps.
"""

SMALLEST_PASS = 16_384
"""Tokens. Qwen3-30B-A3B on 8 GPUs: 1.3 s of arithmetic at 0.3 of the peak, and 0.7 to 0.9 s of exchange at 300 GB/s."""


@dataclass(frozen=True)
class Plan:
    """What one arm needs."""

    setup: Setup
    memory: dict[str, memory.Parts]
    """Phase -> parts, bytes on each GPU."""
    phases: list[time.Phase]

    @property
    def peak(self) -> float:
        """Bytes of the largest phase."""
        return max(sum(parts.values()) for parts in self.memory.values())

    @property
    def available(self) -> float | None:
        """Bytes; None where the machine is not said."""
        return self.setup.gpu.memory_gib * GIB if self.setup.gpu else None

    @property
    def fits(self) -> bool:
        """Whether every phase has room; an unknown machine is taken to have it."""
        return self.available is None or self.peak <= self.available

    def faults(self) -> list[str]:
        """A line for each phase that does not fit, with the part that takes most."""
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
        """What fits and is unwise all the same."""
        recipe, found = self.setup.recipe, []
        lr = recipe.algo.lr or recipe.train.lr
        if recipe.model.dtype == "bfloat16" and recipe.model.lora is None and lr <= SMALLEST_STEP:
            found.append(f"bfloat16 parameters with lr = {lr:g}: most of every step is rounded away; use float32")
        if self.setup.ranks > 1 and self.setup.micro_tokens < SMALLEST_PASS:
            found.append(
                f"passes of {self.setup.micro_tokens} tokens: below {SMALLEST_PASS} the exchange of weights takes "
                "longer than the arithmetic; raise train.micro_batch_tokens"
            )
        return found

    def assumptions(self) -> list[str]:
        """What the numbers rest on besides the recipe and the data sheet."""
        lines = [
            f"prompts of {PROMPT_TOKENS} tokens, responses of {MEAN_SHARE:g} of the limit on average",
            "every response trained: groups without spread, which are skipped, would save time",
        ]
        if self.setup.gpu:
            lines += [
                f"sampling {decode_share(self.setup).text}",
                f"training and old policy {training_share(self.setup).text}",
                f"optimizer {ADAM.text}",
            ]
        if self.setup.ranks > 1:
            lines += [
                f"exchange {LINKS.text}",
                "one process a GPU under torchrun; weights, gradients and optimizer sharded over "
                + ("all of them" if self.setup.shards == self.setup.ranks else "those of a node, once a node"),
            ]
        if self.setup.gpu and self.setup.recipe.rollout.engine == "vllm":
            lines.append(f"weights to the engine {COPIES.text}")
        return lines


def make_plan(recipe: Recipe, model: Architecture) -> Plan:
    """The plan of one arm, `[algo]` filled in."""
    setup = Setup(recipe, model)
    return Plan(setup, {"training": memory.training(setup), "sampling": memory.rollout(setup)}, time.phases(setup))
