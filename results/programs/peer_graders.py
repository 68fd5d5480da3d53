#!/usr/bin/env python3
"""Verdicts of other graders of mathematical answers; `graders_compared.py` starts this in their environment.

    HARNESS/bin/pip install math-verify==0.9.0 'lm-eval[math]==0.4.13' lighteval==0.9.2

Reads JSON lines with `gold`, and `answer` (what stands in the box) or `response` (the whole text), and writes one line
of verdicts each. Each grader gets the response in the form that its own prompt asks for.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def response(case: Case) -> str:
    """The whole response, as our prompt asks for it."""
    return case.get("response") or f"The answer is $\\boxed{{{case['answer']}}}$."


def math_verify_alone(case: Case) -> bool:
    """math-verify's own recipe, with its defaults."""
    from math_verify import parse, verify

    return bool(verify(parse(f"${case['gold']}$"), parse(response(case))))


def lm_eval_minerva() -> Callable[[Case], bool | None]:
    """`exact_match` of lm-eval's task minerva_math: Minerva's substitutions, then sympy."""
    import lm_eval

    path = Path(lm_eval.__file__).parent / "tasks/minerva_math/utils.py"
    spec = importlib.util.spec_from_file_location("minerva_math_utils", path)
    assert spec and spec.loader
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)

    def judge(case: Case) -> bool | None:
        if "answer" not in case:  # it reads one sentence alone, which the response does not have
            return None
        given = f"Final Answer: The final answer is ${case['answer']}$. I hope it is correct."
        doc = {"solution": f"$\\boxed{{{case['gold']}}}$", "answer": task.normalize_final_answer(case["gold"])}
        return bool(task.process_results(doc, [given])["exact_match"])

    return judge


def lighteval_math() -> Callable[[Case], bool]:
    """`math_pass@1:1_samples`, as in lighteval's task math_500: it reads both texts, and compares with sympy."""
    from lighteval.metrics.metrics import Metrics
    from lighteval.tasks.requests import Doc

    metric = Metrics.math_pass_at_1_1n.value

    def judge(case: Case) -> bool:
        gold, given = f"$\\boxed{{{case['gold']}}}$", response(case)
        doc = Doc(query="", choices=[gold], gold_index=0)
        found = metric.compute(golds=[gold], predictions=[given], formatted_doc=doc)
        return bool(found[metric.metric_name] == 1.0)

    return judge


def main() -> None:
    """One line of versions, then one line of verdicts per case; a grader that raises has no verdict."""
    logging.disable(logging.CRITICAL)
    graders = {"math-verify": math_verify_alone, "lm-eval": lm_eval_minerva(), "lighteval": lighteval_math()}
    print(json.dumps({name: version(name) for name in graders}), flush=True)
    for line in sys.stdin:
        case, verdicts = json.loads(line), {}
        for name, judge in graders.items():
            try:
                verdicts[name] = judge(case)
            except Exception as error:
                verdicts[name] = f"{type(error).__name__}: {error}"[:100]
        print(json.dumps(verdicts), flush=True)


if __name__ == "__main__":
    main()
