"""AIME: 30 competition problems a year, answers are integers from 0 to 999; avg@32 is the GSPO paper's figure."""

from __future__ import annotations

from functools import partial

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark
from gspo_cli.evals.checkers import aime_grader
from gspo_cli.evals.hub import HubData
from gspo_cli.evals.math_problems import BOXED, load_math
from gspo_cli.types import Sampling

MAX_TOKENS = 32768
SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_new_tokens=MAX_TOKENS)

AIME24_DATA = HubData(
    "HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", ("data/train-00000-of-00001.parquet",)
)
AIME25_DATA = HubData(
    "yentinglin/aime_2025",
    "6f71d77b0b89b9dabe07ab466c51df33f514df7f",
    ("data/train-00000-of-00001-243207c6c994e1bd.parquet",),
)


def whole_number(answer: str) -> str:
    """A reference answer in base 10: `025` is 25, never octal.

    Errors: GspoError for anything but an integer from 0 to 999.
    """
    text = answer.strip()
    if not (text.isascii() and text.isdigit() and int(text) <= 999):
        raise GspoError(
            f"{answer!r} is no AIME answer",
            "the answers of this competition are integers from 0 to 999",
            "check the column of the answers",
        )
    return str(int(text))


def sorted_numbers(answers: list[str]) -> list[str]:
    """The order in which the fingerprint takes them."""
    return sorted(answers, key=int)


AIME24 = Benchmark(
    name="aime24",
    description="AIME 2024, 30 problems, integer answers",
    load=partial(
        load_math, "aime24", AIME24_DATA, answer=whole_number, order=sorted_numbers, fingerprint="699a2ffdf5b082d2"
    ),
    grader=aime_grader,
    samples=32,
    sampling=SAMPLING,
    prompt_template="boxed-1",
    prompt_text=BOXED,
    hub=AIME24_DATA.repo,
)

AIME25 = Benchmark(
    name="aime25",
    description="AIME 2025, 30 problems, integer answers",
    load=partial(
        load_math, "aime25", AIME25_DATA, answer=whole_number, order=sorted_numbers, fingerprint="8c1e420ea1eb4cc6"
    ),
    grader=aime_grader,
    samples=16,
    sampling=SAMPLING,
    prompt_template="boxed-1",
    prompt_text=BOXED,
    hub=AIME25_DATA.repo,
)
