"""The figure of an evaluation, and everything that it depends on."""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from gspo_cli.evals import statistics
from gspo_cli.evals.answers import Answer
from gspo_cli.evals.benchmark import Benchmark, Grade, ProblemSet
from gspo_cli.evals.identity import ids_sha256, prompt_template
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.subject import Subject
from gspo_cli.runlog.provenance import PACKAGES, installed

GRADER_PACKAGES = ("math-verify", "sympy")
MAX_ERRORS = 0.01
"""Share of answers that the grader may fail on before the figure counts as incomplete."""


def score(answers: Sequence[Answer], grades: Sequence[Grade]) -> dict[str, Any]:
    """The figures: avg@k over gradable answers with its error, pass@k, and what the answers are like.

    An answer on which the grader failed is left out, a problem without gradable answers too; both are counted.
    """
    counts: dict[str, list[int]] = {a.problem_id: [0, 0, 0] for a in answers}
    for answer, grade in zip(answers, grades, strict=True):
        if grade.verdict != "grader_error":
            right = grade.verdict == "correct"
            for index, add in enumerate((right, 1, right and grade.extracted_by == "box")):
                counts[answer.problem_id][index] += add
    graded = {problem: c for problem, c in counts.items() if c[1]}
    shares = [right / num for right, num, _ in graded.values()]
    average = fmean(shares) if shares else None
    error = statistics.clustered_error(shares) if shares else None
    pairs = [(right, num) for right, num, _ in graded.values()]
    verdicts, reasons = Counter(g.verdict for g in grades), Counter(g.reason for g in grades)
    most = max((sum(1 for _ in group) for group in _by_problem(answers).values()), default=0)
    return {
        "average": average,
        "standard_error": error,
        "interval_95": statistics.interval(average, error, len(shares)) if average is not None else None,
        "detectable_difference": statistics.detectable(error),
        "pass_at_k": {
            str(k): value
            for k in statistics.powers_up_to(most)
            if pairs and (value := statistics.mean_pass_at_k(pairs, k)) is not None
        },
        "average_box_only": fmean(box / num for _, num, box in graded.values()) if shares else None,
        "num_problems": len(counts),
        "num_problems_graded": len(graded),
        "num_answers": len(answers),
        "verdicts": {name: verdicts[name] for name in ("correct", "wrong", "no_answer", "grader_error")},
        "reasons": dict(sorted(reasons.items())),
        "no_answer_frac": verdicts["no_answer"] / len(answers),
        "grader_errors": verdicts["grader_error"],
        "incomplete": not shares or verdicts["grader_error"] > MAX_ERRORS * len(answers),
        "mean_tokens": _mean([a.n_tokens for a in answers]),
        "truncated_frac": _mean([a.finish_reason and float(a.finish_reason == "length") for a in answers]),
        "verdicts_differ": _differ(grades),
    }


def summarise(
    benchmark: Benchmark,
    problems: ProblemSet,
    settings: Settings,
    subject: Subject | None,
    grader: dict[str, Any],
    answers: Sequence[Answer],
    grades: Sequence[Grade],
) -> dict[str, Any]:
    """The content of `summary.json` without its times; `subject` is None for answers sampled elsewhere."""
    info = subject.engine.info if subject else None
    accepted = asdict(settings.sampling) | {"n": 1, "seed": "one an answer, see answers.parquet"}
    return {
        "benchmark": benchmark.name,
        "metric": f"{benchmark.name}/avg@{settings.samples}",
        "samples": settings.samples,
        "temperature": settings.sampling.temperature if subject else None,
        **score(answers, grades),
        **_further(problems, answers, grades),
        **({"contest_of": dict(problems.contests)} if problems.contests else {}),
        "warnings": [*problems.warnings, *remarks(settings, answers)] if subject else list(problems.warnings),
        "data": {
            "release": None,
            "window": None,
            **problems.source,
            "n": len(problems.problems),
            "limit": settings.limit,
            "ids_sha256": ids_sha256(problems),
            "excluded": {reason: sorted(ids) for reason, ids in problems.excluded.items()},
        },
        "sampling": accepted if subject else None,
        "seed": settings.seed if subject else None,
        "engine": info.as_dict() if info else None,
        "dtype": info.dtype if info else None,
        "model": subject.name if subject else None,
        "model_commit": subject.commit if subject else None,
        "prompt_template": prompt_template(benchmark),
        **{name: value for name, value in (subject.identity if subject else {}).items() if name != "engine"},
        "grader": {
            "python": sys.version.split()[0], "numpy": installed("numpy"), "sandbox": None, "unsafe_local": False,
            "workers": None, "calibration_ms": None, **grader,
        },
        "packages": {
            name: version
            for name in ("gspo", *PACKAGES, *GRADER_PACKAGES)
            if (version := _own_version() if name == "gspo" else installed(name))
        },
    }  # fmt: skip


def _further(problems: ProblemSet, answers: Sequence[Answer], grades: Sequence[Grade]) -> dict[str, Any]:
    """What only some benchmarks have: the figure without flagged problems, and figures of their own."""
    pairs = [(a, g) for a, g in zip(answers, grades, strict=True) if g.verdict != "grader_error"]
    outcomes: dict[str, list[bool]] = {}
    for answer, grade in sorted(pairs, key=lambda pair: pair[0].sample):
        outcomes.setdefault(answer.problem_id, []).append(grade.verdict == "correct")
    clean = [fmean(right) for problem, right in outcomes.items() if problem not in problems.flagged]
    flagged = {i: why for i, why in problems.flagged.items() if i in outcomes}
    found = {"flagged": flagged, "average_without_flagged": fmean(clean) if clean else None} if flagged else {}
    return found | (problems.figures(outcomes) if problems.figures else {})


def remarks(settings: Settings, answers: Sequence[Answer]) -> list[str]:
    """What looks wrong with the answers."""
    found = []
    groups = _by_problem(answers).values()
    if settings.samples > 1 and all(len({a.text for a in group}) == 1 for group in groups):
        found.append("all samples of every problem are identical although the temperature is above 0")
    return found


def _by_problem(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.problem_id, []).append(answer)
    return groups


def _mean(values: Sequence[float | str | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


def _differ(grades: Sequence[Grade]) -> dict[str, int] | None:
    """How often two graders of one answer disagree on pass or fail, both ways; None with one grader."""
    pairs = [(g.details.get("verdict_official"), g.details.get("verdict_script")) for g in grades]
    both = [(a == "accepted", b == "accepted") for a, b in pairs if a is not None and b is not None]
    if not both:
        return None
    return {"official_only": sum(a and not b for a, b in both), "script_only": sum(b and not a for a, b in both)}


def _own_version() -> str:
    return importlib.metadata.version("gspo")
