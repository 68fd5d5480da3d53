"""What a benchmark is."""

from collections.abc import Callable
from dataclasses import dataclass

from gspo_cli.tasks.contract import Task
from gspo_cli.types import Sampling


@dataclass(frozen=True)
class Benchmark:
    """Problems with a checker and the settings at which the figure is usually given."""

    name: str
    description: str
    task: Callable[[], Task]
    split: str
    samples: int
    """Answers per problem: the k of avg@k."""
    sampling: Sampling
