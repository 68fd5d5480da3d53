"""The `gspo` commands in a piece of bash, word by word, as a reader would type them."""

import itertools
import re
import shlex
from collections.abc import Iterator

ENDS = re.compile(r"[;|&()<>]+")
LOOP = re.compile(r"^\s*for (\w+) in ([^;$*]+);\s*do", re.M)


def commands(text: str) -> Iterator[list[str]]:
    """The words after `gspo` of each call, also within `$(...)` and arrays. A loop over given words is unrolled; any
    other variable stands as `1`."""
    loops = {name: words.split() for name, words in LOOP.findall(text)}
    lines = text.replace("\\\n", " ").splitlines()
    for line in (line for line in lines if re.search(r"\bgspo ", line)):
        used = [name for name in loops if re.search(rf"\$\{{?{name}\b", line)]
        for words in itertools.product(*(loops[name] for name in used)):
            yield from _of_line(_filled(line, dict(zip(used, words, strict=True))))


def _filled(line: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda m: values.get(m[1], "1"), line)


def _of_line(line: str) -> Iterator[list[str]]:
    for inner in re.findall(r"\$\((gspo [^)]*)\)", line):
        yield from _of_line(inner)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()<>")
    lexer.whitespace_split = True
    words: list[str] | None = None
    for word in lexer:
        if ENDS.fullmatch(word):
            if words is not None:
                yield words
            words = None
        elif words is not None:
            words.append(word)
        elif word == "gspo":
            words = []
    if words is not None:
        yield words
