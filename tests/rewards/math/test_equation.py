"""What an answer claims about itself: arithmetic, names on the left side, false chains and approximations."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_cli.rewards.math.arithmetic import value
from gspo_cli.rewards.math.equation import contradicts, is_unsolved
from gspo_cli.rewards.math.guard import unlike, unreadable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3+5", 8), (r"-2^2", -4), ("2-3-4", -5), ("1/2/2", Fraction(1, 4)), (r"\frac12", Fraction(1, 2)), ("4!", 24),
        (r"2^{10}", 1024), (r"(2+3)(4)", 20), (r"\sqrt[3]{27}", 3), (r"\sqrt{2}", math.sqrt(2)),
        (r"50\%", Fraction(1, 2)),
        (r"\log_2 8", 3.0), (r"\ln{e^2}", 2.0), (r"\frac{1}{2}\pi", math.pi / 2), (r"6\div 4\times 2", 3),
        ("", None), ("x", None), ("2 3", None), (r"3\frac14", None), ("1/0", None), (r"\sqrt{-4}", None), ("(3", None),
        (r"((9^{200})^{200})", None), ("101!", None), ("2,3", None), (r"\foo", None), ("3)", None), ("{" * 60, None),
    ],
)  # fmt: skip
def test_arithmetic(text: str, expected: float | None) -> None:
    assert value(text) == (None if expected is None else pytest.approx(expected))


@given(st.integers(-99, 99), st.integers(1, 99), st.integers(-99, 99), st.sampled_from(["+", "-", r"\cdot "]))
@settings(max_examples=50, deadline=None)
def test_arithmetic_agrees_with_fractions(top: int, bottom: int, other: int, sign: str) -> None:
    found = value(rf"\frac{{{top}}}{{{bottom}}}{sign}({other})")
    one = Fraction(top, bottom)
    assert found == {"+": one + other, "-": one - other, r"\cdot ": one * other}[sign]


@pytest.mark.parametrize(
    "text",
    ["2x=3", "x^2=3", "3=2x", "|x|=3", r"\frac{1}{x}=3", "x=x+1", r"\sqrt{x}=3", "2^x=8", "e^x=3", r"\log x=3", "n!=6",
     "x(x+1)=6", "2AB=3", r"-\vec{v}=3", r"\frac{1}{f(x)}=3", "2f(1)=3", r"2\theta=3"],
)  # fmt: skip
def test_an_equation_that_is_not_solved(text: str) -> None:
    assert is_unsolved(text)


@pytest.mark.parametrize(
    "text",
    ["x=3", "m+n=3", "f(2)=3", "f^{-1}(2)=3", "AB=3", "AA'=3", "a_5=3", "|z|=3", "3=x", "f(x)=x+1", r"V=\pi r^2=3", "7",
     r"\sin x=1", "(x,y)=(1,2)", r"x=\frac{1}{2}", "A=A_1+2", "x^2+y^2=4", r"2\sqrt{5}=\sqrt{20}", "|v|=3", "|A|=3",
     r"\alpha+\beta=3", r"\theta=3"],
)  # fmt: skip
def test_a_name_and_its_value(text: str) -> None:
    assert not is_unsolved(text)


@pytest.mark.parametrize(
    ("text", "false"),
    [
        ("203=204", True), ("3+5=7", True), ("3+4=7", False), (r"x=\frac{9}{3}=3", False),
        (r"\sqrt{20}=2\sqrt{5}", False),
        (r"0.4=\frac{1}{2}", True), (r"\frac{1}{3}=0.333", False), (r"\sqrt2\approx 1.5", True), (r"7\approx 8", True),
        (r"\sqrt2\approx 1.41", False), (r"\sqrt2\approx -1.41", True), (r"9\approx 8", True), (r"x\approx 1.4", False),
        (r"\frac{2}{7}\approx .286", False), (r"\pi\approx 3.1416", False), ("x=3", False), ("f(x)=x+1", False),
    ],
)  # fmt: skip
def test_a_claim_that_is_false(text: str, false: bool) -> None:
    assert contradicts(text) == false


def test_only_listed_commands_reach_computer_algebra() -> None:
    assert not unreadable(r"\frac{1}{2}\sqrt{3}\pi") and unreadable(r"3\foo") and unreadable(r"\rlap{/}3")
    assert unlike(r"f^{-1}(x)", r"\frac{1}{f(x)}") and unlike(r"\angle ABC", r"\angle ACB")
    assert unlike("f'(x)", "f(x)") and unlike("x+1", "x+1_2") and not unlike("x^{-1}", r"\frac{1}{x}")
