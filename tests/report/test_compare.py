"""`gspo report compare` on whole studies: numbers, families, failed and invalid runs, options, what it writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from compare_studies import (
    D1,
    STEPS,
    change,
    compared,
    configure,
    cube,
    end,
    flat,
    not_json,
    put,
    write_answers,
    write_run,
    write_study,
)
from program import Gspo, check_refused


def test_the_worked_example(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    found = compared(gspo_here, study)
    assert found["sentence"] == (
        "GSPO better than GRPO on reward/mean:area@steps under recipe demo at equal steps, mean of runs that do not "
        "collapse: +2.8 points [1.3, 4.6], N=6 seeds. Collapsed runs: GRPO 0 of 6 (at most 39 %), GSPO 0 of 6 (at most "
        "39 %). Tuned: both arms 4 trials on 2 seeds. For this start model, which all seeds share."
    )
    assert (found["verdict"], found["declared"], found["seeds"]) == ("better", True, [0, 1, 2, 3, 4, 5])
    assert (found["effect"], found["sd"]) == pytest.approx((0.0283333, 0.0147196), rel=5e-6)
    assert (found["p_t"], found["p_exact"], found["exact_flips"]) == (pytest.approx(0.00526629), 0.03125, 64)
    assert found["p_claim"] == 0.03125 and found["p_holm"] is None
    assert found["ci_t"] == pytest.approx([0.0128861, 0.0437806], rel=5e-6)
    assert found["ci"] == pytest.approx([0.0128861, 0.0457790], rel=5e-6)
    assert found["median"] == {"value": pytest.approx(0.025), "ci": pytest.approx([0.01, 0.05])}
    assert found["improvement"]["ci"] == pytest.approx([0.5407419, 1.0], rel=5e-6)
    assert found["mde"] == pytest.approx(1.92 * 0.0147196, rel=5e-6)
    assert (found["seeds_needed"], found["margin"]) == (8, 0.02)
    assert found["p_equal"] == pytest.approx(0.906412)
    assert [row["difference"] for row in found["per_seed"]] == pytest.approx(D1)
    bounds = {"baseline": pytest.approx(0.3930378), "treatment": pytest.approx(0.3930378)}
    assert found["collapses"] == {"baseline": [], "treatment": [], "p": 1.0, "most": bounds}
    assert (found["n_problems"], found["k"], found["noise"], found["two_way"]) == (None,) * 4
    kept = json.loads((study / "compare.json").read_text(), parse_constant=not_json)
    assert kept == found
    text = gspo_here("report", "compare", str(study)).out
    for part in ("+2.83 points", "[1.29, 4.58]", "0.0053", "0.0312 (all 64 sign flips)", "0.9064 (margin 2.00)"):
        assert part in text, part
    assert text.count("better") == 1


def test_the_worked_cube(tmp_path: Path, gspo_here: Gspo) -> None:
    study = cube(tmp_path / "demo")
    found = compared(gspo_here, study, "--metric", "arithmetic/avg@4")
    assert found["sentence"].startswith("Exploratory: GSPO better than GRPO on arithmetic/avg@4 under recipe demo")
    assert "new problems" not in found["sentence"]
    assert (found["n_problems"], found["k"]) == (5, 4)
    assert found["two_way"]["ci"] == pytest.approx([-0.0352855, 0.5186189], rel=5e-6)
    assert (found["two_way"]["V"], found["two_way"]["df"]) == (pytest.approx(0.00995019, rel=5e-6), 4)
    assert found["noise"]["share"] == pytest.approx(0.102, abs=5e-4)
    assert found["effect"] == pytest.approx(0.2416667, rel=5e-7)
    passed = compared(gspo_here, study, "--metric", "arithmetic/pass@2")
    assert (passed["effect"], passed["k"], passed["noise"]) == (pytest.approx(1 / 6), None, None)
    one = compared(gspo_here, study, "--metric", "arithmetic/avg@4", "--seeds", "0")
    assert one["sentence"].startswith("Exploratory: Two checkpoints: GSPO +5.0 points [-35.5, 45.5] on arithmetic")


def test_equal_differences_have_no_p_and_no_interval(tmp_path: Path, gspo_here: Gspo) -> None:
    found = compared(gspo_here, write_study(tmp_path / "demo", flat([0.02] * 6)))
    assert found["verdict"] == "inconclusive" and "all seed differences are equal" in found["sentence"]
    assert [found[key] for key in ("ci", "p_t", "p_exact", "p_equal", "sd", "mde", "two_way")] == [None] * 7


def test_the_axes_of_an_area(tmp_path: Path, gspo_here: Gspo) -> None:
    """Reward 0 to 1 in a straight line over the steps; one arm takes twice the tokens and half the seconds."""
    line = [step / (STEPS - 1) for step in range(STEPS)]
    for arm, tokens, seconds in (("grpo", 1000, 4.0), ("gspo", 2000, 2.0)):
        for seed in range(3):
            write_run(tmp_path / "demo", arm, seed, [x + 0.01 * seed * (arm == "gspo") for x in line], tokens, seconds)
    study = tmp_path / "demo"
    steps = compared(gspo_here, study)
    assert [row["baseline"] for row in steps["per_seed"]] == pytest.approx([0.5] * 3)
    budget = steps["budget"]
    assert budget["ratios"] == {"steps": 1.0, "tokens": 2.0, "seconds": 0.5}
    assert (budget["axis"], budget["seconds"]["baseline"]) == ("steps", 80)
    # tokens: the common range is 2000 .. 20000, where grpo goes from 1/19 to 1 and gspo from 0 to 9/19
    by_tokens = compared(gspo_here, study, "--metric", "reward/mean:area@tokens")
    first = by_tokens["per_seed"][0]
    assert (first["baseline"], first["treatment"]) == pytest.approx((10 / 19, 4.5 / 19))
    assert by_tokens["budget"]["axis"] == "tokens"
    # seconds: 4 .. 40, grpo from 0 to 9/19, gspo from 1/19 to 1
    first = compared(gspo_here, study, "--metric", "reward/mean:area@seconds")["per_seed"][0]
    assert (first["baseline"], first["treatment"]) == pytest.approx((4.5 / 19, 10 / 19))


def test_the_step_from_which_curves_are_apart(tmp_path: Path, gspo_here: Gspo) -> None:
    rng = np.random.default_rng(0)
    noise = {(arm, seed): 0.01 * rng.normal(size=STEPS) for arm in ("grpo", "gspo") for seed in range(8)}

    def rewards(arm: str, seed: int) -> list[float]:
        gain = [0.2 if arm == "gspo" and step > 8 else 0.0 for step in range(1, STEPS + 1)]
        return [0.4 + g + e for g, e in zip(gain, noise[arm, seed], strict=True)]

    assert compared(gspo_here, write_study(tmp_path / "demo", rewards, seeds=8))["apart_from_step"] == 9
    assert compared(gspo_here, write_study(tmp_path / "few", rewards, seeds=5))["apart_from_step"] is None


def test_a_failed_run_counts_with_its_last_value(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    shutil.rmtree(study / "gspo-s2")
    failed = write_run(study, "gspo", 2, [0.4] * 8 + [0.1] * 4)
    end(failed, "failed", exit=4, reason="the loss or the gradient of rollout batch 13 is not finite")
    found = compared(gspo_here, study, "--metric", "reward/mean:last10")
    assert found["per_seed"][2]["treatment"] == pytest.approx(0.1)
    assert [f["run"] for f in found["failed"]] == ["gspo-s2"]
    assert (found["collapses"]["treatment"], found["collapses"]["p"], found["n"]) == ([2], 1.0, 5)
    # 7 of 19 steps at 0.4, one falling to 0.1, the rest at 0.1, to the planned end
    area = compared(gspo_here, study)["per_seed"][2]["treatment"]
    assert area == pytest.approx((7 * 0.4 + 0.25 + 11 * 0.1) / 19)
    shutil.rmtree(failed)
    assert compared(gspo_here, study, code=3)["reasons"][0]["check"] == "pairs"


def test_collapses_are_counted(tmp_path: Path, gspo_here: Gspo) -> None:
    def falling(arm: str, seed: int) -> list[float]:
        return [0.5 + 0.01 * seed] * 10 + ([0.05 + 0.001 * seed] if arm == "grpo" else [0.5]) * 10

    found = compared(gspo_here, write_study(tmp_path / "demo", falling))
    fallen = found["collapses"]
    assert (fallen["baseline"], fallen["treatment"], fallen["p"]) == ([0, 1, 2, 3, 4, 5], [], 0.03125)
    assert found["verdict"] == "inconclusive" and "in 0 of 6 pairs neither run collapsed" in found["sentence"]
    assert "GRPO collapses more often than GSPO (exact p = 0.031)" in found["sentence"]
    configure((tmp_path / "demo"), {"report.collapse": {"below": 1.5}})
    assert compared(gspo_here, tmp_path / "demo")["collapses"]["baseline"] == []


def test_an_invalidated_run_leaves_with_its_pair(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", flat([*D1, 0.9]), seeds=7)
    put(study / "gspo-s6" / "invalidated.json", {"reason": "wrong data on that disk", "date": "2026-01-01"})
    end(study / "gspo-s6", None)
    found = compared(gspo_here, study)
    assert found["verdict"] == "better" and found["n"] == 6 and not found["declared"]
    assert found["sentence"].startswith("Exploratory (seed 6 invalidated): GSPO better than GRPO")
    assert found["invalidated"] == [{"run": "gspo-s6", "reason": "wrong data on that disk"}]


def test_other_arms_are_one_family(tmp_path: Path, gspo_here: Gspo) -> None:
    gains = {"grpo": 0.0, "gspo": 1.0, "sapo": 1.0, "luspo": 0.7}

    def rewards(arm: str, seed: int) -> list[float]:
        return [0.5 + 0.01 * seed + gains[arm] * D1[seed]] * STEPS

    study = write_study(tmp_path / "demo", rewards, arms=tuple(gains))
    found = compared(gspo_here, study)
    assert (found["treatment"], found["p_holm"]) == ("gspo", None)
    others = {other["treatment"]: other for other in found["others"]}
    assert list(others) == ["luspo", "sapo"]
    # gains in proportion have the same t, so both adjusted p are twice the p
    assert {name: o["p_holm"] for name, o in others.items()} == pytest.approx(dict.fromkeys(others, 2 * 0.00526629))
    assert others["sapo"]["verdict"] == "better" and others["sapo"]["p_claim"] == 0.03125
    alone = compared(gspo_here, study, "--treatment", "sapo")
    assert alone["others"] == [] and alone["sentence"].startswith("Exploratory: SAPO better than GRPO")
    shutil.rmtree(study / "luspo-s0")
    found = compared(gspo_here, study)
    assert (found["verdict"], found["others"][0]["verdict"]) == ("better", "refused")


def test_options_that_choose_make_it_exploratory_and_keep_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    turned = ("--margin", "5", "--baseline", "gspo", "--treatment", "grpo")
    found = []
    for options in (("--margin", "5"), turned, ("--metric", "reward/mean:last10"), ("--seeds", "0-4")):
        found.append(compared(gspo_here, study, *options))
        assert not found[-1]["declared"] and found[-1]["sentence"].startswith("Exploratory: ")
        assert not (study / "compare.json").exists()
    one, other = found[:2]  # swapping the arms changes names and signs only
    assert other["effect"] == pytest.approx(-one["effect"])
    assert other["ci"] == pytest.approx([-one["ci"][1], -one["ci"][0]])
    assert all(one[key] == other[key] for key in ("sentence", "p_exact", "verdict", "seeds_needed"))
    same = ("--metric", "reward/mean:area@steps", "--baseline", "grpo", "--treatment", "gspo", "--margin", "2")
    assert compared(gspo_here, study, *same)["declared"]
    assert (study / "compare.json").exists()


def test_require(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "better")
    assert compared(gspo_here, study, "--require", "better")["verdict"] == "better"
    compared(gspo_here, study, "--require", "equal", code=3)
    # the claim is that the treatment is better
    assert compared(gspo_here, study, "--require", "better", "--baseline", "gspo", "--treatment", "grpo", code=3)
    equal = write_study(tmp_path / "equal", flat([0.004, -0.006, 0.002, -0.003, 0.005, -0.001]))
    compared(gspo_here, equal, "--require", "equal")
    compared(gspo_here, equal, "--require", "better", code=3)
    assert gspo_here("report", "compare", equal, "--require", "worse").code == 2


def test_a_metric_without_a_good_direction(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    clip = compared(gspo_here, study, "--metric", "clip/token_frac:last10", "--require", "better", code=3)
    assert clip["verdict"] == "different" and "GSPO above GRPO on clip/token_frac:last10" in clip["sentence"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--metric", "reward/mean"), "reward/mean:area@steps"),
        (("--metric", "reward/meen:last10"), "no metric 'reward/meen'"),
        (("--metric", "lr:last10"), "mini-batch"),
        (("--baseline", "ppo"), "it has grpo, gspo"),
        (("--treatment", "grpo"), "nothing to compare"),
        (("--margin", "-1"), "positive"),
        (("--seeds", "a"), "list of seeds"),
    ],
)
def test_wrong_options(options: tuple[str, ...], found: str, tmp_path: Path, gspo_here: Gspo) -> None:
    check_refused(gspo_here("report", "compare", write_study(tmp_path / "demo", seeds=1), *options), found)


def test_a_study_of_one_arm_or_without_the_declared_one(tmp_path: Path, gspo_here: Gspo) -> None:
    one = write_study(tmp_path / "one", seeds=1, arms=("grpo",))
    assert "the study has one arm, grpo" in (text := gspo_here("report", "compare", one).err) and "--algo ARM" in text
    two = write_study(tmp_path / "two", seeds=3, arms=("grpo", "sapo"))
    assert compared(gspo_here, two)["sentence"].startswith("Exploratory: ")
    other = compared(gspo_here, write_study(tmp_path / "other", seeds=1, arms=("luspo", "sapo")))
    assert (other["baseline"], other["treatment"]) == ("luspo", "sapo")
    assert other["sentence"].startswith("Exploratory: ") and not (tmp_path / "other" / "compare.json").exists()


def test_the_table_and_the_sentence_of_a_paper(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo", arms=("grpo", "gspo", "grpo_r2"))
    sentence = compared(gspo_here, study)["sentence"]
    head, _, *arms, blank, text = gspo_here("report", "compare", study, "--markdown").out.splitlines()
    assert head == "| arm | seeds | reward/mean:area@steps, points, mean ± sd | difference to grpo [95 % interval] |"
    # 0.5 to 0.55 in the mean, D1 above it: 52.5, and 52.5 + 2.8333
    assert arms[0] == "| grpo | 6 | 52.50 ± 1.87 |  |" and arms[1].startswith("| gspo | 6 | 55.33 ± ")
    assert arms[1].endswith(" | +2.8 [1.3, 4.6] |") and len(arms) == 3
    assert blank == "" and text.startswith(sentence)
    latex = gspo_here("report", "compare", study, "--latex").out
    assert "grpo\\_r2 & 6 & " in latex and "52.50 $\\pm$ 1.87" in latex and "[95 \\% interval]" in latex
    assert gspo_here("report", "compare", study, "--latex", "--json").code == 2


def test_the_baseline_stands_above_the_arms_that_share_its_pairs(tmp_path: Path, gspo_here: Gspo) -> None:
    """A pair is left out where one of its runs collapsed, so arms can be compared over different pairs."""

    def rewards(arm: str, seed: int) -> list[float]:
        return [0.9] * 15 + [0.05] * 5 if (arm, seed) == ("gspo", 0) else flat(D1)(arm, seed)

    study = write_study(tmp_path / "demo", rewards, arms=("grpo", "gspo", "sapo"))
    _, _, *rows = gspo_here("report", "compare", study, "--markdown").out.split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:2] for row in cells] == [["grpo", "5"], ["gspo", "5"], ["grpo", "6"], ["sapo", "6"]]
    for baseline, arm in (cells[:2], cells[2:]):
        means = [float(row[2].split(" ± ")[0]) for row in (arm, baseline)]
        assert means[0] - means[1] == pytest.approx(float(arm[3].split()[0]), abs=0.06)


def test_the_order_of_files_and_rows_changes_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    one, other = cube(tmp_path / "a" / "demo"), cube(tmp_path / "b" / "demo")
    for run in sorted(other.glob("*-s*"), reverse=True):
        run.rename(run.with_name(f"{6 - int(run.name[-1])}-{run.name}"))  # folders are read in another order
    first, second = (compared(gspo_here, s, "--metric", "arithmetic/avg@4") for s in (one, other))
    for found in (first, second):
        for run in found["runs"]:
            run["run"] = ""
    assert first == second


FALL = [0.6, 0.6, 0.6] + [0.55] * 17
"""It falls from the first batches on, by less than the rule for a collapse needs."""


def test_runs_that_end_below_their_start_are_counted_and_left_out_of_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    def rewards(arm: str, seed: int) -> list[float]:
        if arm == "gspo" and seed < 2:
            return [x - 0.001 * seed for x in FALL]
        return [0.5 + 0.001 * seed + (0.3 + 0.01 * seed if arm == "grpo" else 0)] * 20

    study = write_study(tmp_path / "demo", rewards)
    found = compared(gspo_here, study)
    assert found["below_start"] == {"baseline": [], "treatment": [0, 1]} and found["n"] == found["n_pairs"] == 6
    assert "Collapsed runs: GRPO 0 of 6 (at most 39 %), GSPO 0 of 6 (at most 39 %)." in found["sentence"]
    assert "Ended below their start: GRPO 0 of 6, GSPO 2 of 6." in found["sentence"]
    (other,) = found["sensitivity"]
    assert (other["n"], other["verdict"], found["verdict"]) == (4, "suggestive", "better")
    # seeds 2 to 5, at 32 to 35 points below
    assert 100 * other["effect"] == pytest.approx(-33.5)


def test_a_pair_left_out_by_a_collapse_is_told_with_its_verdict(tmp_path: Path, gspo_here: Gspo) -> None:
    """Seed 5 collapses: five pairs suggest, six would show it."""

    def rewards(arm: str, seed: int) -> list[float]:
        if (arm, seed) == ("gspo", 5):
            return [0.6] * 10 + [0.1] * 10
        return [0.5 + 0.01 * seed + (0.3 + 0.01 * (seed % 3) if arm == "grpo" else 0)] * 20

    study = write_study(tmp_path / "demo", rewards)
    found = compared(gspo_here, study)
    assert (found["verdict"], found["n"], found["collapses"]["treatment"]) == ("suggestive", 5, [5])
    first = found["sensitivity"][0]
    assert (first["pairs"], first["n"], first["verdict"]) == ("all pairs, collapsed runs included", 6, "better")
    # differences of -30 to -32 points, and seed 5: 0.35 - 0.87 = -0.52
    assert 100 * first["effect"] == pytest.approx(-(30 + 31 + 32 + 30 + 31 + 52) / 6)


def test_problems_of_one_contest_are_one_cluster(tmp_path: Path, gspo_here: Gspo) -> None:
    study = cube(tmp_path / "demo")
    contests = {"p00": "a", "p01": "a", "p02": "b", "p03": "b", "p04": "c"}
    configure(study, {"contest_of": contests}, file="eval/arithmetic/*/summary.json")
    found = compared(gspo_here, study, "--metric", "arithmetic/avg@4")
    assert (found["n_problems"], found["n_contests"], found["two_way"]["df"]) == (5, 3, 2)
    assert found["two_way"]["V"] == pytest.approx(0.00989052, rel=1e-6)


def test_elo_has_no_problem_axis(tmp_path: Path, gspo_here: Gspo) -> None:
    study = write_study(tmp_path / "demo")
    for run in study.glob("*-s*"):
        arm, seed = run.name.split("-s")
        rating = 1200 + 10 * int(seed) + (100 + 7 * int(seed) if arm == "gspo" else 0)
        write_answers(run, [1, 2, 3], k=4, bench="codeforces", more={"contest_elo": {"elo": rating, "at_cap": 0}})
    found = compared(gspo_here, study, "--metric", "codeforces/elo")
    assert (found["effect"], found["unit"], found["points"]) == (117.5, "Elo", False)
    assert [found[key] for key in ("two_way", "noise", "n_problems", "k")] == [None] * 4
    assert found["sentence"].startswith("Exploratory: GSPO better than GRPO on codeforces/elo")
    change(study / "gspo-s0" / "eval/codeforces/step-000020/summary.json", {"contest_elo": None})
    done = gspo_here("report", "compare", str(study), "--metric", "codeforces/elo", "--json")
    assert done.code == 3 and "no contest was rated" in done.out
