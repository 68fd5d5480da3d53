"""The benchmarks, one file each. To add one, write a module with a `Benchmark` and name it below."""

import re
from collections.abc import Iterable
from dataclasses import replace

from gspo_cli.config import Recipe
from gspo_cli.errors import GspoError, nearest
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.evals.benchmarks.codeforces import CODEFORCES
from gspo_cli.evals.benchmarks.embedded import ARITHMETIC, COMPARISONS, STORIES, SUMS
from gspo_cli.evals.benchmarks.held_out import NAME, held_out
from gspo_cli.evals.benchmarks.livecodebench import LIVECODEBENCH, MINICODE
from gspo_cli.evals.benchmarks.math import AIME24, AIME25, GSM8K, MATH500
from gspo_cli.plugins import is_plugin, load_plugin, plugin_source

BENCHMARKS: dict[str, Benchmark] = {  # written out: completion reads the names from this file
    "aime24": AIME24,
    "aime25": AIME25,
    "math500": MATH500,
    "gsm8k": GSM8K,
    "livecodebench": LIVECODEBENCH,
    "codeforces": CODEFORCES,
    "arithmetic": ARITHMETIC,
    "minicode": MINICODE,
    "sums": SUMS,
    "comparisons": COMPARISONS,
    "stories": STORIES,
}


def find_benchmark(name: str, recipe: Recipe | None = None) -> Benchmark:
    """The benchmark of that name, the rows that the recipe holds out (`held_out`), or the user's own as
    `module:attribute`.

    Errors: GspoError for an unknown name, with the nearest, and for an attribute that is not a new `Benchmark`.
    """
    if is_plugin(name):
        return _plugin(name)
    if name == NAME:
        return held_out(recipe)
    if name not in BENCHMARKS:
        raise GspoError(
            f"no benchmark {name!r}",
            f"the benchmarks are {', '.join(BENCHMARKS)}, {NAME} (of own data), or module:attribute for your own",
            nearest(name, [*BENCHMARKS, NAME], "`gspo eval list` describes them"),
        )
    return BENCHMARKS[name]


def find_benchmarks(names: Iterable[str], recipe: Recipe | None = None) -> list[Benchmark]:
    """Likewise. Errors: GspoError also for two of one name, whose scores could not be told apart."""
    found = [find_benchmark(name, recipe) for name in names]
    for number, benchmark in enumerate(found):
        if benchmark.name in (other.name for other in found[:number]):
            why = "their scores could not be told apart"
            raise GspoError(f"two benchmarks have the name {benchmark.name!r}", why, "leave one out or rename it")
    return found


def _plugin(name: str) -> Benchmark:
    """The user's benchmark; the source of its problems names its file."""
    benchmark, example = load_plugin(name, ()), "docs/extending.md has a complete example"
    if not isinstance(benchmark, Benchmark) or benchmark.name in BENCHMARKS:
        raise GspoError(
            f"{name!r} is not a usable benchmark",
            "it must be a gspo_cli.evals.benchmark.Benchmark with a name that no built-in benchmark has",
            example,
        )
    if not re.fullmatch(r"\w[\w.-]*", benchmark.name):
        why = "it becomes part of a metric's name and of a folder's"
        raise GspoError(f"{name!r} has the name {benchmark.name!r}", why, "use letters, digits, _, - and . alone")

    def load(choice: DataChoice) -> ProblemSet:
        problems = benchmark.load(choice)
        if not isinstance(problems, ProblemSet):
            got = type(problems).__name__
            raise GspoError(f"load() of {name!r} returned a {got}", "it must return a ProblemSet", example)
        return replace(problems, source={**problems.source, "plugin": name, **plugin_source(name)})

    return replace(benchmark, load=load)
