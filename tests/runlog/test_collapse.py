"""The collapse rule: the last tenth against the best tenth."""

from __future__ import annotations

from gspo_cli.runlog.collapse import collapsed_at, has_collapsed, window_of


def test_a_tenth_of_the_plan() -> None:
    assert [window_of(n) for n in (1, 5, 9, 10, 11, 20, 25, 60, 100)] == [1, 1, 1, 1, 2, 2, 3, 6, 10]
    # the steps above 0.9 x planned, as `last10` takes them
    assert all(window_of(n) == sum(10 * step > 9 * n for step in range(1, n + 1)) for n in range(1, 300))


def test_half_of_the_best_and_a_tenth_lower() -> None:
    assert has_collapsed([0.5, 0.5, 0.6, 0.6, 0.2, 0.2], 2)  # 0.2 < 0.3 and 0.4 lower
    assert not has_collapsed([0.5, 0.5, 0.6, 0.6, 0.3, 0.3], 2)  # exactly half is not below half
    assert not has_collapsed([0.15, 0.15, 0.06, 0.06], 2)  # 0.09 lower only
    assert has_collapsed([0.25, 0.25, 0.125, 0.1], 2)
    assert has_collapsed([0.4, 0.1], 1) and not has_collapsed([0.1, 0.4], 1)
    assert not has_collapsed([0.6, 0.6, 0.1, 0.1, 0.5, 0.5], 2)  # it came back
    assert not has_collapsed([0.9], 2) and not has_collapsed([], 1)


def test_the_recipe_fixes_the_thresholds() -> None:
    rewards = [0.6, 0.6, 0.4, 0.4]
    assert not has_collapsed(rewards, 2)
    assert has_collapsed(rewards, 2, below=0.7)
    assert not has_collapsed(rewards, 2, below=0.7, least=0.3)


def test_online_it_is_told_when_it_happens() -> None:
    rewards = [0.6] * 10 + [0.1] * 5
    assert collapsed_at(rewards, 2) == 12  # at 11 the window's mean is 0.35
    asked = [has_collapsed(rewards[:n], 2) for n in range(len(rewards) + 1)]
    assert asked.index(True) == 12
    assert collapsed_at([0.6] * 10, 2) is None
    # a dip that recovers happened, but is no collapsed run
    dip = [0.6] * 5 + [0.1] * 5 + [0.6] * 5
    assert collapsed_at(dip, 2) == 7 and not has_collapsed(dip, 2)


def test_long_runs_are_quick() -> None:
    assert collapsed_at([0.5] * 100_000, 10_000) is None
