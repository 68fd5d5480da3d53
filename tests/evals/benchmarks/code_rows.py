"""Small problems in the schemas of LiveCodeBench and CodeForces, and a model that answers what a test wants."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from program import write_rows

Row = dict[str, Any]


def lcb_row(number: int, **changes: Any) -> Row:
    """Problem `p<number>`: print the input plus that number."""
    cases = [{"input": f"{n}\n", "output": f"{n + number}\n", "testtype": "stdin"} for n in (1, 20)]
    return {
        "question_title": f"Plus {number}", "question_content": f"Add {number}.", "platform": "atcoder",
        "question_id": f"p{number}", "contest_id": "c", "contest_date": "2024-11-02T10:00:00", "starter_code": "",
        "difficulty": "easy", "public_test_cases": json.dumps(cases[:1]), "private_test_cases": json.dumps(cases[1:]),
        "metadata": "{}",
    } | changes  # fmt: skip


def cf_row(index: str, **changes: Any) -> Row:
    """Problem `7<index>`: any even number above the input."""
    tests = [{"input": "3\n", "output": "4"}, {"input": "8\n", "output": "10"}]
    return {
        "id": f"7{index}", "contest_id": 7, "index": index, "title": "Even", "description": "Print an even number.",
        "input_format": "A number.", "output_format": "A larger even number.", "note": None, "examples": tests[:1],
        "official_tests": tests, "official_tests_complete": True, "rating": 1200, "time_limit": 2.0,
        "input_mode": "stdio", "interaction_format": None, "generated_checker": CHECKER,
    } | changes  # fmt: skip


CHECKER = """
import sys
given, expected, output = (open(path).read().split() for path in sys.argv[1:])
print(1 if len(output) == 1 and int(output[0]) % 2 == 0 and int(output[0]) > int(given[0]) else 0)
"""


def write(path: Path, *rows: Row) -> Path:
    return write_rows(path, rows)


def replies(programs: Mapping[str, list[str]]) -> Callable[[str, int], str]:
    """These programs as answers, sample by sample."""
    return lambda problem, sample: f"```python\n{programs[problem][sample]}\n```"
