"""Ratings: CodeElo's formula against recorded results, a search without bisection, and simulated participants."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from program import Gspo

from gspo_cli.evals.benchmarks.elo import (
    Contest,
    estimate_rating,
    mean_rating,
    rank_of,
    rate,
    rating_at,
    score_of,
    solve_probability,
)


def contest(points: dict[str, float | None], ratings: list[int]) -> Contest:
    """Standings in which participant i has 10 points more than the next and no penalty."""
    rows = [(10.0 * (len(ratings) - i), 0.0, rating) for i, rating in enumerate(ratings)]
    return Contest("7", points, rows)


def test_all_recorded_cases(gspo_here: Gspo, shared_data: Path) -> None:
    path = shared_data / "elo_contests.json"
    done = gspo_here(
        "eval", "elo", "--contests", path, "--submissions", path, "--ratings", shared_data / "cf_ratings_2024.json",
        "--json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    found = [json.loads(line) for line in done.out.splitlines()]
    keys = ("contest", "rating", "score", "penalty", "rank", "percentile")
    assert [tuple(line[k] for k in keys) for line in found] == [
        (c["contest"], c["expected_rating"], *official(c), c["percentile_2024"]) for c in cases
    ]
    assert len(cases) == 30


def official(case: dict[str, str]) -> tuple[float, float, int]:
    """From `Score: 4, Penalty: 40` and `Rank: 135`."""
    score, penalty, rank = re.findall(r"\d+", case["official_score"] + case["official_rank"])
    return float(score), float(penalty), int(rank)


def test_a_score_by_hand() -> None:
    """A at the third attempt: 500 - 100; B never; C (without points) at the second: 1 point, penalty 10."""
    played = {"A": [False, False, True], "B": [False] * 8, "C": [False, True, True]}
    assert score_of(contest({"A": 500.0, "B": 900.0, "C": None}, [1]), played) == (401.0, 10.0)
    assert score_of(contest({"A": 60.0}, [1]), {"A": [False, False, True]}) == (0.0, 0.0)  # never below 0
    assert score_of(contest({"A": 500.0}, [1]), {"A": [False] * 8 + [True]}) == (0.0, 0.0)  # the ninth is none


def test_a_place_by_hand() -> None:
    rows = [(30.0, 5.0, 1), (20.0, 5.0, 1), (20.0, 9.0, 1), (0.0, 0.0, 1)]
    standing = Contest("7", {"A": None}, rows)
    given = [(31, 0), (30, 5), (20, 6), (20, 9), (1, 0), (0, 0)]
    assert [rank_of(standing, *map(float, g)) for g in given] == [0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize("seed", range(3))
def test_the_rating_is_where_the_expected_place_turns(seed: int) -> None:
    """Found here by trying every whole number from below."""
    rng = random.Random(seed)
    ratings = [round(rng.gauss(1400, 400)) for _ in range(300)]

    best = max(ratings) + 100
    places = [1 + math.fsum(1 / (1 + 10 ** ((rating - r) / 400)) for r in ratings) for rating in range(best)]
    for rank in (2, 5, 40, 150, 290):
        turn = next((rating for rating, place in enumerate(places) if place < rank), best)
        assert rating_at(rank, ratings) == max(turn - 1, 0)


def test_few_participants_are_no_contest_and_the_cap_is_counted() -> None:
    small, large = contest({"A": 1e9}, [1500] * 200), contest({"A": 1e9}, [1500] * 201)
    results = [rate(small, {"A": [True]}), rate(large, {"A": [True]}), rate(large, {"A": [False]})]
    assert [r.rating for r in results[:2]] == [None, 1599] and "at least 201" in results[0].reason
    assert (results[1].at_cap, results[2].at_cap, results[2].rank) == (True, False, 201)
    mean = mean_rating(results)
    assert (mean["contests"], mean["skipped"], mean["at_cap"]) == (2, 1, 1)
    assert mean_rating([])["elo"] is None


@pytest.mark.parametrize("theta", [900, 2300])
def test_the_estimate_recovers_known_ratings(theta: int) -> None:
    """200 simulated participants of 60 problems, 4 samples each: 95 % lie within two standard errors. The error is
    that of one sample a problem, so it is cautious for four."""
    rng = random.Random(theta)
    inside, total = 0, 0.0
    for _ in range(200):
        problems = [rng.uniform(max(800, theta - 700), theta + 700) for _ in range(60)]
        outcomes = [(d, sum(rng.random() < solve_probability(theta, d) for _ in range(4)) / 4) for d in problems]
        found = estimate_rating(outcomes)
        inside += abs(found.problem_rating - theta) <= 2 * found.standard_error
        total += found.problem_rating
    assert inside >= 190
    assert abs(total / 200 - theta) < 25


def test_the_estimate_is_finite_for_all_and_none() -> None:
    best, worst, empty = (estimate_rating(o) for o in ([(3000, 1.0)] * 50, [(800, 0.0)] * 50, []))
    assert math.isfinite(best.problem_rating) and best.problem_rating > 3000 and best.all_solved
    assert math.isfinite(worst.problem_rating) and worst.problem_rating < 800 and worst.none_solved
    assert empty.problem_rating == pytest.approx(1500) and empty.standard_error == pytest.approx(500)
    assert not empty.all_solved and not empty.none_solved


def test_the_standard_error_by_hand() -> None:
    """One problem at the estimate: P = 1/2, I = (ln 10 / 400)^2 / 4 + 1 / 500^2."""
    found = estimate_rating([(1500, 0.5)])
    assert found.problem_rating == pytest.approx(1500)
    assert found.standard_error == pytest.approx(((math.log(10) / 400) ** 2 / 4 + 1 / 500**2) ** -0.5)


GOOD = {"7": {"name": "a", "problems": [{"index": "A", "points": None}], "rows": [[0, 0, 1500]] * 201}}
PLAYED = [{"contest": 7, "problem_status": {"7A": ["AC"]}}]


def run(gspo_here: Gspo, folder: Path, contests: Any, played: Any, *more: str | Path) -> Any:
    (folder / "c.json").write_text(contests if isinstance(contests, str) else json.dumps(contests))
    (folder / "s.json").write_text(played if isinstance(played, str) else json.dumps(played))
    return gspo_here("eval", "elo", "--contests", folder / "c.json", "--submissions", folder / "s.json", *more)


def test_acceptance_is_written_in_several_ways(gspo_here: Gspo, tmp_path: Path) -> None:
    played = [{"contest": 7, "problem_status": {"A": [word]}} for word in ("AC", "OK", "Accepted", "WA")]
    scores = [json.loads(line)["score"] for line in run(gspo_here, tmp_path, GOOD, played, "--json").out.splitlines()]
    assert scores == [1, 1, 1, 0]


@pytest.mark.parametrize("users", [-5, 2.7, True])
def test_a_number_of_users_is_a_whole_number(gspo_here: Gspo, tmp_path: Path, users: float) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"1000": users}))
    said = run(gspo_here, tmp_path, GOOD, PLAYED, "--ratings", tmp_path / "r.json")
    assert said.code == 2 and "is not a rating table" in said.err


def test_standings_need_no_order(gspo_here: Gspo, tmp_path: Path) -> None:
    rows = [[500.0 - i, 0, 2000 - i] for i in range(201)]
    tables = [{"7": GOOD["7"] | {"problems": [{"index": "A", "points": 400}], "rows": r}} for r in (rows, rows[::-1])]
    first, second = (run(gspo_here, tmp_path, table, PLAYED, "--json").out for table in tables)
    assert first == second and json.loads(first)["rank"] == 101


@pytest.mark.parametrize(
    ("contests", "played", "words"),
    [
        ("{", PLAYED, "is not JSON"),
        ("[]", PLAYED, "holds no contests"),
        ({"7": {"name": "a", "problems": [], "rows": []}}, PLAYED, "7.problems: List should have at least 1"),
        ({"7": GOOD["7"] | {"rows": [[1, 0, "x"]]}}, PLAYED, "7.rows.0.2"),
        ({"7": GOOD["7"] | {"problems": [{"index": "A", "points": None}] * 2}}, PLAYED, "a problem of contest 7"),
        (GOOD, [{"contest": 7, "problem_status": {"7A": ["AC"], "A": ["WA"]}}], "two lists of attempts at problem A"),
        (GOOD, [], "no submissions"),
        (GOOD, [{"contest": 8, "problem_status": {}}], "names contest 8"),
        (GOOD, [{"contest": 7, "problem_status": {"7B": []}}], "no problem '7B'"),
        (GOOD, [{"contest": 7, "problem_status": {"7A": "AC"}}], "0.problem_status.7A: Input should be a valid list"),
    ],
)
def test_bad_files(gspo_here: Gspo, tmp_path: Path, contests: Any, played: Any, words: str) -> None:
    done = run(gspo_here, tmp_path, contests, played, "--json")
    assert (done.code, done.out) == (2, "")
    said = json.loads(done.err)
    assert words in said["error"] + said["why"] and said["do"]
