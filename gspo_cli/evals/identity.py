"""What stored answers must share with an evaluation that goes on from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from gspo_cli.evals.benchmark import Benchmark, ProblemSet
from gspo_cli.evals.settings import Settings
from gspo_cli.evals.subject import Subject


def generation_identity(
    benchmark: Benchmark, problems: ProblemSet, subject: Subject, settings: Settings, num_portions: int
) -> dict[str, Any]:
    """Everything on which the answers' tokens depend, as plain JSON values."""
    about = {
        "benchmark": benchmark.name,
        "problems": {
            "n": len(problems.problems),
            "ids_sha256": ids_sha256(problems),
            "prompts_sha256": _sha256(json.dumps([[p.id, p.prompt] for p in problems.problems])),
        },
        "prompt_template": prompt_template(benchmark),
        "samples": settings.samples,
        "sampling": asdict(settings.sampling),
        "seed": settings.seed,
        "portions": num_portions,
    }
    plain: dict[str, Any] = json.loads(json.dumps(about | subject.identity))
    return plain


def first_difference(stored: Any, wanted: Any, name: str = "") -> str | None:
    """`sampling.temperature: 0.6 stored, 1.0 wanted` for the first field that differs; None if all are equal."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(k for k in stored if k not in wanted)]:
            found = first_difference(stored.get(key), wanted.get(key), f"{name}.{key}".lstrip("."))
            if found:
                return found
        return None
    return None if stored == wanted else f"{name}: {_short(stored)} stored, {_short(wanted)} wanted"


def ids_sha256(problems: ProblemSet) -> str:
    """Of the sorted ids, newline-joined."""
    return _sha256("\n".join(sorted(p.id for p in problems.problems)))


def prompt_template(benchmark: Benchmark) -> dict[str, str]:
    """The wording around a problem."""
    return {"id": benchmark.prompt_template, "sha256": _sha256(benchmark.prompt_text)}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:40]}..."


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
