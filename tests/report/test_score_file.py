"""Scores from a csv: the rules of a study without a study; published tables with their published results."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program import refusal
from typer.testing import CliRunner, Result

from gspo_cli.cli.report import app
from gspo_cli.report.compare.learning_curves import fit_sigmoid
from gspo_cli.report.compare.score_file import read_scores
from gspo_cli.report.compare.score_table import profile

SLEEP = {
    "dextro": (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0),
    "laevo": (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4),
}
"""Student, The probable error of a mean, Biometrika 6 (1908): extra hours of sleep of ten patients under two drugs."""
AUC = {
    "adult": (0.763, 0.768), "breast cancer": (0.599, 0.591), "breast cancer wisconsin": (0.954, 0.971),
    "cmc": (0.628, 0.661), "ionosphere": (0.882, 0.888), "iris": (0.936, 0.931), "liver": (0.661, 0.668),
    "lung": (0.583, 0.583), "lymphography": (0.775, 0.838), "mushroom": (1.0, 1.0), "primary tumor": (0.940, 0.962),
    "rheum": (0.619, 0.666), "voting": (0.972, 0.981), "wine": (0.957, 0.978),
}  # fmt: skip
"""Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 7 (2006), table 2: AUC of C4.5 without
and with a tuned parameter m."""
CARTPOLE = {
    "ppo": {0: 282.27, 1: 330.27, 7: 186.40, 42: 341.23, 99: 306.57, 123: 349.43},
    "grpo": {0: 365.43, 1: 95.30, 7: 61.93, 42: 290.73, 99: 177.10, 123: 195.40},
}
"""jsboige/CoursIA (MIT), pull request 13439: return on CartPole over the last 30 episodes, by seed."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", "--scores", *map(str, arguments)])


def compared(path: Path, *options: object) -> dict[str, Any]:
    done = run(path, "--json", *options)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(path: Path, rows: list[tuple[object, ...]], header: str = "run,seed,task,step,value") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_six_published_runs_a_side(tmp_path: Path) -> None:
    rows = [(name, seed, value) for name, by_seed in CARTPOLE.items() for seed, value in by_seed.items()]
    (one,) = compared(write(tmp_path / "cartpole.csv", rows, "run,seed,value"))["comparisons"]
    # published with them: means 299.36 and 197.65, difference -101.71, and a verdict: inconclusive
    assert one["effect"] == pytest.approx(-101.71, abs=0.01) and one["n"] == 6
    assert one["p_t"] == pytest.approx(0.06962379463)  # scipy.stats.ttest_rel
    assert one["p_exact"] == 6 / 64  # Wilcoxon's, published with them, is as large
    assert one["verdict"] == "inconclusive" and "-101.7 units [-215.3, 110.6], N=6 seeds" in one["sentence"]


def test_students_table_gives_students_result(tmp_path: Path) -> None:
    rows = [(drug, i, hours) for drug, all_hours in SLEEP.items() for i, hours in enumerate(all_hours)]
    found = compared(write(tmp_path / "sleep.csv", rows, "run,seed,value"))
    (one,) = found["comparisons"]
    # t = 4.0621, df = 9, p = 0.002833, interval [0.7001142, 2.4598858]: help(t.test) of R
    assert (one["t"], one["df"], one["p_t"]) == (pytest.approx(4.0621, abs=1e-4), 9, pytest.approx(0.002833, abs=1e-6))
    assert one["ci_t"] == pytest.approx([0.7001142, 2.4598858], abs=1e-7)
    assert one["sentence"].startswith("Suggestive: laevo +1.6 units [0.7, ") and "does not say which" in one["sentence"]
    stated = write(tmp_path / "stated.csv", [(*row, 0) for row in rows], "run,seed,value,collapsed")
    sentence = compared(stated)["comparisons"][0]["sentence"]
    assert sentence.startswith("laevo above dextro on value, mean of runs that do not collapse: +1.6 units [0.7, ")
    assert one["improvement"]["value"] == pytest.approx(0.95) and one["median"]["value"] == pytest.approx(1.3)


def test_demsars_table_has_eleven_wins_of_fourteen(tmp_path: Path) -> None:
    rows = [(name, 0, task, 0, auc[i]) for task, auc in AUC.items() for i, name in enumerate(("C4.5", "C4.5+m"))]
    found = compared(write(tmp_path / "auc.csv", rows))
    (one,) = found["comparisons"]
    # 10 wins, 2 losses, 2 ties, which count half: 11 of 14, as the paper counts them
    assert one["improvement_tasks"]["value"] == pytest.approx(11 / 14)
    assert one["verdict"] == "two_checkpoints" and "over tasks" in one["sentence"] and one["n_problems"] == 14
    assert {t["task"]: t["difference"] for t in one["per_task"]}["lymphography"] == pytest.approx(0.063)


def test_a_file_with_collapses_counts_them_and_compares_the_others(tmp_path: Path) -> None:
    gains = (0.30, 0.35, 0.25, 0.31, 0.28, 0.33, 0.29, -9.0)
    rows = [(run, s, gain * (run == "b") + s / 10, int(gain < 0 and run == "b"))
            for s, gain in enumerate(gains) for run in "ab"]  # fmt: skip
    path = write(tmp_path / "x.csv", rows, "run,seed,value,collapsed")
    (one,) = compared(path)["comparisons"]
    assert one["verdict"] == "different" and one["effect"] == pytest.approx(0.3014, abs=1e-4)
    assert "mean of runs that do not collapse" in one["sentence"] and "N=7 of 8 seeds" in one["sentence"]
    assert "a 0 of 8 (at most 31 %), b 1 of 8 (at most 47 %)" in one["sentence"]
    bare = write(tmp_path / "y.csv", [row[:3] for row in rows], "run,seed,value")
    assert compared(bare)["comparisons"][0]["verdict"] == "inconclusive"


def test_unseen_collapses_let_a_bare_file_suggest_at_most(tmp_path: Path) -> None:
    # mean difference 0, as one run of seven falls by 20: in a third of studies with six seeds none falls
    rng = np.random.default_rng(0)
    for study in range(10):
        fell = rng.random(6) < 0.15
        gains = rng.normal(3, 1, 6) - 20 * fell
        rows = [(run, s, gain * (run == "b")) for s, gain in enumerate(gains) for run in "ab"]
        (one,) = compared(write(tmp_path / f"{study}.csv", rows, "run,seed,value"))["comparisons"]
        assert one["verdict"] in ("suggestive", "inconclusive") and "above" not in one["sentence"], one["sentence"]


def test_arms_steps_and_tasks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (name, seed, task, step, round(0.1 * step + gain + 0.1 * t + rng.normal(0, 0.02), 4), "no")
        for name, gain in (("a", 0.0), ("b", 0.3), ("c", 0.0)) for seed in range(6) for t, task in enumerate("xyz")
        for step in range(1, 21)
    ]  # fmt: skip
    path = write(tmp_path / "many.csv", rows, "run,seed,task,step,value,collapsed")
    found = compared(path, "--metric", "last10", "--margin", "0.1")
    first, second = found["comparisons"]
    assert first["verdict"] == "different" and "value:last10, mean of 3 tasks" in first["sentence"]
    assert first["sentence"].count("also for new tasks") == 1 and first["effect"] == pytest.approx(0.3, abs=0.02)
    assert second["verdict"] == "equal" and first["p_holm"] is not None
    assert found["runs"][0]["mean"]["value"] == pytest.approx(2.05, abs=0.02)  # steps 19 and 20, tasks 0 to 0.2
    area = compared(path, "--metric", "area@steps", "--treatment", "b")
    assert area["runs"][0]["mean"]["value"] == pytest.approx(1.15, abs=0.02) and len(area["comparisons"]) == 1
    assert "Performance profile" in run(path, "--metric", "last10").stdout


def test_profiles_fall_from_one_to_zero() -> None:
    cells = profile({"a": np.array([[0.1, 0.5], [0.2, 0.6]]), "b": np.array([[0.5, 0.9], [0.6, 0.8]])})
    shares = {(round(c.tau, 3), c.run): c.share for c in cells}
    assert shares[0.1, "a"] == 0.75 and shares[0.9, "a"] == shares[0.9, "b"] == 0 and shares[0.1, "b"] == 1
    assert all(c.ci is not None and 0 <= c.ci[0] <= c.share <= c.ci[1] <= 1 for c in cells)


def test_fast_is_told_from_good(tmp_path: Path) -> None:
    rng, steps = np.random.default_rng(0), np.arange(1, 61)
    rows = [
        (name, seed, step, round(0.4 + (end - 0.4) / (1 + (half / step) ** 2) + rng.normal(0, 0.01), 4))
        for name, end, half in (("fast", 0.7, 6), ("good", 0.8, 15), ("early", 2.0, 400)) for seed in range(5)
        for step in steps
    ]  # fmt: skip
    path = write(tmp_path / "curves.csv", rows, "run,seed,step,value")
    fast, good, early = compared(path, "--metric", "last10")["learning_curves"]
    for found, end, half in ((fast, 0.7, 6), (good, 0.8, 15)):
        assert found["fitted"] == 5 and found["asymptote"]["value"] == pytest.approx(end, abs=0.02)
        assert found["asymptote"]["ci"][0] <= end <= found["asymptote"]["ci"][1]
        assert found["half"]["value"] == pytest.approx(half, rel=0.15)
    assert early["fitted"] < 5  # it has not bent: its asymptote would be an extrapolation
    assert fit_sigmoid(steps[:9].astype(float), steps[:9] / 9) is None
    assert fit_sigmoid(steps.astype(float), np.ones(60)) is None


BAD = {
    "no column 'value'": ("run,seed\na,0\n", "run, seed"),
    "line 2: value 'nan'": ("run,seed,value\na,0,nan\n", "finite"),
    "line 2: collapsed 'maybe'": ("run,seed,value,collapsed\na,0,1,maybe\n", "boolean"),
    "line 3: seed 'x'": ("run,seed,value\na,0,1\na,x,1\n", "whole number"),
    "line 3: a second value": ("run,seed,value\na,0,1\na,0,2\n", "one value"),
    "has no value of task 'y'": ("run,seed,task,value\na,0,x,1\na,0,y,1\nb,0,x,1\n", "another number"),
    "nothing to compare": ("run,seed,value\na,0,1\n", "it has a"),
    "has no column 'run'": ("run;seed;value\na;0;1\n", "run;seed;value"),
    "line 2: more cells than": ("run,seed,value\na,0,0,5\nb,0,0,7\n", "a decimal comma splits a number"),
    "line 2: value '1_000'": ("run,seed,value\na,0,1_000\n", "no underscore"),
    "largest value is 1e+308": ("run,seed,value\na,0,1\nb,0,-1e308\n", "values from 1e-09 to 1e+90"),
    "cannot read": (f"run,seed,value\n{'a' * 140_000},0,1\n", "field larger than field limit"),
    "do not have the same seeds": ("run,seed,value\na,0,1\na,1,1\nb,0,1\n", "seed 1"),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_is_refused_in_three_parts(message: str, tmp_path: Path) -> None:
    text, why = BAD[message]
    (tmp_path / "bad.csv").write_text(text)
    done = run(tmp_path / "bad.csv")
    assert done.exit_code == 2 and message in done.stderr and why in done.stderr.replace("\n", " ")


def test_names_with_line_breaks_and_unusual_spaces_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes('\ufeffrun,seed,value\r\n"a\nb",0,1\r\nab,0,2\r\na\u2028b,0,3\r\n'.encode())
    assert list(read_scores(path).scores) == ["a\nb", "ab", "a\u2028b"]


def test_areas_cover_the_steps_of_all_runs(tmp_path: Path) -> None:
    """One curve, logged from another step on: a run that starts late used to be ahead for it."""
    rows = [(name, 0, step, step) for name, first in (("a", 0), ("b", 50), ("c", 100)) for step in range(first, 101, 5)]
    found = read_scores(write(tmp_path / "late.csv", rows, "run,seed,step,value"), "area@steps").scores
    assert [found[name][0].tolist() for name in "abc"] == [[100.0]] * 3
    found = read_scores(write(tmp_path / "late.csv", rows[:-1], "run,seed,step,value"), "area@steps").scores
    assert found["a"][0] == found["b"][0] == pytest.approx(75)


def test_steps_may_be_tokens_and_end_apart(tmp_path: Path) -> None:
    rows = [(name, seed, step, seed + step / end) for name, end in (("a", 4 * 10**11), ("b", 10**9))
            for seed in range(3) for step in (0, end)]  # fmt: skip
    path = write(tmp_path / "tokens.csv", rows, "run,seed,step,value")
    (one,) = compared(path, "--metric", "last10")["comparisons"]
    assert one["effect"] == 0 and "6 a claim" not in one["sentence"]  # no column says which runs collapsed
    rows += [(name, seed, end, seed * seed) for name, end in (("a", 4 * 10**11), ("b", 10**9)) for seed in range(3, 8)]
    path = write(tmp_path / "tokens.csv", rows, "run,seed,step,value")
    (one,) = compared(path, "--seeds", "0-6")["comparisons"]
    assert one["sentence"].startswith("Exploratory (seeds 7 left out):")
    assert "end at different steps (a 400000000000, b 1000000000)" in compared(path)["comparisons"][0]["sentence"]


def test_an_empty_column_does_not_say_that_no_run_collapsed(tmp_path: Path) -> None:
    rows = [(name, seed, gain + seed * seed / 90, "") for name, gain in (("a", 0), ("b", 5)) for seed in range(6)]
    path = write(tmp_path / "empty.csv", rows, "run,seed,value,collapsed")
    assert read_scores(path).collapsed is None and read_scores(path).last_steps["a"] == dict.fromkeys(range(6), 0)


def test_what_the_file_leaves_open_is_not_guessed(tmp_path: Path) -> None:
    rows = [(name, seed, gain + seed * seed / 90, "" if name == "b" else 0)
            for name, gain in (("a", 0), ("b", 5)) for seed in range(6)]  # fmt: skip
    partly = write(tmp_path / "partly.csv", rows, "run,seed,value,collapsed")
    assert "not of run b, seed 0" in refusal(read_scores, partly)
    open_quote = tmp_path / "quote.csv"
    open_quote.write_text('run,seed,value,note\na,0,1,x\nb,0,2,"crashed\na,1,1,x\nb,1,2,x\n')
    assert "a quote that opens must close" in refusal(read_scores, open_quote)


def test_a_seed_or_step_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "ok.csv", [("a", 0, 1), ("b", 0, 2)], "run,seed,value")
    assert "--seeds 1,2: no run has it" in run(path, "--seeds", "0-2").stderr
    path = write(tmp_path / "step.csv", [("a", 0, 1, 10), ("a", 0, 2, "")], "run,seed,value,step")
    assert "line 3: no step" in refusal(read_scores, path)


def test_differences_that_only_rounding_tells_apart_are_equal(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bases = rng.uniform(1e5, 1e6, 8)
    rows = [(run, seed, float(base) + 0.1 * (run == "b"), 0) for seed, base in enumerate(bases) for run in "ab"]
    (one,) = compared(write(tmp_path / "large.csv", rows, "run,seed,value,collapsed"))["comparisons"]
    assert one["verdict"] == "inconclusive" and "all seed differences are equal" in one["sentence"]


def test_options_of_a_study_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "ok.csv", [("a", 0, 1), ("b", 0, 2)], "run,seed,value")
    for options in ("--allow code", "--require better", "--metric reward/mean:last10", "--baseline c"):
        assert run(path, *options.split()).exit_code == 2
    assert run(tmp_path / "none.csv").exit_code == run(tmp_path).exit_code == 2


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    for name in ("pipe.csv", "huge.csv"):
        assert "cannot read" in refusal(read_scores, tmp_path / name)
