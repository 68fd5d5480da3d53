"""The words and operators of a shell script, and the ends of what stands within them; nothing is expanded here."""

import re

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")


def tokens(script: str, line: int = 1) -> list[tuple[str, str, int]]:
    """(kind, text, line) of raw words and operators. Comments and the bodies of here-documents are left out."""
    found: list[tuple[str, str, int]] = []
    at, size, here = 0, len(script), ""
    while at < size:
        sign = script[at]
        if sign == "\n":
            found.append(("op", ";", line))
            at, line = at + 1, line + 1
            if here:
                close = re.compile(rf"^\t*{re.escape(here)}[ \t]*$", re.MULTILINE).search(script, at)
                end = close.end() if close else size
                line += script.count("\n", at, end)
                at, here = end, ""
        elif sign in " \t\r":
            at += 1
        elif script.startswith("\\\n", at) or script.startswith("\\\r\n", at):
            at, line = script.index("\n", at) + 1, line + 1
        elif sign == "#":
            at = size if (end := script.find("\n", at)) < 0 else end
        elif operator_ := re.compile(r"&&|\|\||;;|[;&|()]|\d?[<>]&?\d?").match(script, at):
            if document := re.compile(r"<<-?\s*['\"\\]?(\w+)['\"]?").match(script, at):
                here, at = document[1], document.end()
                continue
            at = operator_.end()
            found.append(("op", operator_[0], line))
        else:
            end = word_end(script, at)
            found.append(("word", script[at:end], line))
            line += script.count("\n", at, end)
            at = end
    return found


def over_quote(script: str, at: int, quote: str) -> tuple[int, str] | None:
    """Behind the sign here and the quote that is then open, if the sign is in single quotes, escaped, or a quote."""
    sign = script[at]
    if quote == "'":
        return at + 1, "" if sign == "'" else quote
    if sign == "\\":
        return at + 2, quote
    if sign in "'\"" and quote in ("", sign):
        return at + 1, "" if quote else sign
    return None


def word_end(script: str, at: int) -> int:
    """The end of the raw word that begins here."""
    quote = ""
    start = at
    while at < len(script):
        if quoted := over_quote(script, at, quote):
            at, quote = quoted
            continue
        sign = script[at]
        if sign in "$`":
            at = expansion_end(script, at)
            continue
        if not quote and sign == "(" and script[at - 1] == "=" and ASSIGNMENT.fullmatch(script, start, at):
            return closing(script, at, "(", ")")
        if not quote and script.startswith("()", at) and at > start:
            return at + 2
        if not quote and sign in " \t\r\n;&|()<>":
            return at
        at += 1
    return min(at, len(script))


def expansion_end(script: str, at: int) -> int:
    """The end of the expansion that begins here."""
    if script[at] == "`":
        end = script.find("`", at + 1)
        return len(script) if end < 0 else end + 1
    follows = script[at + 1 : at + 2]
    if follows in ("{", "("):
        return closing(script, at + 1, follows, "})"["{(".index(follows)])
    name = NAME.match(script, at + 1)
    return name.end() if name else at + (2 if follows and follows in "@*#?!$-0123456789" else 1)


def closing(script: str, at: int, opens: str, closes: str) -> int:
    """Behind the bracket that closes the one here; quotes and comments in between do not count."""
    depth, quote, size = 0, "", len(script)
    while at < size:
        if quoted := over_quote(script, at, quote):
            at, quote = quoted
            continue
        sign = script[at]
        if not quote and sign == "#" and script[at - 1] in " \t\n" and opens == "(":
            at = size if (end := script.find("\n", at)) < 0 else end
            continue
        if not quote or opens == "{":
            depth += (sign == opens) - (sign == closes)
            if depth == 0:
                return at + 1
        at += 1
    return size
