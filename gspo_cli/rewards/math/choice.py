r"""The letter of a choice, as in `\textbf{(C)}\ 12`, which is either the answer or the label of the answer."""

import re

from gspo_cli.rewards.math.normalize import MAX_LENGTH
from gspo_cli.rewards.math.typography import tidy
from gspo_cli.rewards.math.units import NOT_UNITS, WRAPPER

_LABEL = re.compile(
    rf"(?P<opens>(?:{WRAPPER}|[{{(\s])*)(?:(?:option|choice)\s+)?(?-i:(?P<letter>[A-H]))(?![A-Za-z])(?P<closes>[\s}})]*[.:]?[\s}})]*)(?P<value>.*)",
    re.IGNORECASE,
)
_BEHIND = re.compile(rf"(?P<value>.*\S)\s*{WRAPPER}\{{\s*\((?P<letter>[A-H])\)\s*\}}")
_ANOTHER = re.compile(r"\(\s*[A-H]\s*\)|\b[A-H]\s*\)")
_OPERATOR = re.compile(r"[+*/^=,;_!|')\]]|\\(?:cdot|times|div|cup|cap|in|ne|neq|le|ge|pm)(?![A-Za-z])|[<>]")
_NONE = re.compile(r"\\[A-Za-z]+|none of (?:these|the above)", re.IGNORECASE)


def chosen(gold: str, answer: str) -> tuple[str, str]:
    """What is to be compared: the letters if both sides have one and not both a value, otherwise the values."""
    (letter, value), (other, other_value) = _parts(gold), _parts(answer)
    if letter and other:
        return (value, other_value) if letter == other and value and other_value else (letter, other)
    return (letter and value) or gold, (other and other_value) or answer


def _parts(text: str) -> tuple[str, str]:
    """The letter and the value of a labelled choice; each is empty where there is none."""
    tidied = tidy(text) if len(text) <= MAX_LENGTH else ""
    if found := _BEHIND.fullmatch(tidied):
        return found["letter"], found["value"]
    found = _LABEL.fullmatch(tidied)
    if found is None:
        return "", ""
    opens, ends, value = found["opens"], found["closes"], found["value"].strip()
    if opens.count("{") == ends.count("}") + 1 and value.endswith("}"):  # `\text{(C) 12}`
        ends, value = ends + "}", value[:-1].strip()
    if opens.count("{") != ends.count("}") or opens.count("(") > ends.count(")"):
        return "", ""
    if not value:
        return found["letter"], ""
    marked = ")" in ends or ("\\" in opens and re.search("[.:]", ends)) or re.search(r"[.:]\s", ends)
    product = _OPERATOR.match(value) or (value[0] == "-" and "\\" not in opens)
    says = NOT_UNITS.intersection(re.findall("[a-z]+", _NONE.sub("", value).lower()))
    return ("", "") if not marked or product or says or _ANOTHER.search(value) else (found["letter"], value)
