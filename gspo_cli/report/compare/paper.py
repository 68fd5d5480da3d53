"""A comparison for a paper: a table of arms, and the sentence that the runs permit, in Markdown or LaTeX."""

import numpy as np

from gspo_cli.report.compare.result import Compared, StudyComparison
from gspo_cli.report.compare.texts import value


def rows(found: StudyComparison) -> list[list[str]]:
    """The head and a row an arm: seeds, mean and standard deviation over seeds, difference with its 95 % interval.

    All are of the pairs in which neither run collapsed, as the sentence is; the baseline has a row above the arms that
    it shares such pairs with. Empty if nothing was tested.
    """
    tested = [one for one in (found.primary, *found.others) if isinstance(one, Compared)]
    if not tested:
        return []
    first = tested[0]
    unit = f", {first.wording.shown_unit}" if first.wording.shown_unit else ""
    table = [["arm", "seeds", f"{first.metric}{unit}, mean ± sd", f"difference to {first.baseline} [95 % interval]"]]
    for one in tested:
        baseline = [one.baseline, *_score(one, one.stats.scores.baseline_S), ""]
        own = [one.treatment, *_score(one, one.stats.scores.treatment_S), _difference(one)]
        table += [own] if baseline in table else [baseline, own]
    return table


def _score(one: Compared, scores_S: np.ndarray) -> list[str]:
    kept_S = scores_S[one.stats.kept_S]
    if not len(kept_S):
        return ["0", "n/a"]
    spread = f" ± {value(one, float(kept_S.std(ddof=1)))}" if len(kept_S) > 1 else ""
    return [str(len(kept_S)), value(one, float(kept_S.mean())) + spread]


def _difference(one: Compared) -> str:
    return one.wording.difference(one.evidence.effect, one.evidence.ci).replace(f" {one.wording.shown_unit}", "", 1)


def sentences(found: StudyComparison) -> str:
    """Of every pair, the primary one first."""
    return " ".join(one.sentence for one in (found.primary, *found.others))


def markdown(found: StudyComparison) -> str:
    """A pipe table, and under it the sentence."""
    head, *body = rows(found) or [[]]
    table = [head, ["---", "---:", "---:", "---"], *body] if head else []
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in table]
    return "\n".join([*lines, *[""] * bool(lines), sentences(found)])


def latex(found: StudyComparison) -> str:
    """A `table` environment whose caption is the sentence; it needs no package."""
    from gspo_cli.report.figures.save import LATEX  # loads matplotlib

    signs = str.maketrans(LATEX | {"±": r"$\pm$"})
    head, *body = rows(found) or [[]]
    caption = sentences(found).translate(signs)
    if not head:
        return caption
    first, *lines = (" & ".join(cell.translate(signs) for cell in row) + r" \\" for row in (head, *body))
    table = "\n    ".join([r"\begin{tabular}{lrrl}", r"\hline", first, r"\hline", *lines, r"\hline", r"\end{tabular}"])
    return f"\\begin{{table}}[t]\n  \\centering\n  {table}\n  \\caption{{{caption}}}\n\\end{{table}}"
