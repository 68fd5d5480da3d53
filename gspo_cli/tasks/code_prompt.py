"""How a programming problem is put to a model: our words, in the order that LiveCodeBench uses."""

from __future__ import annotations

TASK = (
    "Below is a programming problem. Write a Python program that solves it: it must follow the specification and pass "
    "all tests."
)
FUNCTIONAL = "Complete the following starter code, and give the whole solution in one fenced block of Python."
STDIN = (
    "The program reads its input from stdin and writes its answer to stdout. Give the whole program in one fenced "
    "block of Python; it must do its work when it is run, on any input and not only on the samples."
)
TEMPLATE = f"{TASK}\n\n{{question}}\n\n{FUNCTIONAL}|{STDIN}\n\n```python\n{{starter}}\n```\n"
"""What is hashed: both wordings and their order."""


def code_prompt(question: str, starter: str) -> str:
    """The prompt of a problem; `starter` is empty for programs that use stdin. The problem's text is left as it is."""
    request = FUNCTIONAL if starter else STDIN
    block = starter or "# the program"
    return f"{TASK}\n\n{question}\n\n{request}\n\n```python\n{block}\n```\n"
