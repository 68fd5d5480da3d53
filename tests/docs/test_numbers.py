"""Numbers of the pages that name their source stand there, rounded as a reader would.

A comment before a table or a paragraph names the file and what of it the block holds:

    <!-- numbers: FILE.csv: key COLUMN | key COLUMN | COLUMN COLUMN@ARM ... -->   for a table, one entry a column of it:
        `key` finds the row of the csv, `@ARM` takes the row of this arm instead; columns beyond the list are not read
    <!-- numbers: FILE.json: PATH PATH ... -->   the first numbers of the block, in this order

Blocks without a comment are not checked: that some file holds a number proves nothing about it.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, ROOT

RESULTS = ROOT / "results" / "published"
PAGES = [ROOT / "README.md", *DOCS, *sorted(RESULTS.glob("*/README.md"))]
TIED = re.compile(r"<!-- numbers: (?P<file>\S+): (?P<what>[^>]*?) -->\n\n(?P<block>.*?)(?=\n\n|\Z)", re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w])")


def is_rounded(text: str, value: float) -> bool:
    """Whether a printed number is this value, to its last digit."""
    return abs(float(text) - value) <= 0.5000001 * 10.0 ** -len(text.partition(".")[2])


def wrong(file: Path, what: str, block: str) -> list[str]:
    """What of the block is not what the file holds."""
    body = block.split("|\n", 2)[2] if block.startswith("|") else block
    if file.suffix == ".json":
        values = [at(json.loads(file.read_text(encoding="utf-8")), path) for path in what.split()]
        return unequal(NUMBER.findall(body), values, what)
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if not row.get("seed")]
    entries = [entry.split() for entry in what.split("|")]
    found = []
    for line in body.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        keys = [(entry[1], cell) for entry, cell in zip(entries, cells, strict=False) if entry[0] == "key"]
        mine = [row for row in rows if all(float(row[name]) == float(cell) for name, cell in keys)]
        for entry, cell in zip(entries, cells, strict=False):
            if entry[0] != "key":
                found += unequal(NUMBER.findall(cell), [in_row(mine, name) for name in entry], line)
    return found


def at(value: Any, path: str) -> float:
    """The number at a dotted path."""
    for part in path.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return float(value)


def in_row(rows: list[dict[str, str]], name: str) -> float:
    """The value of `COLUMN` in the only row, or of `COLUMN@ARM` in the arm's."""
    column, _, arm = name.partition("@")
    (row,) = [row for row in rows if not arm or row["arm"] == arm]
    return float(row[column])


def unequal(texts: list[str], values: list[float], where: str) -> list[str]:
    """The printed numbers that are not the values."""
    if len(texts) < len(values):
        return [f"{where}: {len(values)} numbers expected, {len(texts)} found"]
    pairs = zip(texts, values, strict=False)
    return [f"{where}: {text} is {value:.6g}" for text, value in pairs if not is_rounded(text, value)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_that_name_their_source_stand_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ties = list(TIED.finditer(text))
    assert len(ties) == text.count("<!-- numbers:"), "a comment is not of the form above, or no blank line follows it"
    assert not [fault for tie in ties for fault in wrong(ROOT / tie["file"], tie["what"], tie["block"])]


def test_a_number_of_another_row_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("m,arm,effect,low\n1,x,0.554,-2\n1,y,3,4\n2,x,1.25,-3\n")
    table = "| m | effect | y |\n|---|---|---|\n| 1 | +0.55 [-2.0, 9] | {} |\n"
    what = "key m | effect@x low@x | effect@y"
    assert wrong(tmp_path / "a.csv", what, table.format("3")) == []
    assert wrong(tmp_path / "a.csv", what, table.format("1.2"))  # a number of the file, of another row
    (tmp_path / "a.json").write_text('{"a": {"b": [0.031, 2]}}')
    assert wrong(tmp_path / "a.json", "a.b.0 a.b.1", "It is 0.03, and 2.") == []
    assert wrong(tmp_path / "a.json", "a.b.0 a.b.1", "It is 2, and 0.03.")
    assert wrong(tmp_path / "a.json", "a.b.0 a.b.1", "It is 0.03.")
