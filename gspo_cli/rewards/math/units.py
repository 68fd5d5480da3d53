"""Units and words: what may be dropped around an answer, and which units are the same.

A word is dropped only if it is listed here. A single letter never is: `5 m` may be 5 metres or 5 times m. Two answers
with different units differ, and nothing is converted: 5 cents is neither 5 dollars nor $0.05.
"""

import re

from gspo_cli.rewards.math.rewrite import has_angle

# The name under which a unit is compared, then its other spellings; plurals are found by `_name`.
_MEASURES = """
percent pct percentage, degree deg, radian rad, celsius, fahrenheit, dollar usd, cent, euro eur, pound lb, penny
pence, nickel, dime, rupee rs, yen, second sec, minute min, hour hr, day, week, month, year yr, decade, century,
nanometer nanometre nm, millimeter millimetre mm, centimeter centimetre cm, decimeter decimetre dm, meter metre,
kilometer kilometre km, inch in, foot feet ft, yard yd, mile mi, milligram mg, gram, kilogram kg, ton tonne, ounce oz,
milliliter millilitre ml, liter litre, gallon gal, quart qt, pint, cup, tablespoon, teaspoon, acre, hectare, watt,
joule, newton, volt, ohm, hertz hz, bit, byte
"""
# What is counted. Which noun an answer takes for it does not matter.
_COUNTED = """
unit point item object thing piece part person people man men woman women boy girl child children kid student teacher
player member friend worker team family guest voter customer employee passenger way time arrangement combination
permutation possibility outcome choice case order ordering sequence number integer value solution root zeros zeroes
digit factor divisor multiples primes term pair triple tuple quadruple set subset element function polynomial word
letter string code path route step move game match round turn lap trip side edge vertex vertices corner face diagonal
angle line segment triangle squares rectangle polygon circle cubes tile region row column intersection apple orange
banana egg cookie candy cake pie pizza slice sandwich drink bottle can glass bag box basket jar packet package carton
ball marble card die dice coin chip block bead stick toy stamp sticker balloon book page paper pencil pen sheet ticket
seat table chair shirt sock shoe hat car bus bike bicycle truck wheel train boat house room floor window door dog cat
cow horse chicken fish bird duck sheep pig rabbit animal monkey frog tree flower plant bush seed vote question problem
song class test revolution rotation total
"""
_SHORTHAND = {"mph": "mile/hour", "kph": "kilometer/hour", "kmph": "kilometer/hour", "kmh": "kilometer/hour"}
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
_LETTERS = {"m": "meter", "s": "second", "h": "hour", "g": "gram", "l": "liter"}
"""Only beside a listed unit, as in `km/h`."""
COUNT = "count"

UNITS: dict[str, str] = {
    **{word: spellings.split()[0] for spellings in _MEASURES.split(",") for word in spellings.split()},
    **dict.fromkeys(_COUNTED.split(), COUNT),
    **_SHORTHAND,
}
"""Spelling -> the name under which units are compared."""

_NOT_UNITS_WORDS = """
or and not no non none never nor neither except without is are was than mod modulo base from between plus minus over
divided by if but at about more less most least fewer greater above below negative positive opposite inverse hundred
thousand million billion trillion dozen score half halves quarter quarters third thirds fourth fourths fifth fifths
tenth tenths hundredth hundredths thousandth thousandths hundreds thousands millions billions trillions dozens pi
factorial squared cubed times octal hex hexadecimal binary am pm wrong false incorrect untrue impossible undefined
unknown nan
"""
NOT_UNITS = frozenset(_NOT_UNITS_WORDS.split())
"""Words that change a number. They are not even dropped from a gold answer."""

_PLURALS = (("", ""), ("s", ""), ("es", ""), ("ies", "y"))


def _name(word: str) -> str | None:
    """The name of a unit in singular or plural."""
    forms = (word.removesuffix(ending) + single for ending, single in _PLURALS if word.endswith(ending))
    return next((UNITS[form] for form in forms if form in UNITS), None)


_FACTOR = r"([a-z]+)\s*(?:\^\s*\{?\s*([23])\s*\}?)?"


def unit_of(words: str, power: str = "") -> str | None:
    """The unit that a phrase such as `square inches`, `km/h` or `miles per hour` denotes; None if it is no unit.

    `power` is an exponent that follows the phrase.
    """
    text = re.sub(r"\bper\b", "/", f"{words.strip().lower()}{power}")
    text = re.sub(r" (squared|cubed)(?![a-z])", lambda match: _POWERS[match[1]], text)
    text = re.sub(r"^(square|sq|cubic|cu)[. -]+([a-z]+)", lambda match: match[2] + _POWERS[match[1]], text)
    if not re.fullmatch(rf"{_FACTOR}(?:[/ .-]+{_FACTOR})*[ .-]*", text):
        return None
    parts: list[str] = []
    for sign, word, exponent in re.findall(rf"([/ .-]*){_FACTOR}", text):
        name = _name(word) or (_LETTERS.get(word) if "/" in text else None)
        if name is None:
            return None
        parts.append(("/" if "/" in sign else "") + name + (f"^{exponent}" if exponent else ""))
    return "".join(parts)


_SIGNS = {"%": "percent", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_SCALES = {"C": "celsius", "F": "fahrenheit"}
WRAPPER = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|textup|emph|underline|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|bold|boldsymbol|bm|pmb"
    r"|mbox|hbox|rm|boxed|fbox)\s*"
)
_POWER = r"(?P<power>\s*\^\s*(?:[23]|\{\s*[23]\s*\}))?"
_LEADING = re.compile(r"(?P<sign>\\?\$|[€£¥])\s*")
_TRAILING = re.compile(
    r"\s*(?:\^?\s*\{?\s*(?P<degree>\\circ|\\degrees?|°)\s*\}?"
    rf"(?:\s*(?:{WRAPPER}\{{\s*)?(?P<scale>[CF])\s*\}}?)?|\\?(?P<sign>[%$€£¥])|(?<!\.)\.{{1,2}})$"
)
_WORDS = r"\(?(?P<words>[A-Za-z](?:[A-Za-z .'/-]|\^\s*\{?\s*[23](?:\s*\})?)*)\)?"
_IN_TEXT = re.compile(rf"\s*{WRAPPER}\{{\s*(?:{_WORDS})?\s*\.?\s*\}}{_POWER}$")
_BARE = re.compile(rf"(?<=[\d}}])\s+{_WORDS}{_POWER}$")
_UNIT_OF_QUOTIENT = r"\\(?:text|mathrm|textrm|rm)\s*\{{\s*(?P<{0}>[A-Za-z]+)\s*\}}"
_QUOTIENT = re.compile(  # `\mathrm{km} / \mathrm{h}`, `\frac{\text{km}}{\text{h}}`
    rf"(?P<fraction>\\[dt]?frac\s*\{{)?\s*{_UNIT_OF_QUOTIENT.format('top')}\s*(?(fraction)\}}\s*\{{|/)"
    rf"\s*{_UNIT_OF_QUOTIENT.format('bottom')}(?(fraction)\s*\}})(?=\s*[.^]|\s*$)"
)
_MODULUS = re.compile(r"\s*\\pmod\s*(?:\{(?P<braced>[^{}]*)\}|(?P<digit>[0-9]))\s*\.?$")
_DOLLARS = re.compile(r"(\$\$?)(?P<inside>[^$]+)\1(?P<words>\s*[A-Za-z][A-Za-z ]*)?")  # `$18$ dollars`
_ORDINAL = re.compile(  # not `2^{nd}`, which may be a power
    rf"(?<=\d)\s*(?:(?P<raised>\^)\s*\{{?\s*)?(?P<opens>(?:{WRAPPER}|\\textsuperscript)\{{)?\s*"
    r"(?:th|(?(raised)(?!)|(?(opens)(?:st|nd|rd)|(?!))))(?![A-Za-z])(?P<words>[A-Za-z ]*)(?(opens)\})(?(raised)\s*\}?)"
)


def split_units(text: str) -> tuple[str, tuple[str, ...]]:
    """(a tidied answer without its units and full stop, the units).

    Units are signs of currency before it, and behind it degrees, percent, currency, a modulus (`\\pmod{7}`), and
    phrases that `unit_of` knows.
    """
    units: list[str] = []
    text = _QUOTIENT.sub(r"\\text{\g<top>/\g<bottom>}", text)
    if formula := _DOLLARS.fullmatch(text):
        text = formula["inside"].strip() + (formula["words"] or "")
    text = _ORDINAL.sub(r"\\text{\g<words>}", text)
    before = None
    while text and text != before:
        before = text
        if leading := _LEADING.match(text):
            units.append(_SIGNS[leading["sign"].lstrip("\\")])
            text = text[leading.end() :]
        if not has_angle(text) and (trailing := _TRAILING.search(text)):
            sign = trailing["sign"] and _SIGNS[trailing["sign"]]
            degree = trailing["degree"] and _SCALES.get(trailing["scale"] or "", "degree")
            units += [unit for unit in (sign, degree) if unit]
            text = text[: trailing.start()].strip()
        if (modulus := _MODULUS.search(text)) and modulus.start():
            units.append("mod " + (modulus["digit"] or re.sub(r"\s", "", modulus["braced"])))
            text = text[: modulus.start()]
        for pattern in (_IN_TEXT, _BARE):
            if (found := pattern.search(text)) is None:
                continue
            unit = unit_of(found["words"] or "", found["power"] or "")
            if unit is not None and found.start():
                units.append(unit)
                text = text[: found.start()].strip()
            elif not found["words"] and not found["power"]:  # `\text{}`
                text = text[: found.start()].strip()
    return text, tuple(sorted(set(units)))


def differ(units: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether both sides have units, but not the same."""
    return bool(units and others) and set(units) != set(others)


_NOUN = re.compile(rf"(?<=[\d}}])\s*{WRAPPER}\{{\s*(?P<words>[A-Za-z]{{3,}}(?: +[A-Za-z]{{3,}})*)\s*\.?\s*\}}\s*\.?$")


def without_noun(gold: str) -> str:
    """A tidied gold answer without an unlisted noun at its end. A gold answer has no reason to mislead."""
    found = _NOUN.search(gold)
    if found is None or not NOT_UNITS.isdisjoint(found["words"].lower().split()):
        return gold
    return gold[: found.start()].strip()


_CONNECTIVE = re.compile(r"[\s,;]*(?:and|or)[\s,]*", re.IGNORECASE)
_FUNCTIONS_WORDS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd det"
_FUNCTIONS = frozenset(_FUNCTIONS_WORDS.split())
_WRAPPED = re.compile(
    rf"(?P<raised>[\^_]\s*)?(?:{WRAPPER}|(?P<operator>\\operatorname\s*))\{{(?P<content>[^{{}}]*)\}}{_POWER}"
)


def open_wrappers(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(a tidied answer for computer algebra, the units that it had, the words that it still holds).

    `\\mathrm{i}` becomes `i`, `\\text{ and }` a comma and `\\operatorname{sin}` a function. Computer algebra would drop
    all other words, so answers with different words must not get there.
    """
    text, units = split_units(text)
    # A percent sign has a value, so it stays.
    if "percent" in units:
        text, units = rf"{text}\%", tuple(unit for unit in units if unit != "percent")
    inner: list[str] = []
    words: list[str] = []

    def opened(match: re.Match[str]) -> str:
        content, raised, power = match["content"], match["raised"] or "", match["power"] or ""
        name = content.strip()
        if name in _FUNCTIONS:
            return rf"{raised}\{name}{power} "
        if match["operator"]:
            return match[0]
        if _CONNECTIVE.fullmatch(content):
            return f"{raised},{power}"
        before = text[: match.start()].rstrip()
        apart = not re.match(r"\s*[0-9.]", text[match.end() :])  # `2 \text{ cm } 10` is not 210
        if apart and before and before[-1] not in ",;([{=" and (unit := unit_of(content, power)) is not None:
            inner.append(unit)
            return raised
        found = re.findall("[A-Za-z]{2,}", content)
        if not found:
            return f"{raised}{{{content}}}{power}" if raised else f"{content}{power}"
        words.extend(word.lower() for word in found)
        return match[0]

    return _WRAPPED.sub(opened, text).strip(), tuple(sorted({*units, *inner})), tuple(sorted(words))
