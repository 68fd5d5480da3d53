"""What the pages say of the package is so, and every link leads somewhere."""

import json
import re
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.algorithms.overview import table
from gspo_cli.evals.benchmarks import BENCHMARKS
from gspo_cli.report.claims.claims import CLAIMS, TOKEN_FORM
from gspo_cli.runlog.schema import METRICS, TABLES, page

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
PUBLISHED = sorted((ROOT / "results").rglob("*.md"))
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", *PUBLISHED]


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(path: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    found = []
    for link in LINK.findall(prose(path)):
        name, _, anchor = link.partition("#")
        target = path if not name else (path.parent / name).resolve()
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(path: Path) -> None:
    assert dead(path) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    other = tmp_path / "b.md"
    other.write_text("# One `word`, two\n```\n# none\n```\n")
    here = tmp_path / "a.md"
    here.write_text(
        "[1](b.md) [2](b.md#one-word-two) [3](b.md#none) [4](c.md) ![5](d.png) [6](https://a.b/c) [7](#up)\n"
    )
    assert dead(here) == ["b.md#none", "c.md", "d.png", "#up"]


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = re.findall(r"^- \[(\S+)\]\((\S+)\): \S", index.read_text(encoding="utf-8"), flags=re.M)
    assert all(text == target for text, target in listed)
    assert sorted(target for _, target in listed) == sorted(p.name for p in DOCS if p != index)


def test_the_glossary_is_the_schema() -> None:
    assert {name.split("/")[0] for name in METRICS} <= set(TABLES["titles"])
    how = "python -c 'from gspo_cli.runlog.schema import page; print(page(), end=\"\")' > docs/metrics.md"
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page(), f"write it anew: {how}"


def test_the_table_of_the_algorithms_is_theirs() -> None:
    how = "python -c 'from gspo_cli.algorithms.overview import table; print(table(), end=\"\")'"
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    first, _, second = page.partition("## What they share")
    assert table() in second, f"write the table of `What they share` in docs/algorithms.md anew: {how}"
    by_hand = "write the row of each algorithm in the first table of docs/algorithms.md by hand"
    assert {*re.findall(r"^\| `(\w+)` \|", first, flags=re.M)} == {*ALGORITHMS}, by_hand
    relatives = f" and {len(ALGORITHMS) - 2} relatives "
    assert relatives in (ROOT / "README.md").read_text(encoding="utf-8"), f"README.md, first paragraph:{relatives}"


def test_the_page_of_evaluations_names_every_benchmark() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    missing = [name for name in BENCHMARKS if f"`{name}`" not in page]
    assert not missing, f"docs/evaluation.md, table of the benchmarks: add {missing}"


def test_every_claim_has_its_commands_and_the_published_verdict() -> None:
    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\S+)` \| .+ \| .+ \| (.+) \|$", text, flags=re.M))
    recipes = {claim.id: claim.recipe for claim in CLAIMS} | {TOKEN_FORM[0]: TOKEN_FORM[3]}
    assert set(table) == set(recipes)
    published = ROOT / "results" / "published" / "quickstart" / "claims.json"
    verdicts = {row["id"]: row["verdict"] for row in json.loads(published.read_text(encoding="utf-8"))["rows"]}
    for claim, said in table.items():
        words = [w for w in ("supported", "contradicted", "inconclusive") if said.lstrip("*").startswith(w)]
        assert words == ([] if verdicts[claim] == "not_tested" else [verdicts[claim]]), claim
