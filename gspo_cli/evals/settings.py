"""What is evaluated and how: the model, the sampling settings, and the identity that stored answers must match."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gspo_cli.config import EvalConfig, Recipe, TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, GraderChoice, ProblemSet, sha256
from gspo_cli.evals.benchmarks import find_benchmarks
from gspo_cli.evals.benchmarks.shared_code import check_sandbox
from gspo_cli.rollout.engine import Engine
from gspo_cli.rollout.prompts import PLAIN
from gspo_cli.types import Prompt, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Subject:
    """A model behind an engine; its weights must not change while it is evaluated."""

    engine: Engine
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """Path or hub name, as the user gave it."""
    prompting: TaskConfig = PLAIN
    """How prompts are written: the system prompt and the chat template's settings of the recipe, in training."""

    @property
    def commit(self) -> str | None:
        """The hub's commit; None for a local folder."""
        return getattr(self.model.config, "_commit_hash", None)

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and response together."""
        from gspo_cli.models.admission import position_limit  # loads torch, which the check of a recipe does without

        return position_limit(self.model.config) or sys.maxsize

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What two evaluations must share for their answers to come from the same model."""
        from gspo_cli.models.load import tokenizer_hash, weights_hash

        template = self.tokenizer.chat_template
        return {
            "model_sha256": weights_hash(self.model),
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
            "chat_template_sha256": template and sha256(str(template)),
            "device": self.model.device.type,
            "engine": asdict(self.engine.info),
        }


class Overrides(BaseModel):
    """The user's changes to a benchmark's settings; None = unchanged."""

    model_config = ConfigDict(frozen=True)

    samples: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    limit: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Evaluate the first problems only."""


def checked_overrides(**given: float | None) -> Overrides:
    """From the options of the command. Errors: GspoError for the first value that is out of range (nan always is)."""
    try:
        return Overrides.model_validate(given)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = str(wrong["loc"][0]).replace("max_new_tokens", "max_tokens").replace("_", "-")
        raise GspoError(
            f"--{name} {wrong['input']}", wrong["msg"].replace("Input", "it"), f"change --{name}"
        ) from error


@dataclass(frozen=True, slots=True)
class Settings:
    """How an evaluation samples."""

    samples: int
    sampling: Sampling
    seed: int
    limit: int | None


def resolve_settings(benchmark: Benchmark, overrides: Overrides, seed: int) -> Settings:
    """The benchmark's settings with the user's changes.

    `--temperature 0` without `--samples` asks for one answer per problem.
    Errors: GspoError for several samples at temperature 0, or a truncated distribution, which has no effect there.
    """
    sampling = replace(benchmark.sampling, **overrides.model_dump(exclude={"samples", "limit"}, exclude_none=True))
    greedy = sampling.temperature == 0
    samples = overrides.samples or (1 if greedy else benchmark.samples)
    if greedy and samples > 1:
        raise GspoError(
            f"{benchmark.name}: {samples} samples at temperature 0",
            "greedy decoding gives the same answer every time",
            "--samples 1, or a --temperature above 0",
        )
    if greedy:
        if given := [name for name in ("top_p", "top_k", "min_p") if getattr(overrides, name) is not None]:
            raise GspoError(
                f"{benchmark.name}: --{given[0].replace('_', '-')} at temperature 0",
                "greedy decoding takes the likeliest token, whatever the others are",
                "leave it out, or give a --temperature above 0",
            )
        sampling = replace(sampling, top_p=1.0, top_k=0, min_p=0.0)
    return Settings(samples, sampling, seed, overrides.limit)


def fit_context(settings: Settings, overrides: Overrides, prompts: list[Prompt], context: int) -> Settings:
    """The settings with the response limit lowered to what the longest prompt leaves of the model's context.

    Errors: GspoError when no response fits, or not the length that the user asked for.
    """
    longest = max(len(prompt.token_ids) for prompt in prompts)
    room = context - longest
    if room < 1 or (overrides.max_new_tokens or 0) > room:
        raise GspoError(
            f"no room for {overrides.max_new_tokens or 'a response of any'} tokens",
            f"the model reads {context} tokens, and the longest prompt has {longest}",
            f"--max-tokens {room} or less" if room >= 1 else "use a model with a longer context, or --limit",
        )
    limit = min(settings.sampling.max_new_tokens, room)
    return replace(settings, sampling=replace(settings.sampling, max_new_tokens=limit))


def first_difference(stored: Any, wanted: Any, name: str = "") -> str | None:
    """`sampling.temperature: 0.6 stored, 1.0 wanted` for the first field that differs; None if all are equal."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys([*wanted, *stored])
        inner = (first_difference(stored.get(key), wanted.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, inner), None)
    return None if stored == wanted else f"{name}: {_short(stored)} stored, {_short(wanted)} wanted"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:40]}..."


def check_benchmarks(recipe: Recipe) -> list[Benchmark]:
    """The benchmarks that a recipe names. Errors: GspoError for an unknown one, or settings that it does not take."""
    config = recipe.eval
    benchmarks = find_benchmarks(config.bench, recipe)
    if unknown := [name for name in config.data if name not in config.bench]:
        raise GspoError(f"eval.data names {unknown[0]!r}", f"eval.bench is {', '.join(config.bench)}", "correct it")
    for benchmark in benchmarks:
        resolve_settings(benchmark, overrides_of(config), seed=0)
    return benchmarks


BenchmarkSet = list[tuple[Benchmark, ProblemSet]]


def load_benchmarks(recipe: Recipe) -> BenchmarkSet:
    """The benchmarks that a recipe names, with their problems.

    Errors: GspoError as `check_benchmarks`, for data that cannot be loaded, and for programs without a sandbox.
    """
    benchmarks = check_benchmarks(recipe)
    check_sandbox(benchmarks, GraderChoice())
    paths = {name: (Path(path),) for name, path in recipe.eval.data.items()}
    return [(b, b.load(DataChoice(paths.get(b.name, ())))) for b in benchmarks]


def overrides_of(config: EvalConfig) -> Overrides:
    """What a recipe's `[eval]` changes in a benchmark's settings."""
    return Overrides(samples=config.samples, limit=config.limit, max_new_tokens=config.max_new_tokens)
