"""How much longer a tokenizer can make a text, from its tokenizer.json and without running it."""

import base64
import math
import re
import warnings
from re import _parser  # type: ignore[attr-defined]
from typing import Any

UNICODE = dict.fromkeys(("NFD", "NFC"), 4.0) | dict.fromkeys(("NFKD", "NFKC"), 18.0)
STEPS = UNICODE | {"BertNormalizer": 12.0, "ByteLevel": 4.0, "Lowercase": 2.0, "Metaspace": 2.0}
"""Most characters for one. A word gets a sign before it, and a word may be one character; U+FDFA is 18 letters."""
LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def most_growth(part: Any) -> float:
    """An upper bound of the characters, or tokens, for each that goes in. Errors: those of another form of JSON."""
    if part is None:
        return 1.0
    match part["type"]:
        case "Sequence":
            return math.prod(most_growth(step) for name in LISTS for step in part.get(name, ()))
        case "Replace":
            return _replaced(part["pattern"], len(part["content"]))
        case "Prepend":
            return 1.0 + len(part["prepend"])
        case "Precompiled":
            table = base64.b64decode(part["precompiled_charsmap"])
            texts = table[4 + int.from_bytes(table[:4], "little") :]
            return max(1.0, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))
        case "TemplateProcessing":
            tokens = part["special_tokens"]
            ids = {name: len(token["ids"]) for name, token in tokens.items()}
            pieces = (piece.get("SpecialToken") for piece in part["single"])
            return float(sum(ids.get(piece["id"], 1) if piece else 1 for piece in pieces)) or 1.0
        case other:
            return STEPS.get(other, 1.0)


def _replaced(pattern: dict[str, str], size: int) -> float:
    """The growth by the text of this size in place of the pattern. One that can match nothing matches everywhere."""
    if "String" in pattern:
        return max(1.0, size / len(pattern["String"])) if pattern["String"] else 1.0 + size
    return max(1.0, float(size)) if _matches_something(pattern["Regex"]) else 1.0 + size


def _matches_something(regex: str) -> bool:
    """Whether every match surely has a character. In the tokenizers' dialect, `{1}?` makes a character optional."""
    try:
        plain = re.sub(r"\\[pP]\{\^?\w+\}", ".", regex)
        with warnings.catch_warnings(action="ignore"):
            return "}?" not in regex and bool(_parser.parse(plain).getwidth()[0])
    except (re.error, OverflowError, RecursionError):
        return False
