"""The embedded benchmark: the held-out split of the built-in task, 200 sums; needs no download."""

from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.types import Sampling

ARITHMETIC = Benchmark(
    name="arithmetic",
    description="200 held-out sums of digits of the built-in task, exact integer after the last '='",
    task=Arithmetic,
    split="held_out",
    samples=4,
    sampling=Sampling(temperature=1.0, max_new_tokens=64),
)
