"""The graders for mathematical answers of any kind (MATH) and for plain numbers (GSM8K).

Reading decides what it can: equal texts, plain numbers, numerals with a base. Only the rest goes to computer algebra,
and of that only the chosen answer, never the response around it.
"""

from __future__ import annotations

import re
from math import gcd

from gspo_cli.rewards.math.algebra import VERIFIER, refused
from gspo_cli.rewards.math.equation import after_about, before_about, contradicts, is_about, is_unsolved
from gspo_cli.rewards.math.extract import Extracted, extract
from gspo_cli.rewards.math.guard import unlike, unreadable
from gspo_cli.rewards.math.normalize import (
    MAX_LENGTH,
    in_base,
    in_words,
    number,
    right_side,
    same_number,
    same_text,
    side_by_side,
    unwrap,
)
from gspo_cli.rewards.math.rewrite import as_points, as_unions, condition, is_ratio, rewrite
from gspo_cli.rewards.math.typography import tidy
from gspo_cli.rewards.math.units import differ, open_wrappers, without_noun
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict

_HIDDEN = re.compile(r"\\[hv]?phantom(?![A-Za-z])")
_ELLIPSIS = re.compile(r"\\[lcdv]?dots[a-z]?(?![A-Za-z])|\.\.\.|…")
_CHOICE = re.compile(r"\\(?:pm|mp)(?![A-Za-z])|[±∓]")
_NAME = re.compile(r"(?:\\?[A-Za-z]+|[\s'(){},_]|\\[{}]|(?<=_)[0-9]|(?<=_\{)[0-9])+")
_SET = re.compile(r"\\\{.*\\\}", re.DOTALL)
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?\s*(?:([ap])\s*\.?\s*m\.?)?")
_TO = re.compile(r"(?<=[0-9}])\s*\\text\s*\{\s*to\s*\}\s*(?=[0-9\\])")
_HOUR = re.compile(r"([01]?[0-9]|2[0-4])\s*:\s*([0-5][0-9])")
_CLOSED_AT_INFINITY = re.compile(r"\[\s*-\s*\\infty|\\infty\s*\]")
_ONE_POINT = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]")


def grade_number(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the number `gold`, exactly."""
    expected = number(gold)
    if expected is None:
        return Verdict(GRADER_ERROR, False, "bad gold")
    answer = extract(response)
    if answer.text is None:
        return Verdict("no_answer", False, answer.by)
    value = number(answer.text)
    if value is None:
        return Verdict("no_answer", False, "no number", answer.text[:MAX_LENGTH], answer.by if answer.text else None)
    return _decided(same_number(expected, value), "number", answer)


def grade_math(response: str, gold: str) -> Verdict:
    """Whether the response's answer means the same as `gold`.

    An answer that computer algebra could not digest (`refused`) is wrong unless it is written as the gold answer is. A
    comparison that runs out of time or memory, or whose process dies, says nothing about the answer: `grader_error`.
    """
    if not gold.strip():
        return Verdict(GRADER_ERROR, False, "bad gold")
    answer = extract(response)
    if not answer.text:
        return Verdict("no_answer", False, "none" if answer.text == "" else answer.by)
    text = answer.text
    if len(text) <= MAX_LENGTH and is_about(tidy(text)) and not is_about(tidy(gold)):
        if contradicts(tidy(text)):
            return _decided(False, "contradiction", answer)
        wanted, shown = number(gold), number(after_about(tidy(text)))
        if wanted and shown and same_number(wanted, shown):  # `\\sqrt{51} \\approx 7.14` where 7.14 is asked for
            return _decided(True, "number", answer)
        text = before_about(tidy(text))
    text, gold = (each if len(each) > MAX_LENGTH or "{" not in each else condition(tidy(each)) for each in (text, gold))
    if ":" in gold and not _HOUR.fullmatch(gold):
        text = _TO.sub(":", text)
    decision = _decide_by_reading(text, gold)
    if decision is not None:
        return _decided(*decision, answer)
    short, tidied = _short(gold), tidy(text)
    said = tidied if "=" in gold else right_side(tidied)  # `\vec{v} = ..` is only a name
    if refused(tidy(gold)) or refused(tidied) or unreadable(short) or unreadable(said) or unlike(short, said):
        return _decided(False, "refused", answer)
    points = as_points(short, tidied)
    if points is None:
        return _decided(False, "names", answer)
    (left, units, words), (right, other_units, other_words) = map(open_wrappers, as_unions(*points))
    if differ(units, other_units):
        return _decided(False, "unit", answer)
    if left.count(":") != right.count(":") and (is_ratio(left) or is_ratio(right)):
        return _decided(False, "ratio", answer)
    left, right = rewrite(left), rewrite(right)
    if words != other_words:  # computer algebra would drop them
        return _decided(False, "words", answer)
    outcome = VERIFIER.compare(left, right)
    if outcome not in ("same", "different"):
        return Verdict(GRADER_ERROR, False, outcome, answer.text[:MAX_LENGTH], answer.by)
    return _decided(outcome == "same", "algebra", answer)


def _decide_by_reading(text: str, gold: str) -> tuple[bool, str] | None:
    """(whether right, the reason), or None if reading does not decide."""
    if same_text(gold, text):
        return True, "text"
    if len(text) > MAX_LENGTH or len(gold) > MAX_LENGTH:
        return False, "refused"
    if "=" not in gold and same_text(gold, right_side(tidy(text))):
        return True, "text"
    gold_base, text_base = in_base(gold), in_base(text)
    gold_number, text_number = number(gold) or number(_short(gold)) or in_words(gold), number(text) or in_words(text)
    both_equations = all(re.search(r"=|\\equiv(?![A-Za-z])|≡", side) for side in (gold, text))  # y = 5 is not x = 5
    if gold_base and text_base:
        return gold_base == text_base, "base"
    if gold_base and gold_base[1] != "10":  # computer algebra would read the digits alone
        plain = str(text_number.value) if text_number else unwrap(right_side(tidy(text))).upper()
        return gold_base[0] == plain, "base"
    if text_base and text_base[1] != "10":
        return False, "base"
    if gold_number and text_number and not both_equations:
        names = _NAME.fullmatch(tidy(gold).rpartition("=")[0]) if "=" in gold else True
        return bool(names and same_number(gold_number, text_number)), "number"
    if _HIDDEN.search(text) or side_by_side(text):
        return False, "hidden"
    if bool(_ELLIPSIS.search(gold)) != bool(_ELLIPSIS.search(text)):  # computer algebra would drop it
        return False, "ellipsis"
    for one, other in ((tidy(gold), tidy(text)), (tidy(text), tidy(gold))):
        # a set is neither a point nor an interval
        if (_SET.fullmatch(one) or _CHOICE.search(one)) and _is_point(other) and not _is_point(one):
            return False, "set"
    if contradicts(tidy(text)):
        return False, "contradiction"
    if "=" not in gold and is_unsolved(tidy(text)):
        return False, "equation"
    if (gold_time := _clock(gold)) and (time := _clock(text)) and (gold_time[2] or time[2]):
        return gold_time[:2] == time[:2] and gold_time[2] in ("", time[2]), "time"
    if (_is_hour(gold) or _is_hour(text)) and _clock(gold) != _clock(text):  # 12:30 is no ratio of 2 to 5
        return False, "time"
    if (gold_brackets := _brackets(gold)) and (brackets := _brackets(text)) and gold_brackets != brackets:
        return False, "brackets"
    if bool(_CLOSED_AT_INFINITY.search(tidy(gold))) != bool(_CLOSED_AT_INFINITY.search(tidy(text))):
        return False, "brackets"  # computer algebra would open them
    return None


def _short(gold: str) -> str:
    return without_noun(tidy(gold))


def _clock(text: str) -> tuple[int, int, str] | None:
    """Hour, minute and `a`, `p` or nothing of a time such as `2:05\\text{ p.m.}`."""
    match = _TIME.fullmatch(re.sub(r"[{}]|\\text", "", tidy(text)).strip().lower())
    return (int(match[1]), int(match[2] or 0), match[3] or "") if match and (match[2] or match[3]) else None


def _is_hour(text: str) -> bool:
    """Whether `h:mm` is a time rather than a ratio, which would have no leading zero and no common factor."""
    match = _HOUR.fullmatch(tidy(text).strip())
    return match is not None and (match[2][0] == "0" or gcd(int(match[1]), int(match[2])) > 1)


def _is_point(tidied: str) -> bool:
    """Whether a text is one point or interval, and no list of them."""
    depth = 0
    for index, char in enumerate(tidied):
        depth += (char in "([") - (char in ")]")
        if depth == 0:
            return index == len(tidied) - 1 and index > 0 and "," in tidied
    return False


def _brackets(text: str) -> tuple[str, str] | None:
    """The brackets of a text that is a point or an interval."""
    tidied = tidy(text)
    return (tidied[0], tidied[-1]) if _ONE_POINT.fullmatch(tidied) else None


def _decided(right: bool, reason: str, answer: Extracted) -> Verdict:
    shown = None if answer.text is None else answer.text[:MAX_LENGTH]
    return Verdict("correct" if right else "wrong", right, reason, shown, answer.by)
