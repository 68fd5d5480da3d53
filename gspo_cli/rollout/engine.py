"""What samples responses: the protocol that every engine follows, and the check around each of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.types import Prompt, Sample, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SampleKey = tuple[str, int]
"""(problem id, index within the group)."""


@dataclass(frozen=True)
class EngineInfo:
    """What goes into `run.json`."""

    name: str
    versions: dict[str, str]
    dtype: str
    stop_ids: tuple[int, ...]
    vocabulary: int
    routes: bool = False
    """Whether its samples carry the experts it chose."""

    def as_dict(self) -> dict[str, Any]:
        """For `run.json`."""
        return asdict(self)


@dataclass(frozen=True)
class SyncReport:
    """What a synchronisation moved, and how far apart both sides' log-probabilities of the probe are afterwards."""

    version: int
    tensors: int
    absdiff_max: float
    absdiff_mean: float


class Engine(Protocol):
    """Samples responses from the weights it holds. Token ids travel; text does not."""

    info: EngineInfo
    weight_version: int
    """The rollout batches that its weights have been trained on."""

    def generate(self, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int]) -> list[Sample]:
        """One sample for every key of `seeds`, each drawn with its own seed, in any order."""

    def sync(self, weights: PreTrainedModel, version: int) -> SyncReport | None:
        """Takes over the trainer's weights as they are now; None where they are its own anyway.

        Errors: GspoError (exit code 5) when the engine then computes something else than the trainer.
        """

    def rest(self) -> None:
        """Gives the accelerator's memory to the trainer until the next `sync`."""

    def close(self) -> None:
        """Frees what it holds."""


def generate_checked(
    engine: Engine, prompts: list[Prompt], sampling: Sampling, seeds: dict[SampleKey, int], version: int
) -> dict[SampleKey, Sample]:
    """The samples by key, all of them and sound, or an error: training never sees a partial group.

    Errors: GspoError (exit code 5) on stale weights, a missing, extra or repeated sample, or one that cannot be right.
    (A lost engine, by death or by silence, is the engine's own error.)
    """
    if engine.weight_version != version:
        raise _broken(f"the engine holds the weights of step {engine.weight_version}, not {version}")
    samples = engine.generate(prompts, sampling, seeds)
    keys = Counter((s.problem_id, s.index) for s in samples)
    if keys != Counter(seeds.keys()):
        missing, extra = Counter(seeds.keys()) - keys, keys - Counter(seeds.keys())
        raise _broken(f"{sum(missing.values())} samples missing, {sum(extra.values())} too many of {len(seeds)}")
    for sample in samples:
        if fault := _fault(sample, sampling, engine.info.vocabulary):
            raise _broken(f"sample {sample.index} of {sample.problem_id!r}: {fault}")
        if sample.weight_version != version:
            raise _broken(
                f"sample {sample.index} of {sample.problem_id!r} was drawn with the weights of step "
                f"{sample.weight_version}, not {version}"
            )
    return {(s.problem_id, s.index): s for s in samples}


def _fault(sample: Sample, sampling: Sampling, vocabulary: int) -> str | None:
    if not 1 <= len(sample.token_ids) <= sampling.max_new_tokens:
        return f"{len(sample.token_ids)} tokens where 1 to {sampling.max_new_tokens} are allowed"
    if len(sample.log_probs) != len(sample.token_ids):
        return "not one log-probability a token"
    if not all(isfinite(lp) and lp <= 1e-4 for lp in sample.log_probs):
        return "a log-probability is not finite or is positive"
    if not all(0 <= t < vocabulary for t in sample.token_ids):
        return "a token id outside the vocabulary"
    if sample.finish == "abort":
        return "it was aborted"
    return None


def _broken(why: str) -> GspoError:
    return GspoError(
        "the engine's answer was rejected", why, "no update was made from it; report this", ExitCode.ENGINE
    )
