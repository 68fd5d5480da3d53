"""The benchmarks, one file each.

To add one: write a module with a `Benchmark` and name it below.
"""

import difflib
from dataclasses import replace

from gspo_cli.errors import GspoError
from gspo_cli.evals.aime import AIME24, AIME25
from gspo_cli.evals.arithmetic import ARITHMETIC
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.evals.codeforces import CODEFORCES
from gspo_cli.evals.gsm8k import GSM8K
from gspo_cli.evals.livecodebench import LIVECODEBENCH
from gspo_cli.evals.math500 import MATH500
from gspo_cli.evals.minicode import MINICODE
from gspo_cli.plugins import is_plugin, load_plugin, plugin_source

BENCHMARKS: dict[str, Benchmark] = {
    "aime24": AIME24,
    "aime25": AIME25,
    "math500": MATH500,
    "gsm8k": GSM8K,
    "livecodebench": LIVECODEBENCH,
    "codeforces": CODEFORCES,
    "arithmetic": ARITHMETIC,
    "minicode": MINICODE,
}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name, or `module:attribute` of the user's own.

    Errors: GspoError for an unknown one, with the nearest; for one of the user's own that is no `Benchmark`.
    """
    if is_plugin(name):
        return _own(name)
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        raise GspoError(
            f"no benchmark {name!r}",
            f"the benchmarks are {', '.join(BENCHMARKS)}, or module:attribute for your own",
            f"did you mean {near[0]!r}?" if near else "`gspo eval list` describes them",
        )
    return BENCHMARKS[name]


def _own(name: str) -> Benchmark:
    """A benchmark of the user's own, whose problems name the file that it stands in."""
    found = load_plugin(name, ())
    if not isinstance(found, Benchmark) or found.name in BENCHMARKS:
        raise GspoError(
            f"{name!r} is no benchmark that can be taken",
            "it must be a gspo_cli.evals.benchmark.Benchmark with a name of its own",
            "see docs/extending.md for a complete example",
        )

    def load(choice: DataChoice) -> ProblemSet:
        problems = found.load(choice)
        return replace(problems, source={**problems.source, "plugin": name, **plugin_source(name)})

    return replace(found, load=load)
