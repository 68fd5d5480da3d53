"""Which program an answer holds: what stands between its last two lines with three backticks."""

from __future__ import annotations


def extract_program(response: str) -> tuple[str, str]:
    """(program, how it was found), from what follows the last `</think>`.

    Fewer than two such lines give the empty program, as does a thinking part that is never closed. An odd number of
    them (an answer that was cut off) picks the text between two blocks, as officially; that is named `odd_fences`.
    """
    visible = response.rsplit("</think>", 1)[-1]
    if "<think>" in visible:
        return "", "unclosed"
    lines = visible.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return "", "no_fences"
    program = "\n".join(lines[fences[-2] + 1 : fences[-1]])
    return program, "odd_fences" if len(fences) % 2 else "fences"
