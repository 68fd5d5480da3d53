"""The process of `faulty_engine.py`: answers made up from prompt, seed and version, and faults on demand.

The pipes, deadlines, restarts and checks around it are the real ones. Standard library only, so that it starts at once.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from random import Random
from typing import Any

Samples = list[list[Any]]
Fault = Callable[[Samples, int], Samples]


class Backend:
    """The methods that a host calls, without a model."""

    def __init__(self, stop_ids: list[int], vocabulary: int, fault: str | None, call: int, every: bool) -> None:
        self.stop_ids, self.vocabulary = stop_ids, vocabulary
        self.fault, self.call, self.every = fault, call, every
        self.calls = self.version = 0
        self.facts = {"versions": {}, "dtype": "float32"}
        self.report: Callable[..., None] = lambda *_: None

    def generate(
        self, prompts: list[list[int]], requests: list[list[int]], sampling: dict[str, Any], deadline_s: float
    ) -> dict[str, Any]:
        """Uniform tokens until a stop token or the limit, with the log-probabilities that uniform tokens have."""
        del deadline_s  # kept by the parent, as with a real hang
        self.calls += 1
        samples = [
            self._sample(i, prompts[prompt], seed, sampling["max_tokens"]) for i, (prompt, seed) in enumerate(requests)
        ]
        for done in range(1, len(samples) + 1):
            self.report(
                done, len(samples), sum(len(tokens) for _, _, _, tokens, _ in samples[:done]), done / len(samples)
            )
        if self.fault and (self.calls == self.call or (self.every and self.calls > self.call)):
            fault: Fault = FAULTS[self.fault]
            samples = fault(samples, self.vocabulary)
        return {"samples": samples}

    def _sample(self, index: int, prompt: list[int], seed: int, limit: int) -> list[Any]:
        rng = Random(f"{prompt} {seed} {self.version}")
        tokens: list[int] = []
        while len(tokens) < limit and not (tokens and tokens[-1] in self.stop_ids):
            tokens.append(rng.randrange(self.vocabulary))
        finish = "stop" if tokens[-1] in self.stop_ids else "length"
        return [index, self.version, finish, tokens, [-math.log(self.vocabulary)] * len(tokens)]

    def load(self, version: int, **_: Any) -> dict[str, Any]:
        """There are no weights; only the version moves."""
        self.version = version
        return {}

    def rest(self) -> dict[str, Any]:
        """Nothing to give back."""
        return {}


def _hang(samples: Samples, _vocabulary: int) -> Samples:
    time.sleep(3600)
    return samples


def _die(samples: Samples, _vocabulary: int) -> Samples:
    os.kill(os.getpid(), signal.SIGKILL)
    return samples


def _first(samples: Samples, field: int, value: Any) -> Samples:
    """All samples, the first with one field changed."""
    return [[*samples[0][:field], value, *samples[0][field + 1 :]], *samples[1:]]


FAULTS: dict[str, Fault] = {
    "hang": _hang,
    "die": _die,
    "missing": lambda s, _: s[:-1],
    "extra": lambda s, _: [*s, s[0]],
    "reordered": lambda s, _: s[::-1],  # no fault: samples are matched by what they answer
    "stale": lambda s, _: _first(s, 1, s[0][1] - 1),
    "nan": lambda s, _: _first(s, 4, [math.nan] * len(s[0][3])),
    "vocabulary": lambda s, vocabulary: _first(s, 3, [vocabulary] * len(s[0][3])),
    "long": lambda s, _: _first(_first(s, 3, s[0][3] * 1000), 4, s[0][4] * 1000),
}
