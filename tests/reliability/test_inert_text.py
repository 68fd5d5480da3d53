"""Text of models and users does nothing: not on a terminal, not in a spreadsheet."""

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
from typer.testing import CliRunner

import gspo_cli
from gspo_cli.cli.console import SafeConsole
from gspo_cli.cli.main import app
from gspo_cli.report.figures.save import csv_bytes
from gspo_cli.sanitize import sanitize

SMOKE = Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"
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
    shown = sanitize(text)
    assert shown != text and all(c.isprintable() for c in shown) and sanitize(shown) == shown
    assert shown.encode().decode("unicode_escape") == text  # so nothing of it is lost


@pytest.mark.parametrize("text", PLAIN)
def test_what_only_reads_is_left_alone(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize("text", [*ESCAPES.values(), *PLAIN[2:]], ids=[*ESCAPES, "markup", "emoji"])
def test_on_a_terminal_it_is_text_in_lines_tables_and_titles(text: str) -> None:
    console = SafeConsole(file=io.StringIO(), force_terminal=True, width=200, color_system="truecolor")
    table = Table(text, title=text)
    table.add_row(text)
    for shown in (text, table):
        console.print(shown)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    plain = STYLE.sub("", written)
    assert plain.count(sanitize(text)) == 4
    assert not set(plain) - {"\n"} & {chr(n) for n in (*range(32), *range(127, 160))}


def test_no_command_prints_past_the_console() -> None:
    for path in sorted(CLI.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = {n.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for n in node.names}
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if path.name != "console.py":
            assert not names & {"Console", "Text"}, path.name  # a Text would not pass the console's own strings
        assert not called & {"print", "typer.echo", "typer.secho", "rich.print"}, path.name


def test_a_failing_rewards_text_reaches_the_terminal_as_text(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "[red]x[/] :smile: \x1b[31m \x1b]0;owned\x07 \u202e \r"
    (tmp_path / "hostile.py").write_text(
        f"def reward(problem, text):\n    if text not in ('', problem.answer): raise ValueError({hostile!r})\n"
        "    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    done = gspo_here("train", smoke, "--out", tmp_path, "--name", "x", "--set", "task.reward='hostile:reward'", "--set",
                     "eval.bench=[]", "--set", "rollout.samples=2")  # fmt: skip
    assert done.code == 5 and sanitize(hostile).strip() in done.err
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


HOSTILE = {
    "escapes": "\x1b[31mred \x1b]0;owned\x07 \x9b31m \r\b\0", "page": "<script>owned()</script></td></html>",
    "sheet": "=HYPERLINK(\"x\";\"y\")", "backwards": "\u202etxt.exe \u2066a\u2069", "half": "\ud800 lone",
    "markup": "[red]bold[/] :smile: {{ 7 * 7 }}",
}  # fmt: skip
TASK = """
from gspo_cli.types import Problem, Score
HOSTILE = {texts!r}

class Task:
    def problems(self, split):
        return [Problem(str(i), f"{{i}}+{{i}}=", text) for i, text in enumerate(HOSTILE)]

    def reward(self, problem, text):
        return Score(float(len(text) % 5) + int(problem.id) % 2, problem.answer)

def make(_config=None):
    return Task()
"""
ACTING = {chr(n) for n in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0xD800)}


@pytest.fixture(scope="module")
def live(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A study of two arms whose model answers with hostile texts, to problems whose gold answers and reasons are
    hostile; and what the commands about it print."""
    folder = tmp_path_factory.mktemp("live")
    texts = list(HOSTILE.values())
    (folder / "hostile_task.py").write_text(TASK.format(texts=texts))
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr("gspo_cli.rollout.collect.decode", lambda _, sample: texts[sum(sample.token_ids) % len(texts)])
        for command in (
            ["train", SMOKE, "--model", start, "--algo", "gspo,grpo", "--out", folder, "--name", "x",
             "--set", "task.name='hostile_task:make'", "--set", "rollout.prompts=6", "--set",
             "rollout.samples=4", "--set", "rollout.max_new_tokens=4", "--set", "eval.bench=[]"],
            ["runs", "ls", folder / "x"], ["runs", "show", folder / "x" / "gspo-s0"], ["report", "html", folder / "x"],
            ["runs", "export", folder / "x", "--to", "tensorboard"],
        ):  # fmt: skip
            result = CliRunner().invoke(app, [*map(str, command)])
            assert result.exit_code == 0, result.stdout + result.stderr
            said.append(STYLE.sub("", result.stdout + result.stderr))
    return folder / "x", said


@pytest.mark.slow
def test_a_live_runs_stored_responses_are_readable(live: tuple[Path, list[str]]) -> None:
    stored = pd.concat([pd.read_parquet(path) for path in sorted(live[0].rglob("step_*.parquet"))])
    readable = {text.replace("\ud800", "?") for text in HOSTILE.values()}
    for column in ("text", "answer", "reason"):
        assert set(stored[column]) == readable, column


@pytest.mark.slow
def test_a_live_runs_texts_act_nowhere(live: tuple[Path, list[str]]) -> None:
    study, said = live
    for text in said:
        assert not set(text) & ACTING
    page = (study / "report.html").read_text(encoding="utf-8")
    assert not set(page) & ACTING and "<script" not in page and "&lt;script&gt;owned()" in page
    assert page.count("</html>") == 1 and "\\u202e" in page and "\\x1b[31mred" in page and "{{ 7 * 7 }}" in page
    tables = list(study.rglob("*.csv"))
    assert tables
    for path in tables:
        for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")):
            assert not [cell for cell in row if re.match(r"[=@\t\r]|[+-](?![\d.]|inf|nan)", cell)], path
    events = [path.read_bytes() for path in study.rglob("events.out.tfevents*")]
    assert events and not [text for text in HOSTILE.values() if text.encode("utf-8", "replace") in b"".join(events)]
    for path in (*study.rglob("*.jsonl"), *study.rglob("*.json")):
        assert not set(path.read_text(encoding="utf-8")) & ACTING, path
