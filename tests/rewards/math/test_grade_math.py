"""Answers of any mathematical kind: what reading decides, what algebra decides, and what neither may be asked."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gspo_cli.rewards.math import algebra, grade
from gspo_cli.rewards.math.algebra import refused
from gspo_cli.rewards.math.grade import grade_math, grade_number
from gspo_cli.rewards.math.typography import tidy

# gold | answers that are right | answers that are wrong
TABLE = r"""
\frac{1}{2} | 0.5 ; .5 ; \frac 12 | 0.4
\frac{1}{2} | 1/2 ; \dfrac12 ; \tfrac 1 2 ; \frac{2}{4} ; 50\% ; x = \frac12 | 2 ; 0.50000001 ; \frac{2}{1} ; -0.5
\frac13 | \frac{1}{3} ; \frac{2}{6} | 0.333 ; 0.333333 ; 0.3333333333
-1\frac12 | -1.5 ; -\frac{3}{2} ; \frac{-3}{2} ; \frac{3}{-2} | 1.5 ; -0.5
137 \frac{1}{2} | 137.5 ; \frac{275}{2} | 137
58,500 | 58500 ; 58{,}500 ; 58,\!500 ; 58\,500 ; \$58,500.00 | 58.5 ; 58
15\mbox{ cm}^2 | 15 ; 15 \text{ cm}^2 ; 15 cm^2 | 16
7\text{ hours}. | 7 ; 7 hours | 8
8\% | 8 ; 0.08 ; \frac{2}{25} ; 8 percent | 0.8 ; 800\%
50 | 50\% ; 50.0 ; 5000\% | 500 ; 500\%
76^\circ | 76 ; 76^{\circ} ; 76 degrees | 67
12_5 | 12_{5} ; 012_5 ; 12 ; (12)_5 ; (12_5) | 12_7 ; 7
3 | 3_{10} | 11_2 ; 3_4
10 | \binom{5}{2} ; 10_{10} | 5C_3 ; 20
0 | -0 ; 0.0 ; 000 | \frac{1}{0} ; \text{nan} ; \infty ; \emptyset ; 0^{-1}
\infty | +\infty | -\infty ; 0
12345678901234567890 | 12345678901234567890.0 | 12345678901234567891
0.3 | \frac{3}{10} | 0.30000000000000004 ; 0.29999999999999999
\text{Evelyn} | x = \text{Evelyn} ; Evelyn ; evelyn ; \textbf{Evelyn} | Carla
\text{(B)} | B ; (B) ; \text{B} | C ; \text{(A)}
(3,4] | \left(3,4\right] ; 3<x\le4 ; x \in (3,4] | [3,4] ; (3,4) ; 3<x<4 ; 3,5
(5,\infty) | x>5 ; (5, \infty) | x \ge 5 ; [5,\infty)
(1,2) | (1.0, 2) ; \left( 1 , 2 \right) | (2,1) ; \{1,2\} ; 2,1 ; 1
\{1,2\} | \{2,1\} ; 1,2 ; 1 \text{ and } 2 | (1,2) ; \{1,2,3\} ; 1
-12 \text{ or } -30 | -30, -12 | -12
(-\infty,2)\cup(3,\infty) | (3,\infty)\cup(-\infty,2) | (-\infty,3)\cup(2,\infty)
3 \pm 2\sqrt2 | 3+2\sqrt2, 3-2\sqrt2 | 3+2\sqrt2
x=5 | 5 ; x = 5.0 | y=5 ; x=6
y = 2x+3 | 2x+3 ; 3+2x = y | 2x+4 ; y=3x+2
2\sqrt{113} | \sqrt{452} ; 2\sqrt{113}. | 2\sqrt{112} ; 21.26
6-5i | -5i+6 | 6+5i ; 5-6i
(a+5)(b+2) | ab+2a+5b+10 | ab+10
5^{12} | 244140625 | 244140626
0.0000672 | 6.72 \times 10^{-5} | 6.72 \times 10^{-6}
\frac{1}{29,\!322,\!216} | \frac{1}{29322216} | \frac{1}{29322217}
\begin{pmatrix} -7 \\ 16 \end{pmatrix} | \begin{bmatrix}-7\\16\end{bmatrix} | (-7,16)
\begin{pmatrix} -7 \\ 16 \end{pmatrix} | \begin{pmatrix}\ -7\ \\\ 16\ \end{pmatrix} | \pi
\begin{pmatrix} -7 \\ 16 \end{pmatrix} | \begin{pmatrix} -7.0 \\ 16 \end{pmatrix} | \begin{pmatrix}-7\\61\end{pmatrix}
12 | 10+2 ; \frac{24}{2} | 1 2 ; 12x ; 1,2
"""


def cases() -> list[tuple[str, str, bool]]:
    """(gold, answer, whether right) of every row."""
    rows = [row.split(" | ") for row in TABLE.strip().splitlines()]
    return [
        (gold, answer.strip(), right)
        for gold, good, bad in rows
        for answers, right in ((good, True), (bad, False))
        for answer in answers.split(" ; ")
    ]


@pytest.mark.parametrize(("gold", "answer", "right"), cases())
def test_answers(gold: str, answer: str, right: bool) -> None:
    found = grade_math(f"So \\boxed{{1}}, no: $\\boxed{{{answer}}}$.", gold)
    assert found.verdict == ("correct" if right else "wrong"), found


def test_the_gold_answer_itself_is_seen_by_reading() -> None:
    for gold in (gold for gold, _, _ in cases()):
        assert grade_math(f"\\boxed{{{gold}}}", gold).reason in ("text", "number")


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


def test_in_threads_as_in_the_main_one() -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: found.append(grade_math(f"\\boxed{{x+{i}+1}}", f"1+x+{i}").verdict))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["correct"] * 3


@pytest.mark.parametrize("gold", ["", "  "])
def test_an_empty_gold_answer_is_no_verdict_on_the_response(gold: str) -> None:
    assert grade_math(r"\boxed{}", gold).score.value is None
