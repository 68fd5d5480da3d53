"""The process in which math-verify compares two answers: it reads JSON lines and replies to each with one.

It imports nothing of this package. A timer of the kernel ends it when a comparison has used its CPU time. It does not
outlive its parent: end of file ends it at once, and if it is too busy to notice, the timer does. Its input is parsed as
LaTeX and never evaluated as a program.
"""

import json
import logging
import os
import queue
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

MEMORY = 4 * 2**30  # bytes of address space


def read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Pass lines on; end the process at end of file."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def number_only(text: str, *_args: Any, **_kwargs: Any) -> Any:
    """Replaces sympy's `parse_expr`, which would evaluate a string as Python.

    Errors: ValueError for anything but a numeral.
    """
    import sympy

    if re.fullmatch("[0-9]+", text):
        return sympy.Integer(int(text))
    if re.fullmatch(r"[0-9]+\.[0-9]*|\.[0-9]+", text):
        return sympy.Rational(text)
    raise ValueError("not a numeral")


def make_exact() -> None:
    """Change what math-verify and its parser read loosely.

    Decimals are exact fractions, letters keep their case, all symbols are real, and what vanishes at 15 digits must
    also vanish at 50. Their own rules would take 1.414214 for the root of 2 and e^{-40} for e^{-41}.
    """
    import sympy
    from latex2sympy2_extended import latex2sympy2, symbols
    from math_verify import grader, parser

    as_written = latex2sympy2.ConversionConfig(lowercase_symbols=False)
    loosely_equal = grader.sympy_numeric_eq

    def parsed(text: str, **options: Any) -> Any:
        return latex2sympy2.latex2sympy(text, **options | {"is_real": True}, conversion_config=as_written)

    def exact_number(_converter: Any, text: str) -> Any:
        return sympy.Rational(text.replace(",", ""))

    def equal(a: Any, b: Any, *digits: int) -> bool:
        return bool(loosely_equal(a, b, *digits)) and not differ_beyond(a, b)

    def same_symbol(gold: Any, answer: Any) -> bool:
        names = ["".join(str(part) for part in sympy.Mul.make_args(side)) for side in (gold, answer)]
        return names[0] == names[1]  # `abc` in a text may be read as a product

    parser.latex2sympy = parsed
    latex2sympy2._Latex2Sympy.parse_number = exact_number
    symbols.sympy_singleton_map = {"pi": sympy.pi}
    grader.sympy_numeric_eq = equal
    grader.sympy_compare_symbols = same_symbol


def differ_beyond(a: Any, b: Any) -> bool:
    """Whether two constants differ within 50 digits of the larger one."""
    import sympy

    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)) or (a - b).free_symbols:
        return False
    parts = sympy.N(a - b, 50, maxn=400).as_real_imag()
    return any(part.is_Float and part != 0 and part._prec > 1 for part in parts)


def conventional(read: Any) -> Any:
    """A parsed answer in which `i` is the imaginary unit, and an odd root of a negative number is real."""
    import sympy

    if not isinstance(read, sympy.Expr | sympy.MatrixBase | sympy.Tuple | sympy.FiniteSet):
        return read
    letter = sympy.Symbol("i", real=True)
    if letter in read.free_symbols:
        read = read.xreplace({letter: sympy.I})
    roots = {
        power: (-1) ** power.exp.p * (-power.base) ** power.exp
        for power in read.atoms(sympy.Pow)
        if power.exp.is_Rational and power.exp.q > 1 and power.exp.q % 2 and power.base.is_negative
    }
    return read.xreplace(roots) if roots else read


def comparison() -> Callable[[str, str], dict[str, Any]]:
    """The function that compares gold and answer, called once so that what it imports on first use is imported."""
    import sympy.core.random
    import sympy.parsing.sympy_parser
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    make_exact()
    # units are the caller's business: math-verify drops every word at the end
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    only_latex = [LatexExtractionConfig(False, 0, spelling)]

    def read(text: str) -> list[Any]:
        # first match only: a fraction within an unreadable answer is not the answer
        found = parse(f"\\boxed{{{text}}}", only_latex, extraction_mode="first_match", parsing_timeout=None)
        return list(map(conventional, found))

    def compare(gold: str, answer: str) -> dict[str, Any]:
        sympy.core.random.seed(0)  # the same verdict in every worker
        try:
            same = verify(read(gold), read(answer), allow_set_relation_comp=True, timeout_seconds=None)
        except MemoryError:
            return {"error": "memory"}
        return {"same": bool(same)}

    compare("(x+1)^2", "x^2+2x+1")  # `simplify` imports a module that builds its constants with `parse_expr`
    sympy.parsing.sympy_parser.parse_expr = number_only
    return compare


def main() -> None:
    """Say hello, then reply to each line."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keep what libraries print out of the replies
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    compare = comparison()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    while True:
        item = json.loads(lines.get())
        signal.setitimer(signal.ITIMER_PROF, item["cpu_s"])
        reply = compare(item["gold"], item["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"id": item["id"], **reply}), file=replies, flush=True)


if __name__ == "__main__":
    main()
