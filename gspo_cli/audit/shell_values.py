"""Values of a shell script's variables: their pieces, what is known after two branches, arithmetic and tests."""

import ast
import operator
import re

from gspo_cli.audit.findings import MARK, unresolved
from gspo_cli.audit.python import BINARY

Text = list[tuple[str, int]]
"""Pieces of a text with the line on which each stands."""
Environment = dict[str, list[Text]]
"""The variables; arrays are lists."""
MAX_DEPTH = 40


def split(value: Text) -> list[Text]:
    """A text split at white space."""
    items: list[Text] = [[]]
    for text, line in value:
        for number, part in enumerate(re.split(r"\s+", text)):
            if number and items[-1]:
                items.append([])
            if part:
                items[-1].append((part, line))
    return [item for item in items if item]


def text_of(value: Text) -> str:
    """The text of the pieces."""
    return "".join(text for text, _ in value)


def merged(one: Environment, other: Environment, line: int) -> Environment:
    """The variables after one of two branches: where they differ, words in one branch only have unknown values."""
    result = dict(one)
    for name in {*one, *other}:
        left, right = one.get(name), other.get(name)
        if left == right:
            continue
        words = [[text_of(word) for item in side or [] for word in split(item)] for side in (left, right)]
        options = [word for side in words for word in side if "=" in word or word.startswith("-")]
        if max(map(len, words)) <= 1 and not options:
            result[name] = [[(unresolved(f"${name}"), line)]]
            continue
        common = [word for word in words[0] if word in words[1]]
        doubtful = dict.fromkeys(word for side in words for word in side if word not in common)
        text = " ".join([*common, *(doubt(word, name) for word in doubtful if "=" in word or word[:1] == "-")])
        result[name] = [[(word, line)] for word in text.split(" ")]
    return result


def doubt(word: str, name: str) -> str:
    """A word that may or may not be there, with an unknown value."""
    mark = unresolved(f"${name}".replace(" ", ""))
    return f"{word.partition('=')[0]}={mark}" if "=" in word else f"{word} {mark}"


OPERATIONS = BINARY | {ast.Div: operator.floordiv}
"""Of whole numbers."""


def arithmetic(text: str, environment: Environment) -> str:
    """The value of `$((...))` over whole numbers."""

    def value(node: ast.AST, depth: int = 0) -> int:
        if depth > MAX_DEPTH:
            raise ValueError
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return value(ast.parse(text_of(environment[node.id][0]), mode="eval").body, depth + 1)
        if isinstance(node, ast.BinOp):
            result = OPERATIONS[type(node.op)](value(node.left, depth + 1), value(node.right, depth + 1))
            if abs(result) < 10**15:
                return int(result)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand, depth + 1)
        raise ValueError

    try:
        return str(value(ast.parse(text.strip()[:1000], mode="eval").body))
    except (ValueError, LookupError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return unresolved(f"$(({text.replace(MARK, '').strip()[:40]}))")


def truth(words: list[str], bare: bool) -> bool | None:
    """The truth of a simple test, if its words are known."""
    if len(words) > 2 and words[0] == "!":
        inner = truth(words[1:], bare)
        return None if inner is None else not inner
    if words and words[0] in ("-z", "-n") and len(words) <= 2:
        text = words[1] if len(words) == 2 else ""
        if MARK in text and not bare:
            return None
        return (not text or bare) == (words[0] == "-z")
    if len(words) != 3 or any(MARK in word or "*" in word for word in words):
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=")
    numeric = {"-eq": "eq", "-ne": "ne", "-gt": "gt", "-lt": "lt", "-ge": "ge", "-le": "le"}
    if sign in numeric and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        return bool(getattr(operator, numeric[sign])(int(left), int(right)))
    return None
