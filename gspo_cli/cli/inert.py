"""Text of models and users on the terminal: shown, never obeyed."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

ACTING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline (colours, cursor, title, clipboard), those that turn the direction of reading,
and halves of characters, which no terminal's encoding has."""


def inert(text: str) -> str:
    """The text with what a terminal would act on as `\\x1b` or `\\u202e`."""
    return ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class InertConsole(Console):
    """A console that takes no text for markup or emoji, and passes no control character on; styles are our own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Every string passes here, in tables too."""
        return super().render_str(inert(text), **settings)
