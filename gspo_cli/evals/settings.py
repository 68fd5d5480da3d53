"""How a benchmark is sampled: as published, unless the user says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.types import Prompt, Sampling


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user changed; None = as the benchmark has it."""

    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_new_tokens: int | None = None
    limit: int | None = None
    """Evaluate the first problems only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an evaluation does."""

    samples: int
    sampling: Sampling
    seed: int
    limit: int | None


RANGES: dict[str, tuple[float, float, str]] = {
    "samples": (1, 1_000_000, "a whole number from 1"),
    "temperature": (0, 100, "a number from 0 (greedy) to 100"),
    "top_p": (1e-9, 1, "a number above 0, up to 1 (all tokens)"),
    "top_k": (0, 2**31, "a whole number; 0 keeps all tokens"),
    "min_p": (0, 1, "a number from 0 (all tokens) to 1"),
    "max_new_tokens": (1, 2**31, "a whole number from 1"),
    "limit": (1, 2**31, "a whole number from 1"),
}
OPTIONS = {name: "--" + name.replace("_", "-") for name in RANGES} | {"max_new_tokens": "--max-tokens"}


def settle(benchmark: Benchmark, given: Overrides, seed: int) -> Settings:
    """The benchmark's settings with the user's changes.

    `--temperature 0` without `--samples` asks for one answer a problem.
    Errors: GspoError for a value out of range, or several samples at temperature 0.
    """
    check_ranges(given)
    changes: dict[str, Any] = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p", "max_new_tokens")
        if (value := getattr(given, name)) is not None
    }
    sampling = replace(benchmark.sampling, **changes)
    greedy = sampling.temperature == 0
    samples = given.samples or (1 if greedy else benchmark.samples)
    if greedy and samples > 1:
        raise GspoError(
            f"{benchmark.name}: {samples} samples at temperature 0",
            "greedy decoding gives the same answer every time",
            "--samples 1, or a --temperature above 0",
        )
    if greedy:  # what cuts the distribution has no meaning then
        sampling = replace(sampling, top_p=1.0, top_k=0, min_p=0.0)
    return Settings(samples, sampling, seed, given.limit)


def check_ranges(given: Overrides) -> None:
    """Errors: GspoError for the first value that is not in its range (nan is in none)."""
    for name, (low, high, allowed) in RANGES.items():
        value = getattr(given, name)
        if value is not None and not low <= value <= high:
            raise GspoError(f"{OPTIONS[name]} {value}", f"it takes {allowed}", f"mend {OPTIONS[name]}")


def fit_context(settings: Settings, given: Overrides, prompts: list[Prompt], context: int) -> Settings:
    """The response's limit as the model's context leaves it after the longest prompt.

    Errors: GspoError when no response fits, or not the one that the user asked for.
    """
    longest = max(len(prompt.token_ids) for prompt in prompts)
    room = context - longest
    if room < 1 or (given.max_new_tokens or 0) > room:
        raise GspoError(
            f"no room for {given.max_new_tokens or 'a response of any'} tokens",
            f"the model reads {context} tokens, and the longest prompt has {longest}",
            f"--max-tokens {room} or less" if room >= 1 else "take a model with a longer context, or --limit",
        )
    limit = min(settings.sampling.max_new_tokens, room)
    return replace(settings, sampling=replace(settings.sampling, max_new_tokens=limit))
