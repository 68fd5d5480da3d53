#!/usr/bin/env python3
"""How fast are answers checked? 10,000 answers to real MATH problems, as written and rewritten, and 960 to AIME.

    python results/programs/grading.py DATA_FOLDER [--workers 2] [--answers 10000]

DATA_FOLDER holds math500.jsonl, math_train_slice.jsonl and aime24.jsonl. One JSON object a grader on standard output.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path

from gspo_cli.rewards.graders import AnswerRow, find_grader, grade_rows


def rewritten(gold: str, other: str, form: int) -> str:
    """The gold answer in one of seven forms: the first four are right, the others hardly ever."""
    return [
        gold,
        gold.replace("\\frac", "\\dfrac"),
        f"({gold})" if re.fullmatch(r"[^,=\\()\[\]]*", gold) else gold.replace(" ", "\\ "),
        gold if "," in gold or "=" in gold else f"x = {gold}",
        f"{gold} + 1" if "," not in gold else other,
        other,
        f"-\\left({gold}\\right)",
    ][form]


def answers(folder: Path, count: int) -> list[AnswerRow]:
    """`count` responses of about 3,000 characters that end in a box."""
    files = [folder / "math500.jsonl", folder / "math_train_slice.jsonl"]
    golds = [json.loads(line)["answer"] for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    golds = [gold for gold in golds if gold]
    working = "Then $x = \\frac{1}{2}$, so the next step follows. " * 60
    rows = []
    for i in range(count):
        gold, other = golds[i % len(golds)], golds[(7 * i + 11) % len(golds)]
        answer = rewritten(gold, other, i // len(golds) % 7)
        rows.append({"id": i, "response": f"{working}\nThe answer is $\\boxed{{{answer}}}$.", "gold": gold})
    return rows


def timed(name: str, rows: list[AnswerRow], workers: int) -> dict[str, object]:
    """Verdicts and rate of one grader."""
    start = time.perf_counter()
    found = list(grade_rows(find_grader(name), rows, workers))
    seconds = time.perf_counter() - start
    return {
        "grader": name,
        "answers": len(rows),
        "workers": workers,
        "seconds": round(seconds, 2),
        "answers_per_s": round(len(rows) / seconds),
        "verdicts": dict(Counter(verdict.verdict for verdict in found)),
        "by": dict(Counter(verdict.reason for verdict in found)),
    }


def main() -> None:
    """Measures both graders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--answers", type=int, default=10_000)
    args = parser.parse_args()
    lines = (args.folder / "aime24.jsonl").read_text(encoding="utf-8").splitlines()
    working = "Then $x = \\frac{1}{2}$, so the next step follows. " * 600
    aime = [
        {"id": i, "response": f"<think>{working}</think>\n\\boxed{{{i % 1000}}}", "gold": json.loads(line)["answer"]}
        for line in lines
        for i in range(32)
    ]
    for result in (timed("aime", aime, 1), timed("math", answers(args.folder, args.answers), args.workers)):
        print(json.dumps(result))


if __name__ == "__main__":
    main()
