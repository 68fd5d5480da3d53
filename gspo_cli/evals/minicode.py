"""Twelve small programming problems of our own in LiveCodeBench's schema; they need no download."""

from __future__ import annotations

import json
from importlib.resources import files

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.evals.code_grader import CodeGrader
from gspo_cli.evals.lcb_rows import problems_of
from gspo_cli.tasks.code_prompt import TEMPLATE
from gspo_cli.types import Sampling


def load(choice: DataChoice) -> ProblemSet:
    """The embedded problems."""
    if choice != DataChoice():
        raise GspoError("minicode takes no data", "its problems are embedded in the program", "leave out what names it")
    text = files("gspo_cli.evals").joinpath("data/minicode.jsonl").read_text(encoding="utf-8")
    problems, payload, excluded = problems_of([json.loads(line) for line in text.splitlines()])
    return ProblemSet(tuple(problems), {"source": "embedded", "revision": None, "files": {}}, payload, excluded)


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
