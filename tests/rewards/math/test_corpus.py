"""The corpus of answers, and mutations of gold answers: no unequal answer is right, hardly any equal one is wrong.

A row of `answers.jsonl` has a gold answer, an answer, whether they are equal, its family, and why. A case that was
judged wrongly becomes a row. Then the labelled cases and the real answers of the shared data folder.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program import strict_lines

from gspo_cli.rewards.math.algebra import refused
from gspo_cli.rewards.math.grade import grade_aime, grade_math, grade_number, integer
from gspo_cli.rewards.math.typography import tidy
from gspo_cli.rewards.verdict import GRADER_ERROR, Verdict

CORPUS = Path(__file__).with_name("answers.jsonl")
FORMS = Path(__file__).with_name("answers_forms.jsonl")
"""Equal values in all the forms that are read."""
WIDE = Path(__file__).with_name("answers_wide.jsonl")
"""More of the same kinds, for the slow set."""
GOLDS = ["7", "204", "-13", "2.5", r"\frac{5}{8}", "-\\frac{7}{3}", r"2\sqrt{3}", r"\frac{3\pi}{4}", "x^2+3x-4", "6-5i",
         "(3,8)", "[0,4)", r"(-\infty,2]", r"\text{Monday}", "3n-2", r"15\text{ cm}", r"60^\circ", "1,024"]  # fmt: skip
DENIED = [
    r"\text{ incorrect}", r"\text{ is wrong}", r"\text{ or none}", r"\text{ or less}", r"\mbox{ false}", r"\text{ not}",
]  # fmt: skip
SCALED = [
    r"\mathrm{i}", r"\mathrm{e}", r"\mathbf{j}", r"\text{k}", r"\text{ tenths}", r"\text{ thousands}", r"\text{ dozen}",
    r"\mathit{w}", "w", "'", r"\text{ m}", r"\textbf{ million}",
]  # fmt: skip
WRAPPED = [
    "{}", " {} ", "${}$", r"\displaystyle {}", "{}.", r"\boxed{{{}}}", r"\({}\)", "\u200b{}", r"\,{}\,",
]  # fmt: skip


def real_golds(folder: Path) -> list[str]:
    """The gold answers of MATH-500 and AIME, once each."""
    rows = [row for name in ("math500", "aime24", "aime25") for row in strict_lines(folder / f"{name}.jsonl")]
    return sorted({str(row["answer"]) for row in rows})


def right(answer: str, gold: str) -> bool | None:
    return grade_math(f"\\boxed{{{answer}}}", gold).passed


@pytest.mark.parametrize(
    ("file", "every"), [(CORPUS, 15), (FORMS, 1), *(pytest.param(f, 1, marks=pytest.mark.slow) for f in (CORPUS, WIDE))]
)
def test_the_corpus_is_judged_as_labelled(file: Path, every: int) -> None:
    rows = strict_lines(file)[::every]
    assert len({(row["gold"], row["answer"]) for row in rows}) == len(rows)
    found = [(row, grade_math(f"\\boxed{{{row['answer']}}}", row["gold"])) for row in rows]
    wrong = [(row, v) for row, v in found if v.passed != row["equal"] or v.verdict == GRADER_ERROR]
    assert wrong == []
    assert file != FORMS or {v.verdict for _, v in found} == {"correct", "wrong"}


@pytest.mark.parametrize("tail", [*DENIED, *SCALED])
def test_no_tail_makes_a_right_integer_of_aime(tail: str) -> None:
    for gold in ("7", "204", "033"):
        assert not grade_aime(f"\\boxed{{{gold}{tail}}}", gold).passed


def mutated_number(data: st.DataObject, gold: str) -> str:
    """The gold answer with another sign, one digit changed, dropped or doubled."""
    places = [match.start() for match in re.finditer("[0-9]", gold)]
    place = data.draw(st.sampled_from(places))
    digit = data.draw(st.sampled_from([d for d in "0123456789" if d != gold[place]]))
    return data.draw(
        st.sampled_from(
            [f"-({gold})", gold[:place] + digit + gold[place + 1 :], gold[:place] + gold[place] * 2 + gold[place + 1 :]]
        )
    )


def value(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal or a `\\frac` of integers in any sign: the judge of the mutations."""
    text = text.replace(",", "").strip()
    if minus := re.fullmatch(r"-\((.*)\)", text):
        inner = value(minus[1])
        return None if inner is None else -inner
    if parts := re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}", text):
        top, bottom = int(parts[2]), int(parts[3])
        return Fraction(top, bottom) * (-1 if parts[1] else 1) if bottom else None
    return Fraction(text) if re.fullmatch(r"-?\d+(?:\.\d+)?", text) else None


def check_unequal(data: st.DataObject, gold: str) -> None:
    exact = value(gold)
    kinds = ["tail"] + (["number"] if exact is not None else []) + (["bracket"] if re.match(r"[(\[]", gold) else [])
    kind = data.draw(st.sampled_from(kinds))
    if kind == "number":
        answer = mutated_number(data, gold)
        changed = value(answer)
        if changed == exact:
            return
    elif kind == "bracket":
        other = {"(": "[", "[": "(", ")": "]", "]": ")"}
        if not re.fullmatch(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]", gold):
            return
        answer = data.draw(st.sampled_from([other[gold[0]] + gold[1:], gold[:-1] + other[gold[-1]]]))
    else:
        # nothing times 0 is another number: `= 0` is `= 0\mathrm{i}`
        is_zero = exact == 0 or re.search(r"=\s*0$", gold)
        tails = DENIED if is_zero or gold == r"\infty" or "\\text" in gold or not gold[-1].isalnum() else SCALED
        answer = gold + data.draw(st.sampled_from([*DENIED, *tails]))
    assert not right(answer, gold), (gold, answer)


NAMES = ("x", "y", "t", "a", "b", "k")
UNITS = ("cm", "km", "kg", "hours", "inches")


@st.composite
def polynomials(draw: st.DrawFn) -> tuple[str, dict[int, int]]:
    """A polynomial in x as LaTeX with its terms in any order, and its exact coefficients by power."""
    terms = draw(st.dictionaries(st.integers(0, 4), st.integers(-9, 9).filter(bool), min_size=2, max_size=4))
    return written(draw(st.permutations(sorted(terms.items()))), "x"), terms


def written(terms: list[tuple[int, int]], name: str) -> str:
    """The sum of (power, coefficient) as LaTeX."""
    powers = {0: "", 1: name}
    return "".join(f"{c:+d}{powers.get(p, f'{name}^{{{p}}}')}" for p, c in terms).removeprefix("+")


@given(polynomials(), st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_polynomials_are_equal_by_their_coefficients(gold: tuple[str, dict[int, int]], data: st.DataObject) -> None:
    """The coefficients judge: another order is equal; another variable, sign, coefficient or power is not."""
    text, terms = gold
    items = list(terms.items())
    assert right(written(data.draw(st.permutations(items)), "x"), text)
    power, coefficient = data.draw(st.sampled_from(items))
    changed = data.draw(st.sampled_from([{power: -coefficient}, {power: coefficient + 1}, {9: 1}]))
    other = {p: c for p, c in (terms | changed).items() if c}
    assert not right(written(data.draw(st.permutations(list(other.items()))), "x"), text), (other, text)
    if set(terms) != {0}:
        assert not right(written(items, data.draw(st.sampled_from(NAMES[1:]))), text)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=4, unique=True), st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_counts_in_a_point_and_not_in_a_set(numbers: list[int], data: st.DataObject) -> None:
    moved = data.draw(st.permutations(numbers))
    point, other = (", ".join(map(str, values)) for values in (numbers, moved))
    assert right(f"({other})", f"({point})") == (numbers == moved)
    assert right(f"\\{{{other}\\}}", f"\\{{{point}\\}}")
    assert not right(f"\\{{{other}, 21\\}}", f"\\{{{point}\\}}")


@given(st.integers(1, 999), st.sampled_from(UNITS), st.sampled_from(UNITS))
@settings(max_examples=20, deadline=None)
def test_another_unit_is_another_answer(number: int, unit: str, other: str) -> None:
    gold = f"{number}\\text{{ {unit}}}"
    assert right(f"{number}\\text{{ {other}}}", gold) == (unit == other)
    assert right(str(number), gold) and right(f"{number}~\\mathrm{{{unit}}}", gold)


@given(st.integers(-99, 99), st.integers(2, 99), st.integers(2, 9), st.integers(-99, 99), st.integers(2, 99))
@settings(max_examples=100, deadline=None)
def test_fractions_are_equal_by_their_values(top: int, bottom: int, factor: int, other: int, under: int) -> None:
    gold = f"\\frac{{{top}}}{{{bottom}}}"
    assert right(f"\\frac{{{top * factor}}}{{{bottom * factor}}}", gold) and right(f"{top}/{bottom}", gold)
    assert right(f"\\dfrac{{{other}}}{{{under}}}", gold) == (Fraction(other, under) == Fraction(top, bottom))


@pytest.fixture(params=["chosen", "real"])
def golds(request: pytest.FixtureRequest) -> list[str]:
    return GOLDS if request.param == "chosen" else real_golds(request.getfixturevalue("shared_data"))


def test_a_mutation_is_refused(golds: list[str]) -> None:
    @given(st.data(), st.sampled_from(golds))
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def each(data: st.DataObject, gold: str) -> None:
        check_unequal(data, gold)

    each()


def test_typography_is_accepted(golds: list[str]) -> None:
    wrong = [(gold, wrapper) for gold in golds for wrapper in WRAPPED if not right(wrapper.format(gold), gold)]
    twice = [(gold, wrapper) for gold in GOLDS for wrapper in WRAPPED if not right(wrapper.format(f"${gold}$"), gold)]
    assert wrong + twice == []


CHECKERS: dict[str, Callable[[str, str], Verdict]] = {"aime": grade_aime, "math": grade_math}
OUR_POLICY = {"int-percent"}
"""50% is not the integer 50."""


def test_every_labelled_case(shared_data: Path) -> None:
    cases = strict_lines(shared_data / "math_cases_dev.jsonl")
    for case in cases:
        found = CHECKERS[case["kind"]](case["response"], case["gold"])
        assert found.verdict != "grader_error", case["id"]
        assert found.passed == (case["correct"] and case["id"] not in OUR_POLICY), case["id"]
    assert cases


@pytest.mark.parametrize("name", ["math500", "math_train_slice"])
def test_no_gold_answer_is_refused_and_each_is_right(shared_data: Path, name: str) -> None:
    golds = [row["answer"] for row in strict_lines(shared_data / f"{name}.jsonl")]
    assert sum(not gold for gold in golds) == (name == "math_train_slice")  # one has no answer
    for gold in filter(None, golds):
        assert not refused(tidy(gold)), gold
        assert grade_math(f"\\boxed{{{gold}}}", gold).passed, gold


def test_the_integers_of_aime(shared_data: Path) -> None:
    for name in ("aime24", "aime25"):
        golds = [str(row["answer"]) for row in strict_lines(shared_data / f"{name}.jsonl")]
        assert [integer(gold) for gold in golds] == [int(gold) for gold in golds]


def test_the_worked_answers_of_gsm8k(shared_data: Path) -> None:
    answers = [row["answer"] for row in strict_lines(shared_data / "gsm8k_test.jsonl")]
    golds = [answer.rsplit("####", 1)[1].strip() for answer in answers]
    assert all(grade_number(answer, gold).passed for answer, gold in zip(answers, golds, strict=True))
    shifted = golds[1:] + golds[:1]
    same = sum(grade_number(answer, gold).passed for answer, gold in zip(answers, shifted, strict=True))
    assert same == sum(
        float(a.replace(",", "")) == float(b.replace(",", "")) for a, b in zip(golds, shifted, strict=True)
    )
