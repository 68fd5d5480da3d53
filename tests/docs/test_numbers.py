"""Measured numbers in the documentation stand in the published results, rounded as a reader would."""

from __future__ import annotations

import bisect
import re
from functools import cache
from pathlib import Path

import pytest
from pages import PAGES, ROOT

RESULTS = ROOT / "results"
NUMBER = re.compile(r"(?<![\w.@/<>=-])\d+\.\d{2,}(?![\w.])")
"""At least two decimals: shorter ones would be found anywhere by chance."""
PAPER = re.compile(r"\d{4}\.\d{5}")
NOT_MEASURED = {
    "README.md": {"3.12": "Python", "3.13": "Python", "2.11": "torch", "5.17": "transformers"},
    "gpu.md": {"2.11": "torch", "5.17": "transformers"},
    "grading.md": {"1.414214": "the square root of 2, as an answer", "3.14159": "pi, as an answer"},
}
"""Page -> number -> what it is."""
UNPUBLISHED = {
    "moe.md": {"1.01": "a ratio of times", "0.93": "a ratio of times"},
    "stale-rollouts.md": {"0.087": "a study on the page", "0.075": "a study on the page"},
}
"""Measured by the command on the page, whose files were not published. Publish them rather than add to this list."""


@cache
def published() -> list[float]:
    """Every decimal number in the published files, ascending."""
    found: set[str] = set()
    for path in RESULTS.rglob("*"):
        if path.suffix in (".json", ".csv", ".md", ".jsonl", ".txt"):
            found.update(re.findall(r"\d+\.\d+", path.read_text(encoding="utf-8", errors="ignore")))
    return sorted({float(text) for text in found})


def is_published(text: str) -> bool:
    """Whether some published number rounds to this one."""
    half = 0.5000001 * 10.0 ** -len(text.split(".")[1])
    values, low = published(), float(text) - half
    index = bisect.bisect_left(values, low)
    return index < len(values) and values[index] <= float(text) + half


def numbers(text: str) -> list[str]:
    """The numbers of a page's prose and tables; not of code, and not of papers' addresses."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [found for found in NUMBER.findall(prose) if not PAPER.fullmatch(found)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_has_a_source(page: Path) -> None:
    known = NOT_MEASURED.get(page.name, {}) | UNPUBLISHED.get(page.name, {})
    lost = [text for text in numbers(page.read_text(encoding="utf-8")) if text not in known and not is_published(text)]
    assert not lost, f"{page.name}: {', '.join(lost)} are in no file under results/; measure them, or say what they are"


def test_a_number_without_a_source_is_found() -> None:
    assert numbers("0.805 and `1.234`, arXiv 2507.18071, version>=3.11\n```\n2.345\n```\n") == ["0.805"]
    assert is_published(f"{published()[100]:.4f}") and not is_published("987654.3210987")
