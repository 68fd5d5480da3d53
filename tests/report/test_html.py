"""`gspo report html`: one page that holds everything, needs nothing, and shows hostile text inert."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compare_studies import D1, change, configure, flat, put, write_study
from program import Gspo

from gspo_cli.report.figures.plots import PlotResult

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</div></div></body></html><h1>owned</h1>",
    "<img src=x onerror=\"document.title='owned'\">",
    "</textarea><style>body{display:none}</style>",
    "{{ 7 * 7 }} {% raw %}",
    "javascript:document.title='owned'",
    "\" onmouseover=\"document.title='owned'",
    "\x1b[31mred\x1b[0m\x07\x00",
    "x" * 100_000,
    "\u05e9\u05dc\u05d5\u05dd \u202eoverridden\u202c \u2067isolated",
    "\ud800 lone",
]


class Elements(HTMLParser):
    """Every start tag with its attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def store(study: Path, texts: list[str]) -> None:
    """A stored batch of every run, whose responses are these texts."""
    for run in study.glob("*-s*"):
        rows = [
            {"step": 1, "problem_id": f"p{i // 2}", "prompt": text, "answer": text[:50], "sample": i % 2, "text": text,
             "reward": None if i == 1 else 0.5, "finish": "length" if i == 0 else "stop", "reason": "wrong",
             "prompt_ids": [1], "token_ids": [1, 2]}
            for i, text in enumerate(texts)
        ]  # fmt: skip
        for row in rows:
            for key in ("prompt", "answer", "text"):
                row[key] = str(row[key]).encode("utf-8", "replace").decode()
        (run / "rollouts").mkdir()
        for step in (1, 10, 20):
            parts = pa.array([[("format", 0.25)]] * len(rows), pa.map_(pa.string(), pa.float64()))
            pq.write_table(
                pa.Table.from_pylist(rows).append_column("parts", parts), run / "rollouts" / f"step_{step:06d}.parquet"
            )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs of runs; their responses, a reason and the processor's name are hostile."""
    folder = write_study(tmp_path_factory.mktemp("page") / "demo", flat(D1))
    put(folder / "grpo-s5" / "invalidated.json", {"reason": "".join(HOSTILE[:3])})
    configure(folder, {"cpu": HOSTILE[2]}, file="run.json")
    order = [HOSTILE[0], HOSTILE[1], HOSTILE[8], HOSTILE[7], HOSTILE[9], HOSTILE[2], *HOSTILE[3:7]]
    store(folder, order)
    return folder


@pytest.fixture(scope="module")
def page(study: Path) -> str:
    """The page's text."""
    from gspo_cli.report.page.html import report_html
    from gspo_cli.report.runs.folders import find_study

    return report_html(find_study(str(study), study)).read_text(encoding="utf-8")


def test_the_page_holds_what_the_commands_say(study: Path, page: str, gspo_here: Gspo) -> None:
    text = "".join(Elements(page).texts)
    compared = json.loads(gspo_here("report", "compare", str(study), "--json").out)
    assert compared["sentence"] in text and compared["n"] == 5
    for row in compared["per_seed"]:
        assert f"{100 * row['difference']:+.2f}" in text
    for row in json.loads((study / "claims.json").read_text())["rows"]:
        assert row["claim"] in text
    assert page.count("<svg") == page.count("</svg>") >= 1
    assert "reward 0.5, format 0.25" in text
    assert all(run["run_id"] in text and run["log_sha256"] in text for run in compared["runs"])
    side = json.loads((study / "report.sources.json").read_text())
    assert len(side["runs"]) == 11 and side["excluded"][0]["run"] == "grpo-s5"


def test_hostile_text_is_text(page: str) -> None:
    found = Elements(page)
    names = {tag for tag, _ in found.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "link", "a", "form", "base", "textarea"}
    assert [tag for tag, _ in found.tags].count("h1") == 1
    assert not [(tag, key) for tag, attrs in found.tags for key in attrs if key.startswith("on")]
    assert [tag for tag, _ in found.tags].count("body") == 1
    text = "".join(found.texts)
    assert HOSTILE[0] in text and "owned" not in "".join(re.findall("<h1>.*?</h1>", page))
    assert "\x1b" not in page and "\\x1b[31mred" in text and "\u202e" not in page and "\\u202e" in text
    assert "[96,000 more characters]" in text
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page) and "https://" not in page
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'") and "script-src" not in policy


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of a page's time."""
    monkeypatch.setattr("gspo_cli.report.page.html.plot", lambda *_: PlotResult())


@pytest.mark.usefixtures("no_figures")
def test_a_refused_comparison_lists_its_reasons(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    change(study / "gspo-s1" / "run.json", {"data_sha256": "e" * 64})
    assert gspo_here("report", "html", str(study)).code == 0
    text = "".join(Elements((study / "report.html").read_text()).texts)
    assert "No comparison: 1 precondition fails." in text and "data_sha256" in text
    assert "p, paired t" not in text
