"""Somebody's own benchmark that goes wrong is named, before or instead of a score."""

from pathlib import Path

import pytest
from program import Gspo, check_refused

MODULE = """
from gspo_cli.evals.benchmark import Benchmark, Grade, ProblemSet
from gspo_cli.types import Problem, Sampling


class Grader:
    about = {"name": "own", "version": 1}

    def grade(self, answers):
        return GRADES

    def close(self):
        pass


OWN = Benchmark(
    name="NAME", description="", load=lambda choice: LOADED, grader=lambda problems, choice: Grader(), samples=1,
    sampling=Sampling(temperature=1.0, max_new_tokens=4), prompt_template="plain-1", prompt_text="{problem}",
)
OTHER = OWN
"""
GOOD = {
    "NAME": "own",
    "LOADED": 'ProblemSet((Problem(id="1", prompt="1+1=", answer="2"),), {})',
    "GRADES": '[Grade("correct", "") for _ in answers]',
}


@pytest.mark.parametrize(
    ("changes", "names", "said"),
    [
        ({"NAME": "my/own"}, ["OWN"], "has the name 'my/own'"),
        ({"LOADED": "()"}, ["OWN"], "returned a tuple"),
        ({"GRADES": '[Grade("right", "") for _ in answers]'}, ["OWN"], "correct, wrong, no_answer, grader_error"),
        ({"GRADES": "[1.0 for _ in answers]"}, ["OWN"], "gave 1.0"),
        ({"GRADES": "[]"}, ["OWN"], "gave 0 grades"),
        ({}, ["OWN", "OTHER"], "two benchmarks have the name 'own'"),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gspo_forked: Gspo, tiny: Path, changes: dict[str, str],
    names: list[str], said: str,
) -> None:  # fmt: skip
    text = MODULE
    for word, value in (GOOD | changes).items():
        text = text.replace(word, value)
    (tmp_path / "own_bench.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    bench = ",".join(f"own_bench:{name}" for name in names)
    fast = ("--set", "model.threads=1", "--max-tokens", "4")
    check_refused(gspo_forked("eval", "benchmarks", tiny, "--bench", bench, "--out", tmp_path / "out", *fast), said)
