"""Escape control characters in untrusted text: what models and users write must not act on a terminal or a page."""

import unicodedata

MAX_CHARACTERS = 4000


def sanitize(text: str) -> str:
    """The text with control, format and direction characters as visible escapes such as `\\x1b` or `\\u202e`.

    Newlines, tabs and right-to-left letters stay. Escaped are what colours, moves the cursor, sets titles or fills the
    clipboard; the invisible characters that reorder other text; and lone surrogates, which no encoding can hold.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def excerpt(text: str, limit: int = MAX_CHARACTERS) -> str:
    """The sanitized text, cut after `limit` characters."""
    rest = len(text) - limit
    return sanitize(text[:limit]) + (f"\n[{rest:,} more characters]" if rest > 0 else "")


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
