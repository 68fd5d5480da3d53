"""Units and words: what may be dropped around an answer, and which units are the same.

A word is dropped only if it is listed here. A single letter never is: `5 m` may be 5 metres or 5 times m. Two answers
with different units differ, and nothing is converted: 5 cents is neither 5 dollars nor $0.05.
"""

from __future__ import annotations

import re

from gspo_cli.rewards.math.rewrite import has_angle

# Each line: the name under which a unit is compared, then its other spellings.
_MEASURES = """
percent pct percentage
degree degrees deg
radian radians rad
celsius
fahrenheit
dollar dollars usd
cent cents
euro euros eur
pound pounds lb lbs
penny pennies pence
nickel nickels
dime dimes
rupee rupees rs
yen
second seconds sec secs
minute minutes min mins
hour hours hr hrs
day days
week weeks
month months
year years yr yrs
decade decades
century centuries
nanometer nanometers nanometre nanometres nm
millimeter millimeters millimetre millimetres mm
centimeter centimeters centimetre centimetres cm
decimeter decimeters decimetre decimetres dm
meter meters metre metres
kilometer kilometers kilometre kilometres km
inch inches in
foot feet ft
yard yards yd yds
mile miles mi
milligram milligrams mg
gram grams
kilogram kilograms kg kgs
ton tons tonne tonnes
ounce ounces oz
milliliter milliliters millilitre millilitres ml
liter liters litre litres
gallon gallons gal
quart quarts qt
pint pints
cup cups
tablespoon tablespoons
teaspoon teaspoons
acre acres
hectare hectares
watt watts
joule joules
newton newtons
volt volts
ohm ohms
hertz hz
bit bits
byte bytes
"""
# What is counted. Which noun an answer takes for it does not matter.
_COUNTED = """
unit units point points item items object objects thing things piece pieces part parts
person persons people man men woman women boy boys girl girls child children kid kids student students teacher teachers
player players member members friend friends worker workers team teams family families guest guests voter voters
customer customers employee employees passenger passengers
way ways time times arrangement arrangements combination combinations permutation permutations possibility possibilities
outcome outcomes choice choices case cases order orders ordering orderings sequence sequences
number numbers integer integers value values solution solutions root roots zeros zeroes digit digits factor factors
divisor divisors multiples primes term terms pair pairs triple triples tuple tuples quadruple quadruples
set sets subset subsets element elements function functions polynomial polynomials word words letter letters
string strings code codes path paths route routes step steps move moves game games match matches round rounds turn turns
lap laps trip trips
side sides edge edges vertex vertices corner corners face faces diagonal diagonals angle angles line lines
segment segments triangle triangles squares rectangle rectangles polygon polygons circle circles cubes
tile tiles region regions row rows column columns intersection intersections
apple apples orange oranges banana bananas egg eggs cookie cookies candy candies cake cakes pie pies pizza pizzas
slice slices sandwich sandwiches drink drinks bottle bottles can cans glass glasses bag bags box boxes basket baskets
jar jars packet packets package packages carton cartons
ball balls marble marbles card cards die dice coin coins chip chips block blocks bead beads stick sticks toy toys
stamp stamps sticker stickers balloon balloons
book books page pages paper papers pencil pencils pen pens sheet sheets ticket tickets seat seats table tables
chair chairs shirt shirts sock socks shoe shoes hat hats
car cars bus buses bike bikes bicycle bicycles truck trucks wheel wheels train trains boat boats house houses
room rooms floor floors window windows door doors
dog dogs cat cats cow cows horse horses chicken chickens fish fishes bird birds duck ducks sheep pig pigs rabbit rabbits
animal animals monkey monkeys frog frogs
tree trees flower flowers plant plants bush bushes seed seeds
vote votes question questions problem problems song songs class classes test tests
revolution revolutions rotation rotations
total
"""
_SHORTHAND = {"mph": "mile/hour", "kph": "kilometer/hour", "kmph": "kilometer/hour", "kmh": "kilometer/hour"}
_SQUARE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTERWARDS = {"squared": 2, "cubed": 3}
_LETTERS = {"m": "meter", "s": "second", "h": "hour", "g": "gram", "l": "liter"}
"""Only beside a listed unit, as in `km/h`."""
COUNT = "count"

UNITS: dict[str, str] = {
    **{word: line.split()[0] for line in _MEASURES.split("\n") if line for word in line.split()},
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

_PART = re.compile(r"([a-z]+)\s*(?:\^\s*\{?\s*([23])\s*\}?|([²³]))?|([/.-])")


def unit_of(words: str, power: str = "") -> str | None:
    """The unit that a phrase such as `square inches`, `km/h` or `miles per hour` denotes; None if it is no unit.

    `power` is an exponent that follows the phrase.
    """
    parts: list[str] = []
    divide, square, named = False, 0, False
    text = words.strip().lower()
    if not text or _PART.sub("", text).strip():
        return None
    for word, digit, superscript, sign in _PART.findall(text):
        if sign == "/" or word == "per":
            divide = True
        elif sign:
            continue
        elif word in _AFTERWARDS and parts:
            parts[-1] += f"^{_AFTERWARDS[word]}"
        elif word in _SQUARE and not square and not named:
            square = _SQUARE[word]
        else:
            name = UNITS.get(word) or (_LETTERS.get(word) if divide else None)
            if name is None:
                return None
            exponent = square or int(digit or {"²": 2, "³": 3}.get(superscript, 0))
            parts.append(("/" if divide else "") + name + (f"^{exponent}" if exponent else ""))
            divide, square, named = False, 0, True
    if not parts or divide or square:  # `4 square` may mean 16
        return None
    exponent_after = re.sub(r"[^23²³]", "", power).translate(str.maketrans("²³", "23"))
    return "".join(parts) + (f"^{exponent_after}" if exponent_after else "")


_SIGNS = {"%": "percent", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_SCALES = {"C": "celsius", "F": "fahrenheit"}
WRAPPER = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|textup|emph|underline|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|bold|boldsymbol|bm|pmb"
    r"|mbox|hbox|rm|boxed|fbox)\s*"
)
_POWER = r"(?P<power>\s*\^\s*(?:[23]|\{\s*[23]\s*\})|[²³])?"
_LEADING = re.compile(r"(?:\\approx(?![A-Za-z])|≈|(?P<sign>\\?\$|[€£¥]))\s*")
_TRAILING = re.compile(
    r"\s*(?:\^?\s*\{?\s*(?P<degree>\\circ|\\degrees?|°)\s*\}?"
    rf"(?:\s*(?:{WRAPPER}\{{\s*)?(?P<scale>[CF])\s*\}}?)?|\\?(?P<sign>[%$€£¥])|(?<!\.)\.{{1,2}})$"
)
_WORDS = r"\(?(?P<words>[A-Za-z](?:[A-Za-z .'/²³-]|\^\s*\{?\s*[23](?:\s*\})?)*)\)?"
_IN_TEXT = re.compile(rf"\s*{WRAPPER}\{{\s*(?:{_WORDS})?\s*\.?\s*\}}{_POWER}$")
_BARE = re.compile(rf"(?<=[\d}}])\s+{_WORDS}{_POWER}$")
_UNIT_OF_QUOTIENT = r"\\(?:text|mathrm|textrm|rm)\s*\{{\s*(?P<{0}>[A-Za-z]+)\s*\}}"
_QUOTIENT = re.compile(  # `\mathrm{km} / \mathrm{h}`, `\frac{\text{km}}{\text{h}}`
    rf"(?P<fraction>\\[dt]?frac\s*\{{)?\s*{_UNIT_OF_QUOTIENT.format('top')}\s*(?(fraction)\}}\s*\{{|/)"
    rf"\s*{_UNIT_OF_QUOTIENT.format('bottom')}(?(fraction)\s*\}})(?=\s*[.^]|\s*$)"
)
_MODULUS = re.compile(r"\s*\\pmod\s*(?:\{(?P<braced>[^{}]*)\}|(?P<digit>[0-9]))\s*\.?$")
_DOLLARS = re.compile(r"(\$\$?)(?P<inside>[^$]+)\1")


def split_units(text: str) -> tuple[str, tuple[str, ...]]:
    """(a tidied answer without its units and full stop, the units).

    Units are signs of currency before it, and behind it degrees, percent, currency, a modulus (`\\pmod{7}`), and
    phrases that `unit_of` knows.
    """
    units: list[str] = []
    text = _QUOTIENT.sub(r"\\text{\g<top>/\g<bottom>}", text)
    if formula := _DOLLARS.fullmatch(text):
        text = formula["inside"].strip()
    before = None
    while text and text != before:
        before = text
        if leading := _LEADING.match(text):
            units += [_SIGNS[leading["sign"].lstrip("\\")]] if leading["sign"] else []
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
_FUNCTIONS_WORDS = """
sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd det
"""
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
