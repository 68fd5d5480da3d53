"""Every verdict and its sentence, at and beside its boundary; nothing stronger anywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from compare_studies import D1

from gspo_cli.report.compared import evidence_of
from gspo_cli.report.numbers import Scores, measure
from gspo_cli.report.sentences import SENTENCES, Wording, refusal, sentence
from gspo_cli.report.verdict import Evidence, judge

X = "reward/mean:area@steps"
WORDING = Wording("GRPO", "GSPO", X, "quickstart", "steps", True, "reward", "higher")
RESERVED = re.compile(r"better|worse|outperform|beat|significant|\bwin", re.IGNORECASE)

D3 = (0.05, 0.04, -0.01, 0.06, 0.03, 0.05)
D4 = (0.004, -0.006, 0.002, -0.003, 0.005, -0.001)
WIDE = (0.05, -0.06, 0.04, -0.02, 0.03, -0.05)


def evidence(D: tuple[float, ...], margin: float | None = 2.0, points: bool = True) -> Evidence:
    """Of differences in the metric's own unit."""
    base = 0.5 + 0.1 * np.sin(np.arange(len(D)))
    return evidence_of(measure(Scores(base, base + np.array(D), points=points), margin))


def said(D: tuple[float, ...], wording: Wording = WORDING, margin: float | None = 2.0) -> tuple[str, str]:
    """(verdict, sentence)."""
    found = evidence(D, margin, wording.points)
    code = judge(found, wording.better)
    return code, sentence(code, found, wording)


FIXTURES = {
    "two_checkpoints": ((0.03,), f"Two checkpoints: GSPO +3.0 points on {X}; no statement about the algorithms."),
    "no_claim": ((0.03, 0.04), "No claim from 2 seeds."),
    "flat": (
        (0.02,) * 4,
        f"Inconclusive on {X}: all seed differences are equal (+2.0 points); benchmark at floor or ceiling, or seeds "
        "that do not vary.",
    ),
    "suggestive, few": (
        D1[:5],
        f"Suggestive: GSPO +3.0 points [1.0, 5.0] on {X}; an exact test cannot reach 0.05 with 5 seeds.",
    ),
    "suggestive equal": ((0.001, -0.002, 0.001), f"Suggestive of equality within 2 points on {X}; 3 seeds."),
    "better": (
        D1,
        f"GSPO better than GRPO on {X} under recipe quickstart at equal steps: +2.8 points [1.3, 4.4], N=6 seeds.",
    ),
    "equal": (
        D4,
        f"Equal within 2 points on {X} under recipe quickstart at equal steps: +0.02 points [90 % interval -0.33, "
        "0.37], 6 seeds.",
    ),
    "suggestive": (
        D3,
        f"Suggestive: GSPO +3.7 points [1.0, 6.3] on {X}; the exact test does not reach 0.05 (p = 0.0625).",
    ),
    "inconclusive": (
        WIDE,
        f"Inconclusive on {X}: -0.2 points [-5.2, 4.9], 6 seeds; differences under 6.87 points could be missed; "
        "about 48 seeds would detect 2 points.",
    ),
    "inconclusive, few": (
        WIDE[:3],
        f"Inconclusive on {X}: +1.0 points [-14.1, 16.1], 3 seeds; differences under 19.9 points could be missed; "
        "about 75 seeds would detect 2 points.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXTURES)
def test_each_sentence(name: str) -> None:
    differences, expected = FIXTURES[name]
    code, text = said(differences)
    assert text == expected
    assert code == {"flat": "inconclusive"}.get(name, name.split(",")[0].replace(" ", "_"))
    # the other way round: the same verdict, the names swapped where they stand, the sign turned where none is named
    turned_code, turned = said(tuple(-d for d in differences))
    assert turned_code == code
    swapped = text.replace("GSPO", "?").replace("GRPO", "GSPO").replace("?", "GRPO")
    named = "GSPO" in text or code in ("no_claim", "suggestive_equal")
    assert (turned == swapped) == named


def test_reserved_words_stand_in_sentences_of_better_only() -> None:
    full = Evidence(6, 0.02, ci=(0.01, 0.03), ci90=(0.01, 0.03), p_t=0.01, p_exact=0.03, p_equal=0.01,
                    new_problems=(0.01, 0.05), margin=0.02, mde=0.03, seeds_needed=9)  # fmt: skip
    for code in SENTENCES:
        for case in (full, replace(full, flat=True), replace(full, n=4), replace(full, n=1)):
            assert bool(RESERVED.search(sentence(code, case, WORDING))) == (code == "better")
    assert not RESERVED.search(refusal(3))


def test_boundaries() -> None:
    at = Evidence(6, 0.02, ci=(0.0001, 0.03), p_t=0.05, p_exact=0.05, p_equal=0.05, margin=0.02)
    assert judge(at, "higher") == "better"
    assert judge(replace(at, p_t=0.0501), "higher") != "better"
    assert judge(replace(at, p_exact=0.0501), "higher") == "suggestive"
    assert judge(replace(at, n=5), "higher") == "suggestive"
    none = replace(at, ci=(-0.01, 0.03), p_t=0.3, p_exact=0.3)
    assert judge(none, "higher") == "inconclusive"
    assert judge(replace(none, p_equal=0.0499), "higher") == "equal"
    # a family's adjustment can leave the interval and the exact test behind
    assert judge(replace(at, p_t=0.2, p_exact=0.03, p_equal=None), "higher") == "inconclusive"


def test_five_seeds_and_one_opposite_seed_never_suffice() -> None:
    rng = np.random.default_rng(0)
    for size in (1e-6, 0.01, 10.0):
        assert said(tuple(rng.uniform(0.5, 0.6, 5) * size))[0] == "suggestive"
        six = (*(rng.uniform(0.5, 0.6, 5) * size), -1e-9)
        assert said(six)[0] != "better"


def test_new_problems_only_with_their_own_interval() -> None:
    found = evidence(D1)
    assert "new problems" not in sentence("better", found, WORDING)
    assert "new problems" not in sentence("better", replace(found, new_problems=(-0.001, 0.06)), WORDING)
    wide = sentence("better", replace(found, new_problems=(0.001, 0.06)), WORDING)
    assert wide.endswith("N=6 seeds, also for new problems.")


def test_better_and_within_the_margin() -> None:
    code, text = said(D1, margin=5.0)
    assert code == "better" and text.endswith("N=6 seeds. The difference is within the margin of 5 points.")


def test_without_a_margin_nothing_is_equal() -> None:
    tokens = replace(WORDING, points=False, unit="tokens", better="neither")
    code, text = said(WIDE, tokens, margin=None)
    assert code == "inconclusive" and text.endswith("differences under 0.0687 tokens could be missed.")
    assert said(D4, tokens, margin=None)[0] == "inconclusive"
    assert said(D4, tokens, margin=0.02)[0] == "equal"
    # in points, 2 is the default
    assert said(D4, WORDING, margin=None)[0] == "equal"


def test_a_metric_that_should_be_low_or_has_no_direction() -> None:
    low = replace(WORDING, better="lower")
    assert said(D1, low)[1].startswith("GRPO better than GSPO on") and "-2.8 points [-4.4, -1.3]" in said(D1, low)[1]
    code, text = said(D1, replace(WORDING, better="neither"))
    assert code == "different" and text.startswith("GSPO above GRPO on") and not RESERVED.search(text)


def test_exploratory() -> None:
    assert said(D1, replace(WORDING, declared=False))[1].startswith("Exploratory: GSPO better than GRPO")


def test_one_seed_with_problems() -> None:
    text = sentence("two_checkpoints", Evidence(1, -0.05, new_problems=(-0.45, 0.35)), WORDING)
    assert text == (
        f"Two checkpoints: GRPO +5 points [-35, 45] on {X} over problems; no statement about the algorithms."
    ).replace("+5 ", "+5.0 ").replace("[-35, 45]", "[-35.0, 45.0]")


def test_refusal() -> None:
    assert refusal(1) == "No comparison: 1 precondition fails."
    assert refusal(3) == "No comparison: 3 preconditions fail."
