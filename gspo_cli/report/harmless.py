"""Text that a model wrote, made fit to be looked at: what would act on a terminal or page is shown, not done."""

from __future__ import annotations

import unicodedata

MOST = 4000
"""Characters of one text that are shown."""
PLAIN = ("\n", "\t")


def shown(text: str, most: int = MOST) -> str:
    """The text with control and direction characters as visible escapes, cut after `most` characters.

    Right-to-left letters stay as they are; what is escaped are the invisible characters that reorder other text, and
    lone surrogates, which no file can hold.
    """
    kept = "".join(map(_visible, text[:most]))
    left = len(text) - most
    return kept if left <= 0 else f"{kept}\n[{left:,} more characters]"


def _visible(character: str) -> str:
    if character in PLAIN or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
