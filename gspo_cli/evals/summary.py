"""The figures of an evaluation with their errors (avg@k, pass@k), and everything that they depend on."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from gspo_cli.evals.benchmark import VERDICTS, Benchmark, Grade, ProblemSet
from gspo_cli.evals.settings import Settings, Subject
from gspo_cli.evals.store import Answer
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.runlog.provenance import PACKAGES, installed
from gspo_cli.stats.problems import (
    clustered_error,
    detectable,
    interval,
    mean_pass_at_k,
    pass_at_k_interval,
    powers_up_to,
    t_interval,
)

GRADER_PACKAGES = ("math-verify", "sympy")
MAX_ERRORS = 0.01
"""Share of answers that the grader may fail on before the figure counts as incomplete."""


def score(answers: Sequence[Answer], grades: Sequence[Grade]) -> dict[str, Any]:
    """avg@k over gradable answers with its error, pass@k, and statistics of the answers. Of rewards that are not only 0
    and 1 it is the mean, with a t interval and without pass@k.

    An answer on which the grader failed is left out, and so is a problem without gradable answers; both are counted.
    """
    counts: dict[str, list[int]] = {a.problem_id: [0, 0, 0] for a in answers}  # right, gradable, right and boxed
    sums = dict.fromkeys(counts, 0.0)
    for answer, grade in zip(answers, grades, strict=True):
        if grade.verdict != "grader_error":
            right = grade.verdict == "correct"
            for index, add in enumerate((right, 1, right and grade.extracted_by == "box")):
                counts[answer.problem_id][index] += add
            sums[answer.problem_id] += right if grade.value is None else grade.value
    graded = [c for c in counts.values() if c[1]]
    pairs = [(num, right) for right, num, _ in graded]
    shares = [sums[problem] / num for problem, (_, num, _) in counts.items() if num]
    shared = all(grade.value in (None, 0.0, 1.0) for grade in grades)
    average = fmean(shares) if shares else None
    error = clustered_error(shares) if shares else None
    verdicts, reasons = Counter(g.verdict for g in grades), Counter(g.reason for g in grades)
    most_samples = max(Counter(a.problem_id for a in answers).values(), default=0)
    pass_at_k = {k: mean_pass_at_k(pairs, k) for k in powers_up_to(most_samples) if pairs and shared}
    known_k = [k for k, value in pass_at_k.items() if value is not None]
    return {
        "average": average,
        "standard_error": error,
        "interval_95": None if average is None else (interval if shared else t_interval)(average, error, len(shares)),
        "detectable_difference": detectable(error),
        "pass_at_k": {str(k): pass_at_k[k] for k in known_k},
        "pass_at_k_interval_95": {str(k): pass_at_k_interval(pairs, k) for k in known_k},
        "average_box_only": fmean(box / num for _, num, box in graded) if shares else None,
        "num_problems": len(counts),
        "num_problems_graded": len(graded),
        "num_answers": len(answers),
        "verdicts": {name: verdicts[name] for name in VERDICTS},
        "reasons": dict(sorted(reasons.items())),
        "no_answer_frac": verdicts["no_answer"] / len(answers),
        "grader_errors": verdicts["grader_error"],
        "incomplete": not shares or verdicts["grader_error"] > MAX_ERRORS * len(answers),
        "mean_tokens": _mean([a.n_tokens for a in answers]),
        "truncated_frac": _mean([a.finish_reason and float(a.finish_reason == "length") for a in answers]),
        "verdicts_differ": _disagreements(grades),
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
    """The content of `summary.json` without its times; `subject` is None for answers that were sampled elsewhere."""
    info = subject.engine.info if subject else None
    sampling = asdict(settings.sampling) | {"n": 1, "seed": "one an answer, see answers.parquet"}
    packages = {name: installed(name) for name in ("gspo", *PACKAGES, *GRADER_PACKAGES)}
    return {
        "benchmark": benchmark.name,
        "metric": f"{benchmark.name}/avg@{settings.samples}",
        "samples": settings.samples,
        "temperature": settings.sampling.temperature if subject else None,
        **score(answers, grades),
        **_benchmark_figures(problems, answers, grades),
        **({"contest_of": dict(problems.contests)} if problems.contests else {}),
        "warnings": [*problems.warnings, *(_warnings(settings, answers) if subject else [])],
        "data": data_facts(problems, settings),
        "sampling": sampling if subject else None,
        "seed": settings.seed if subject else None,
        "engine": asdict(info) if info else None,
        "dtype": info.dtype if info else None,
        "model": subject.name if subject else None,
        "model_commit": subject.commit if subject else None,
        "prompt_template": benchmark.template,
        **{name: value for name, value in (subject.identity if subject else {}).items() if name != "engine"},
        "grader": {
            "python": sys.version.split()[0], "numpy": installed("numpy"), "sandbox": None, "unsafe_local": False,
            "workers": None, "calibration_ms": None, **grader,
        },
        "packages": {name: version for name, version in packages.items() if version},
    }  # fmt: skip


def data_facts(problems: ProblemSet, settings: Settings) -> dict[str, Any]:
    """The problems that were used, and what their answers were graded against."""
    return {
        "release": None,
        "window": None,
        **problems.source,
        "n": len(problems.problems),
        "limit": settings.limit,
        "ids_sha256": problems.ids_sha256,
        "problems_sha256": problems_hash(problems.problems),
        "excluded": {reason: sorted(ids) for reason, ids in problems.excluded.items()},
    }


def _benchmark_figures(problems: ProblemSet, answers: Sequence[Answer], grades: Sequence[Grade]) -> dict[str, Any]:
    """What only some benchmarks have: the figure without flagged problems, and the benchmark's further figures."""
    pairs = [(a, g) for a, g in zip(answers, grades, strict=True) if g.verdict != "grader_error"]
    outcomes: dict[str, list[bool]] = {}
    for answer, grade in sorted(pairs, key=lambda pair: pair[0].sample):
        outcomes.setdefault(answer.problem_id, []).append(grade.verdict == "correct")
    clean = [fmean(right) for problem, right in outcomes.items() if problem not in problems.flagged]
    flagged = {i: fault for i, fault in problems.flagged.items() if i in outcomes}
    figures = {"flagged": flagged, "average_without_flagged": fmean(clean) if clean else None} if flagged else {}
    return figures | (problems.figures(outcomes) if problems.figures else {})


def _warnings(settings: Settings, answers: Sequence[Answer]) -> list[str]:
    """What looks wrong with the answers."""
    texts: dict[str, set[str]] = {}
    for answer in answers:
        texts.setdefault(answer.problem_id, set()).add(answer.text)
    if settings.samples > 1 and all(len(distinct) == 1 for distinct in texts.values()):
        return ["all samples of every problem are identical although the temperature is above 0"]
    return []


def _mean(values: Sequence[float | str | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return fmean(known) if known else None


def _disagreements(grades: Sequence[Grade]) -> dict[str, int] | None:
    """How often the two graders of programs disagree on pass or fail, both ways; None with one grader."""
    pairs = [(g.details.get("verdict_official"), g.details.get("verdict_script")) for g in grades]
    both = [(a == "accepted", b == "accepted") for a, b in pairs if a is not None and b is not None]
    if not both:
        return None
    return {"official_only": sum(a and not b for a, b in both), "script_only": sum(b and not a for a, b in both)}
