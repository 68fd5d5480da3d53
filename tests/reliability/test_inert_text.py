"""Text of models and users does nothing: not on a terminal, not in a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from program import Gspo
from rich.table import Table

import gspo_cli
from gspo_cli.cli.inert import InertConsole, inert
from gspo_cli.report.save import csv_bytes

CLI = Path(gspo_cli.__file__).parent / "cli"
ESCAPES = {
    "colour": "\x1b[31mred", "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\a", "one byte": "\x9b31m",
    "backspaces": "rm\b\bls", "back to the start": "fine\rrm -rf", "bell": "\a", "delete": "\x7f", "null": "a\0b",
    "read backwards": "\u202etxt.exe", "isolated": "\u2066a\u2069", "other line": "a\u2028b", "half": "\ud800",
}  # fmt: skip
PLAIN = ("two\nlines\tand a tab", "caf\u00e9 \u65e5\u672c \U0001f600", "[red]bold[/] [/]", ":smile: \\x1b")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("text", ESCAPES.values(), ids=ESCAPES)
def test_what_acts_is_shown_as_its_number(text: str) -> None:
    shown = inert(text)
    assert shown != text and all(c.isprintable() for c in shown) and inert(shown) == shown
    assert shown.encode().decode("unicode_escape") == text  # so nothing of it is lost


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_reads_is_left_alone(text: str) -> None:
    assert inert(text) == text


@pytest.mark.parametrize("text", [*ESCAPES.values(), *PLAIN[2:]], ids=[*ESCAPES, "markup", "emoji"])
def test_on_a_terminal_it_is_text_in_lines_tables_and_titles(text: str) -> None:
    console = InertConsole(file=io.StringIO(), force_terminal=True, width=200, color_system="truecolor")
    table = Table(text, title=text)
    table.add_row(text)
    for shown in (text, table):
        console.print(shown)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    plain = STYLE.sub("", written)
    assert plain.count(inert(text)) == 4
    assert not set(plain) - {"\n"} & {chr(n) for n in (*range(32), *range(127, 160))}


def test_no_command_prints_past_the_console() -> None:
    for path in sorted(CLI.glob("*.py")):
        tree = ast.parse(path.read_text())
        names = {n.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for n in node.names}
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if path.name != "inert.py":
            assert not names & {"Console", "Text"}, path.name  # a Text would not pass the console's own strings
        assert not called & {"print", "typer.echo", "typer.secho", "rich.print"}, path.name


def test_a_failing_rewards_text_reaches_the_terminal_as_text(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "[red]x[/] :smile: \x1b[31m \x1b]0;owned\x07 \u202e \r"
    (tmp_path / "hostile.py").write_text(f"def reward(problem, text):\n    raise ValueError({hostile!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = gspo_here("train", smoke, "--out", tmp_path, "--name", "x", "--set", "task.reward='hostile:reward'", "--set",
                     "eval.bench=[]", "--set", "rollout.samples=2")  # fmt: skip
    assert done.code == 5 and inert(hostile).strip() in done.err
    run = tmp_path / "x" / "gspo-s0"
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"start_model": hostile, "arm": hostile}))
    for command in (["ls", run.parent], ["show", run]):
        said = gspo_here("runs", *command)
        assert said.code == 0 and not set(said.out + done.err) & set("\x1b\x07\u202e\r")
    assert "[red]x[/] :smile:" in said.out


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_a_formula_in_a_csv_is_a_text(first: str) -> None:
    text = f'{first}HYPERLINK("x";"y")'
    table = pd.DataFrame({"arm": [text, "plain"], "any column": [text, None], "seed": [0, 1], "value": [-1.5, 2.0]})
    rows = list(csv.DictReader(io.StringIO(csv_bytes(table).decode(), newline="")))
    assert rows[0] == {"arm": f"'{text}", "any column": f"'{text}", "seed": "0", "value": "-1.5"}
    assert rows[1] == {"arm": "plain", "any column": "", "seed": "1", "value": "2"}
