#!/usr/bin/env python3
"""How often do graders of mathematical answers err? This one, math-verify alone, and two evaluation harnesses.

    python results/programs/graders_compared.py DATA_FOLDER --peers HARNESS/bin/python --out OUT_FOLDER

DATA_FOLDER holds math500.jsonl and math_cases_dev.jsonl; `peer_graders.py` says what HARNESS needs. The cases: the
corpus of `tests/rewards/math/answers.jsonl`; the labelled responses; and gold answers of MATH-500, each in four forms
that are equal to it and three that are not. Writes `agreement.json` (counts) and `disagreements.csv` (each case that
not all graders judge alike, with the right verdict).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grading import rewritten

from gspo_cli.rewards.math.grade import grade_aime, grade_math

CORPUS = Path(__file__).parents[2] / "tests" / "rewards" / "math" / "answers.jsonl"
EQUAL_FORMS = 4
OURS = "gspo"
EQUAL_AFTER_ALL = {("0", r"-\left(0\right)"): "minus zero is zero"}
"""(gold, answer) of the unequal forms that mean the same nevertheless, with the reason."""


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cases(folder: Path, every: int) -> Iterator[dict[str, Any]]:
    """`source`, `gold`, `answer` or `response`, and `equal`; of MATH-500 each `every`-th gold answer."""
    for row in read(CORPUS):
        yield {"source": "corpus", **row}
    for row in read(folder / "math_cases_dev.jsonl"):
        if row["label"] == "firm":
            yield {"source": "responses", "equal": row["correct"], **row}
    golds = [row["answer"] for row in read(folder / "math500.jsonl")]
    for i, gold in list(enumerate(golds))[::every]:
        other = golds[(7 * i + 11) % len(golds)]
        for form in range(7):
            answer = rewritten(gold, other, form)
            equal = form < EQUAL_FORMS or (gold, answer) in EQUAL_AFTER_ALL
            yield {"source": "MATH-500", "gold": gold, "answer": answer, "equal": equal}


def ours(case: dict[str, Any]) -> bool:
    """Our verdict."""
    grade = grade_aime if case.get("kind") == "aime" else grade_math
    return grade(case.get("response") or f"The answer is $\\boxed{{{case['answer']}}}$.", case["gold"]).passed is True


def judged_by_peers(python: str, rows: list[dict[str, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Versions, and the other graders' verdicts."""
    script = Path(__file__).with_name("peer_graders.py")
    text = "".join(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run([python, str(script)], input=text, stdout=subprocess.PIPE, text=True, check=True)
    versions, *verdicts = map(json.loads, done.stdout.splitlines())
    return versions, verdicts


def count(rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each source and grader: right verdicts, false accepts and false rejects; an exception is a reject."""
    table = []
    for source in dict.fromkeys(row["source"] for row in rows):
        for name in verdicts[0]:
            found: Counter[str] = Counter()
            for row, verdict in zip(rows, verdicts, strict=True):
                if row["source"] != source or verdict[name] is None:
                    continue
                found["equal" if row["equal"] else "unequal"] += 1
                found["raised"] += isinstance(verdict[name], str)
                found["false_accepts"] += verdict[name] is True and not row["equal"]
                found["false_rejects"] += verdict[name] is not True and row["equal"]
            if found:
                names = ("equal", "unequal", "false_accepts", "false_rejects", "raised")
                table.append({"source": source, "grader": name, **{key: found[key] for key in names}})
    return table


def write_disagreements(path: Path, rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> int:
    """Each case that not all graders judge alike; how many."""
    names, number = list(verdicts[0]), 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["source", "gold", "answer", "right", *names, "why"])
        seen = set()
        for row, verdict in zip(rows, verdicts, strict=True):
            shown = {name: v if v is None else v is True for name, v in verdict.items()}
            answer = row.get("answer", row.get("response"))
            if len({v for v in shown.values() if v is not None}) < 2 or (row["gold"], answer) in seen:
                continue
            seen.add((row["gold"], answer))
            number += 1
            marks = ["" if v is None else "accept" if v else "reject" for v in shown.values()]
            why = row.get("why") or row.get("note") or EQUAL_AFTER_ALL.get((row["gold"], answer), "")
            texts = [text if text[:1] not in "=+-@" else f"'{text}" for text in (row["gold"], answer)]
            writer.writerow([row["source"], *texts, "accept" if row["equal"] else "reject", *marks, why])
    return number


def main() -> None:
    """Judges all cases and writes both files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    rows = list(cases(args.folder, args.every))
    versions, others = judged_by_peers(args.peers, rows)
    verdicts = [{OURS: ours(row), **other} for row, other in zip(rows, others, strict=True)]
    args.out.mkdir(parents=True, exist_ok=True)
    number = write_disagreements(args.out / "disagreements.csv", rows, verdicts)
    table = count(rows, verdicts)
    result = {"versions": versions, "cases": len(rows), "disagreements": number, "table": table}
    (args.out / "agreement.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in table:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
