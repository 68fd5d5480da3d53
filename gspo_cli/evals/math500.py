"""MATH-500: 500 problems of the MATH test set (Hendrycks et al., arXiv 2103.03874; choice of arXiv 2305.20050)."""

from functools import partial

from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.evals.checkers import math_grader
from gspo_cli.evals.hub import HubData
from gspo_cli.evals.math_problems import BOXED, load_math
from gspo_cli.types import Sampling

DATA = HubData("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", ("test.jsonl",))

MATH500 = Benchmark(
    name="math500",
    description="500 problems of MATH, answers are expressions",
    load=partial(load_math, "math500", DATA, answer=str, order=sorted, fingerprint="4563c132723345af"),
    grader=math_grader,
    samples=1,
    sampling=Sampling(temperature=0.0, max_new_tokens=32768),
    prompt_template="boxed-1",
    prompt_text=BOXED,
    hub=DATA.repo,
)
