"""The benchmarks, one file each.

To add one: write a module with a `Benchmark` and name it below.
"""

import difflib

from gspo_cli.errors import GspoError
from gspo_cli.evals.aime import AIME24, AIME25
from gspo_cli.evals.arithmetic import ARITHMETIC
from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.evals.gsm8k import GSM8K
from gspo_cli.evals.math500 import MATH500

BENCHMARKS: dict[str, Benchmark] = {
    "aime24": AIME24,
    "aime25": AIME25,
    "math500": MATH500,
    "gsm8k": GSM8K,
    "arithmetic": ARITHMETIC,
}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name.

    Errors: GspoError for an unknown one, with the nearest.
    """
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        raise GspoError(
            f"no benchmark {name!r}",
            f"the benchmarks are {', '.join(BENCHMARKS)}",
            f"did you mean {near[0]!r}?" if near else "`gspo eval list` describes them",
        )
    return BENCHMARKS[name]
