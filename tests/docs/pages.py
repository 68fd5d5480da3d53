"""The pages of the documentation: their code blocks, and why some of them are not run."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]

BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of text, from 1."""
    language: str
    text: str
    why_not: str | None
    """What the page's comment before it, `<!-- not run: REASON -->`, says; None = it is run."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start("text")) + 1, m["language"], m["text"], m["why"])
        for m in BLOCK.finditer(text)
        if m["language"] == language
    ]


def modules(page: Path) -> dict[str, str]:
    """The page's Python files: blocks that begin with `# NAME.py`, those of one name joined."""
    found: dict[str, str] = {}
    for block in blocks(page, "python"):
        if named := re.match(r"# (\S+\.py)\n", block.text):
            found[named[1]] = found.get(named[1], "") + block.text
    return found
