"""The graders for mathematical answers of any kind (MATH), plain numbers (GSM8K) and integers from 0 on (AIME).

Reading decides what it can: equal texts, plain numbers, numerals with a base. Only the rest goes to computer algebra,
and of that only the chosen answer, never the response around it.
"""

import re
from collections.abc import Callable
from math import gcd
from operator import eq
from typing import TypeVar

from gspo_cli.rewards.math.algebra import VERIFIER, refused
from gspo_cli.rewards.math.choice import chosen
from gspo_cli.rewards.math.equation import SIGN, approximation, contradicts, is_unsolved
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
from gspo_cli.rewards.math.rewrite import as_points, as_residues, as_unions, condition, is_ratio, rewrite, with_constant
from gspo_cli.rewards.math.typography import closes, tidy
from gspo_cli.rewards.math.units import differ, open_wrappers, without_noun
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict

_CHOICE = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_NAME = re.compile(r"(?:\\?[A-Za-z]+|[\s'(){},_]|\\[{}]|(?<=_)[0-9]|(?<=_\{)[0-9])+")
_SET = re.compile(r"\\\{.*\\\}", re.DOTALL)
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?\s*(?:([ap])\s*\.?\s*m\.?)?")
_TO = re.compile(r"(?<=[0-9}])\s*\\text\s*\{\s*to\s*\}\s*(?=[0-9\\])")
_HOUR = re.compile(r"([01]?[0-9]|2[0-4])\s*:\s*([0-5][0-9])")
_ONE_POINT = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]")

MAX_DIGITS = 12  # of an integer

T = TypeVar("T")


def grade_number(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the number `gold`, exactly."""
    return grade_value(response, gold, "number", number, same_number)


def grade_value(
    response: str, gold: str, what: str, read: Callable[[str], T | None], same: Callable[[T, T], bool]
) -> Verdict:
    """Whether the response's answer is `gold`, both read by `read`, which returns None for what is no `what`."""
    expected = read(gold)
    if expected is None:
        return Verdict(GRADER_ERROR, None, "bad gold")
    answer = extract(response)
    if answer.text is None:
        return Verdict("no_answer", False, answer.by)
    value = read(answer.text)
    if value is None:
        return Verdict("no_answer", False, f"no {what}", answer.text[:MAX_LENGTH], answer.by if answer.text else None)
    return _decided(same(expected, value), what, answer)


def grade_aime(response: str, gold: str) -> Verdict:
    """Whether the response's answer is the integer `gold`; both are read in base 10, leading zeros included.

    Arithmetic of that value (`\\frac{408}{2}`, `2\\cdot 102`) is that integer. Percent, approximations, two numbers, a
    range, a choice of sign and other bases are `no_answer`.
    """
    return grade_value(response, gold, "integer", integer, eq)


def integer(text: str) -> int | None:
    """The integer that a text denotes, apart from typography, units and `x =`."""
    found = number(text)
    if found is None or found.percent or found.value.denominator > 1 or re.search(rf"[0-9]{{{MAX_DIGITS + 1}}}", text):
        return None
    return int(found.value) if 0 <= found.value < 10**MAX_DIGITS else None


def grade_math(response: str, gold: str) -> Verdict:
    """Whether the response's answer means the same as `gold`.

    An answer that computer algebra could not digest (`refused`) is wrong unless it is written as the gold answer is. So
    is one whose comparison runs out of time or memory, or ends the process twice: no answer may choose not to be
    graded. It is a `grader_error` only if the gold answer cannot be compared with anything.
    """
    if gold.strip().lower() in ("", "nan"):  # NaN is how pandas writes a missing value
        return Verdict(GRADER_ERROR, None, "bad gold")
    answer = extract(response)
    if not answer.text:
        return Verdict("no_answer", False, "none" if answer.text == "" else answer.by)
    if max(len(answer.text), len(gold)) > MAX_LENGTH:
        same = same_text(gold, answer.text)
        return _decided(same, "text" if same else "refused", answer)
    gold, text = tidy(gold), tidy(answer.text)
    if (about := approximation(gold)) and not about[0]:
        gold = about[1]
    if (about := approximation(text)) and not approximation(gold):
        wanted, shown = number(gold), number(about[1])
        if contradicts(text):
            return _decided(False, "contradiction", answer)
        if "." in gold and wanted and shown and same_number(wanted, shown):  # asked for is a rounded value
            return _decided(True, "number", answer)
        text = about[0]
        if not text:
            return _decided(False, "approximation", answer)
    gold, text = as_residues(*chosen(condition(gold), condition(text)))
    if ":" in gold and not _HOUR.fullmatch(gold):
        text = _TO.sub(":", text)
    text = with_constant(gold, text)
    if decision := _decide_by_reading(text, gold):
        return _decided(*decision, answer)
    short = without_noun(gold)
    said = text if "=" in gold else right_side(text)  # `\vec{v} = ..` is only a name
    if refused(gold) or refused(text) or unreadable(short) or unreadable(said) or unlike(short, said):
        return _decided(False, "refused", answer)
    points = as_points(short, text)
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
    if outcome == "crash":  # perhaps the machine's fault
        outcome = VERIFIER.compare(left, right)
    if outcome in ("same", "different"):
        return _decided(outcome == "same", "algebra", answer)
    if VERIFIER.compare(left, "0") in ("same", "different"):
        return _decided(False, outcome, answer)
    return Verdict(GRADER_ERROR, None, outcome, answer.text[:MAX_LENGTH], answer.by)


def _decide_by_reading(text: str, gold: str) -> tuple[bool, str] | None:
    """(whether right, the reason), or None if reading does not decide."""
    if same_text(gold, text):
        return True, "text"
    if "=" not in gold and same_text(gold, right_side(text)):
        return True, "text"
    gold_base, text_base = in_base(gold), in_base(text)
    gold_number = number(gold) or number(without_noun(gold)) or in_words(gold)
    text_number = number(text) or in_words(text)
    both_equations = SIGN.search(gold) and SIGN.search(text)  # y = 5 is not x = 5
    if gold_base and text_base:
        return gold_base == text_base, "base"
    if gold_base and gold_base[1] != "10":  # computer algebra would read the digits alone
        plain = str(text_number.value) if text_number else unwrap(right_side(text)).upper()
        return gold_base[0] == plain, "base"
    if text_base and text_base[1] != "10":
        return False, "base"
    if gold_number and text_number and not both_equations:
        names = _NAME.fullmatch(gold.rpartition("=")[0]) if "=" in gold else True
        return bool(names and same_number(gold_number, text_number)), "number"
    if side_by_side(text):
        return False, "hidden"
    for one, other in ((gold, text), (text, gold)):
        # a set is neither a point nor an interval
        if (_SET.fullmatch(one) or _CHOICE.search(one)) and _is_point(other) and not _is_point(one):
            return False, "set"
    if contradicts(text):
        return False, "contradiction"
    if "=" not in gold and is_unsolved(text):
        return False, "equation"
    if (gold_time := _clock(gold)) and (time := _clock(text)) and (gold_time[2] or time[2]):
        return gold_time[:2] == time[:2] and gold_time[2] in ("", time[2]), "time"
    if (_is_hour(gold) or _is_hour(text)) and _clock(gold) != _clock(text):  # 12:30 is no ratio of 2 to 5
        return False, "time"
    if (gold_brackets := _brackets(gold)) and (brackets := _brackets(text)) and gold_brackets != brackets:
        return False, "brackets"
    return None


def _clock(text: str) -> tuple[int, int, str] | None:
    """Hour, minute and `a`, `p` or nothing of a time such as `2:05\\text{ p.m.}`."""
    match = _TIME.fullmatch(re.sub(r"[{}]|\\text", "", text).strip().lower())
    return (int(match[1]), int(match[2] or 0), match[3] or "") if match and (match[2] or match[3]) else None


def _is_hour(text: str) -> bool:
    """Whether `h:mm` is a time rather than a ratio, which would have no leading zero and no common factor."""
    match = _HOUR.fullmatch(text.strip())
    return match is not None and (match[2][0] == "0" or gcd(int(match[1]), int(match[2])) > 1)


def _is_point(tidied: str) -> bool:
    """Whether a text is one point or interval, and no list of them."""
    return tidied[:1] in ("(", "[") and "," in tidied and closes(tidied) == len(tidied) - 1


def _brackets(text: str) -> tuple[str, str] | None:
    """The brackets of a text that is a point or an interval."""
    return (text[0], text[-1]) if _ONE_POINT.fullmatch(text) else None


def _decided(right: bool, reason: str, answer: Extracted) -> Verdict:
    shown = None if answer.text is None else answer.text[:MAX_LENGTH]
    return Verdict("correct" if right else "wrong", right, reason, shown, answer.by)
