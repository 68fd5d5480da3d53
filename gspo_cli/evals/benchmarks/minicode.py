"""minicode: twelve small programming problems in LiveCodeBench's schema, embedded; needs no download."""

from __future__ import annotations

import json
from importlib.resources import files

from gspo_cli.evals.benchmark import EMBEDDED, Benchmark, DataChoice, ProblemSet, refuse_data
from gspo_cli.evals.benchmarks.livecodebench import build_problem
from gspo_cli.evals.benchmarks.shared_code import CodeGrader, GradableProblems
from gspo_cli.tasks.code import TEMPLATE
from gspo_cli.types import Sampling


def load(choice: DataChoice) -> ProblemSet:
    """The embedded problems."""
    refuse_data("minicode", choice)
    text = files("gspo_cli.evals.benchmarks").joinpath("minicode.jsonl").read_text(encoding="utf-8")
    gradable = GradableProblems("minicode", map(json.loads, text.splitlines()), "question_id", build_problem)
    return ProblemSet(gradable.problems, EMBEDDED, gradable.tests, gradable.excluded)


MINICODE = Benchmark(
    name="minicode",
    description="12 small programming problems, 6 on stdin and 6 functions",
    load=load,
    grader=CodeGrader,
    samples=8,
    sampling=Sampling(temperature=0.6, top_p=0.95, max_new_tokens=2048),
    prompt_template="code-1",
    prompt_text=TEMPLATE,
    runs_programs=True,
)
