"""Answers of any mathematical kind: what reading decides, what algebra decides, and what neither may be asked."""

import subprocess
import sys

import pytest

from gspo_cli.rewards.math import algebra, grade
from gspo_cli.rewards.math.algebra import refused
from gspo_cli.rewards.math.grade import grade_math, grade_number
from gspo_cli.rewards.math.typography import tidy


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [
        ("#### 1,024", "1024", "correct"), ("#### $1,024.00 dollars", "1024", "correct"), ("#### 18.", "18", "correct"),
        ("#### 18", "18.00", "correct"), ("#### 1/2", "0.5", "correct"), ("#### 19", "18", "wrong"),
        ("#### eighteen", "18", "no_answer"), (r"\boxed{\sqrt{4}}", "2", "correct"), ("so 18", "18", "no_answer"),
        ("#### 2**9", "512", "no_answer"), ("#### 1e3", "1000", "correct"), ("#### " + "9" * 50, "1", "no_answer"),
        ("#### 18", "eighteen", "grader_error"),
    ],
)  # fmt: skip
def test_plain_numbers_alone(response: str, gold: str, verdict: str) -> None:
    assert grade_number(response, gold).verdict == verdict


REFUSED = [
    "x" * 301, "(" * 31 + "x" + ")" * 31, r"9^{9^{9^9}}", "9^9^9^9", r"9^{9^9}", r"{{9^9}^9}^9", r"(10^9)!", "1000!",
    "100!!", "(5!)!", "2^{1001}", "2^{100000}", "x^{n+2000}", r"\binom{1001}{5}",
    r"\binom{10^9}{5}", r"{2000 \choose 5}", r"\int_0^1 x",
    r"\iint x", r"\sum_{i=1}^{9} i", r"\prod x", "__import__", "(lambda: 204)()", "9" * 7 + "!", r"(2^{11})!",
]  # fmt: skip
NOT_REFUSED = [r"x^{17}", r"(x^2+1)^2", r"e^{x^2}", r"999!", r"(n-1)!", r"2^{1000}", r"\binom{10}{5}", r"\interior",
               r"10^{-3}", r"5! \cdot 3!", "1,000,000", r"\frac{1}{29322216}", r"a_{1000000}"]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_algebra_is_never_asked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tidy(text))
    monkeypatch.setattr(grade.VERIFIER, "compare", None)  # calling it would raise
    for gold, answer, right in (("204", text, False), (text, text, True), (text, "y", False)):
        found = grade_math(f"\\boxed{{{answer}}}", gold)
        assert (found.passed, found.reason) == (right, "text" if right else "refused")


@pytest.mark.parametrize("text", NOT_REFUSED)
def test_what_it_may_be_asked(text: str) -> None:
    assert not refused(tidy(text))


def test_nothing_in_an_answer_is_run(tmp_path: object) -> None:
    trap = f'import("os").system("touch {tmp_path}/trap")'
    for text in (trap, rf"\pi if {trap} else 0", rf"\text{{{trap}}}", f"x_{{{trap}}}", f"eval({trap!r})"):
        assert not grade_math(f"\\boxed{{{text}}}", "204").passed
    assert list(tmp_path.iterdir()) == []  # type: ignore[attr-defined]


def test_the_worker_evaluates_no_string() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(algebra.PROGRAM.parent)!r}); import algebra_worker as w, sympy\n"
        "sys.path.pop(0); compare = w.comparison()\n"
        "for text in ('1+1', 'x', '__import__(\"os\")', '1e5', '0x10', '9**9'):\n"
        "    try: sympy.sympify(text)\n"
        "    except (ValueError, sympy.SympifyError): print('refused')\n"
        "print(sympy.sympify('12') + 1, compare('(x+1)^2', 'x^2+2x+1'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:-1] == ["refused"] * 6 + ["13 {'same': True}"]


@pytest.mark.parametrize("gold", ["", "  "])
def test_an_empty_gold_answer_is_no_verdict_on_the_response(gold: str) -> None:
    assert grade_math(r"\boxed{}", gold).score.value is None
