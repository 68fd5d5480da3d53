"""GSM8K: 1319 grade-school word problems with a whole number as the answer (Cobbe et al., arXiv 2110.14168)."""

from functools import partial

from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.evals.checkers import number_grader
from gspo_cli.evals.hub import HubData
from gspo_cli.evals.math_problems import BOXED, load_math
from gspo_cli.types import Sampling

DATA = HubData("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", ("main/test-00000-of-00001.parquet",))

GSM8K = Benchmark(
    name="gsm8k",
    description="1319 grade-school word problems, answers are numbers",
    load=partial(load_math, "gsm8k", DATA, answer=str, order=list, fingerprint="557de0e973ab1772"),
    grader=number_grader,
    samples=1,
    sampling=Sampling(temperature=0.0, max_new_tokens=32768),
    prompt_template="boxed-1",
    prompt_text=BOXED,
    hub=DATA.repo,
)
