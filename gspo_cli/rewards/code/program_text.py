"""Which program an answer holds: what stands between its last two lines with three backticks."""

from __future__ import annotations


def extract_program(text: str) -> tuple[str, str]:
    """(program, how it was found), from the part of an answer after its thinking.

    Fewer than two such lines: the empty program. An odd number (an answer that was cut off) picks the text between two
    blocks, as officially; that is named `odd_fences`.
    """
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return "", "no_fences"
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]])
    return program, "odd_fences" if len(fences) % 2 else "fences"
