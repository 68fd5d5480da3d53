r"""What must not reach computer algebra, because it would drop it or read it loosely.

Only commands of a closed list go there: an unknown one might be dropped. What has no value (angles, rays, inverse
functions, derivatives) must stand on both sides alike.
"""

import re

_COMMANDS_WORDS = r"""
frac dfrac tfrac cfrac sqrt binom dbinom tbinom choose pi infty cdot times div ast circ degree prime
pm mp cup cap setminus in notin emptyset subset subseteq supset supseteq to rightarrow
le leq leqslant ge geq geqslant lt gt ne neq equiv approx not
sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh ln log lg exp max min gcd lcm det mod pmod bmod
lfloor rfloor lceil rceil lvert rvert vert lVert rVert Vert mid langle rangle left right big Big bigg Bigg
begin end text textbf textit textrm mbox mathrm mathbf mathbb mathcal mathit mathsf operatorname bold boldsymbol bm
textnormal textsf texttt textup emph hbox rm mathtt mathnormal pmb degrees coth sech csch
overline bar hat vec tilde dot widehat underline boxed fbox lor vee land wedge ldots cdots dots quad qquad
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi
varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell Re Im arg
"""
COMMANDS = frozenset(_COMMANDS_WORDS.split())
"""The commands that an answer may hold on its way to computer algebra. Most others would be dropped there."""

_COMMAND = re.compile(r"\\([A-Za-z]+)")
_ALIKE = [
    re.compile(r"[A-Za-z]\s*\^\s*\{?\s*-\s*1\s*\}?\s*\("),  # an inverse function is no reciprocal
    re.compile(r"[0-9]\s*_"),
    re.compile(r"'|\\prime(?![A-Za-z])"),
]
_ON_BOTH = [
    re.compile(r"\\[lcdv]?dots[a-z]?(?![A-Za-z])|\.\.\.|…"),
    re.compile(r"\[\s*-\s*\\infty|\\infty\s*\]"),  # it would be opened
]
_D = r"(?:\\(?:mathrm|text|textrm|rm)\s*\{\s*d\s*\}|d)"
_AS_WRITTEN = [
    # the letters of an angle, vector or triangle have an order
    re.compile(r"\\(?:angle|overrightarrow|overleftarrow|overleftrightarrow|vec|triangle|widehat)(?![A-Za-z])"),
    # a derivative such as `\frac{dy}{dx}` would be 0
    re.compile(
        rf"\\[dtc]?frac\s*\{{\s*{_D}(?![a-z]{{2}})[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*\}}\s*\{{\s*{_D}\s*\\?[A-Za-z]"
    ),
    # a common divisor of letters would be 1
    re.compile(r"(?:\\|\{\s*)(?:gcd|lcm)(?![A-Za-z])\s*\}?[\s({]*(?:[^()]*[^()A-Za-z\\])?[A-Za-z]"),
    # a transpose would be the matrix, with its factors in any order
    re.compile(r"(?:(?<![A-Za-z])[A-Za-z]{1,3}\s*\}?|\))\s*\^\s*(?:T|\{?\s*(?:\\(?:math|text)[a-z]*\s*\{?)?\s*T\s*\})"),
    # a cross product would be a product
    re.compile(r"\\(?:mathbf|boldsymbol|bold|bm|pmb|textbf)\s*\{?\s*[A-Za-z]\s*\}?[\s)]*\\times(?![A-Za-z])"),
    # the remainder is a number, its class is none
    re.compile(r"\\b?mod(?![A-Za-z])"),
    # a set with one element, within a set or a list, would be the element
    re.compile(r"\\\{(?:(?!\\\}).)*\\\{|\\\{\s*\\emptyset|\\\{[^,{}]*\\\}\s*,\s*\\\{|\\\}\s*,\s*\\\{[^,{}]*\\\}"),
]


def unreadable(text: str) -> bool:
    """Whether a tidied answer holds a command of which computer algebra may make nothing."""
    return any(name not in COMMANDS and not name.startswith("infty") for name in _COMMAND.findall(text))


def unlike(gold: str, answer: str) -> bool:
    """Whether one of two tidied answers holds a sign that computer algebra would drop or misread, and the other does
    not hold as many; or whether either holds what computer algebra cannot compare at all."""
    if any(sign.search(gold) or sign.search(answer) for sign in _AS_WRITTEN):
        return True
    if any(bool(sign.search(gold)) != bool(sign.search(answer)) for sign in _ON_BOTH):
        return True
    return any(len(sign.findall(gold)) != len(sign.findall(answer)) for sign in _ALIKE)
