"""One score per run, the statistics of two arms' scores, collapsed runs, and the best of several tuning trials.

S = seeds, J = problems, T = steps
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from gspo_cli.config import CollapseRule
from gspo_cli.report.compare.verdict import Collapses, Evidence, Sides, count_collapses
from gspo_cli.report.runs.curves import GROUP_SPREAD, SPREAD
from gspo_cli.report.runs.facts import conditions_of
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.metric_spec import REWARD, BenchmarkMetric, MetricSpec, better_of, parse_metric, unit_of
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord, load_records
from gspo_cli.runlog.collapse import ROUNDING, BatchReward, batch_reward, collapse_window, has_collapsed
from gspo_cli.stats import paired, problems, robust
from gspo_cli.stats.curves import apart_from, area_mean, last_mean, max_t
from gspo_cli.stats.paired import FEWEST, PairedT, SignFlip
from gspo_cli.stats.problems import Array, NoiseSplit, TwoWay
from gspo_cli.stats.robust import Summary

DEFAULT_MARGIN = 2.0
"""Points, for metrics within [0, 1]; no other unit has a default."""


BEGINNING = 3
"""Rollout batches that say where a run began: one is noisy, and later ones have learned."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a pair of arms."""

    baseline_S: Array
    treatment_S: Array
    cube: tuple[Array, Array] | None = None
    """Also by problem, both [S, J], where answers are stored."""
    k: int | None = None
    """Samples per problem of an avg@k."""
    points: bool = False
    """Whether differences are reported in points: fixed by schema and recipe, never by the values."""
    contests_J: Array | None = None
    """The problems' contests, where they come from contests."""
    unit_known: bool = True
    """False for a reward of the user's own without `report.unit`: its margin has no unit either."""


@dataclass(frozen=True, slots=True)
class DifferenceStats:
    """The statistics of the differences, treatment minus baseline.

    All but `D_S`, `kept_S`, `median` and `improvement` are of the pairs in which neither run collapsed: no test about
    the overall mean holds at six seeds if one run in six may collapse.
    """

    scores: Scores
    D_S: Array
    """Of all pairs."""
    kept_S: Array
    """Which pairs have no collapsed run: bool."""
    t: PairedT | None
    """None with one seed or equal differences; so are the next four."""
    flip: SignFlip | None
    p_equal: float | None
    """Also None without a margin."""
    mde: float | None
    seeds_needed: int | None
    two_way: TwoWay | None
    noise: NoiseSplit | None
    over_problems: tuple[float, float] | None
    """With one seed."""
    correlation: float | None
    """Of the two arms over seeds: the higher above 0, the more pairing gains."""
    margin: float | None
    median: Summary
    """Of all pairs."""
    iqm: Summary
    """Of the pairs without a collapse: trimming removes collapses only up to a quarter of all pairs."""
    improvement: Summary
    """Of all pairs."""
    looks: int = 1
    """Planned looks at the study; each has its share of the 5 %."""

    @property
    def effect(self) -> float:
        """The mean difference of the pairs without a collapse; of all pairs if there is none."""
        return float((self.D_S[self.kept_S] if self.kept_S.any() else self.D_S).mean())

    def evidence(
        self, collapses: Collapses | None = None, below: Sides[list[int]] | None = None, unequal: str = ""
    ) -> Evidence:
        """What the verdict depends on; p-values are adjusted for the number of planned looks."""
        n, t, looks = int(self.kept_S.sum()), self.t, self.looks
        return Evidence(
            n,
            self.effect,
            len(self.D_S),
            collapses,
            below,
            all_runs=self._holds_for_all_runs(collapses),
            unequal=unequal,
            flat=t is None and n > 1,
            ci=t.ci if t else None,
            ci_equal=t.ci_equal if t else None,
            p_t=min(1.0, looks * t.p_mean) if t else None,
            p_exact=min(1.0, looks * self.flip.p) if self.flip else None,
            p_equal=None if self.p_equal is None else min(1.0, looks * self.p_equal),
            new_problems=self.two_way.ci if self.two_way else self.over_problems,
            margin=self.margin,
            mde=self.mde,
            seeds_needed=self.seeds_needed,
        )

    def _holds_for_all_runs(self, collapses: Collapses | None) -> bool:
        """Whether the arm that is ahead without collapses is ahead over all runs too: it collapsed no more often, and
        its lead outweighs every collapse that the counts still allow."""
        if collapses is None or self.t is None or not self.scores.points:
            return False
        ahead, more = self.effect > 0, len(collapses.treatment) - len(collapses.baseline)
        low = self.t.ci[0] if ahead else -self.t.ci[1]
        fewer = more <= 0 if ahead else more >= 0
        return fewer and robust.holds_for_all_runs(low, len(self.D_S), int((~self.kept_S).sum()))


def scores(pair: Pair, spec: MetricSpec) -> Scores:
    """The scores of a pair whose preconditions hold."""
    left, right = [pair.left[s] for s in pair.seeds], [pair.right[s] for s in pair.seeds]
    if isinstance(spec, BenchmarkMetric) and spec.kind == "elo":
        a_S, b_S = (np.array([r.answers.elo for r in side if r.answers], np.float64) for side in (left, right))
        return Scores(a_S, b_S)
    if isinstance(spec, BenchmarkMetric) and all(r.answers for r in (*left, *right)):
        a_SJ, b_SJ = (np.stack([r.answers.by_problem(spec) for r in side if r.answers]) for side in (left, right))
        k = spec.k if spec.kind == "avg" else None
        names = left[0].answers.contests if left[0].answers else None
        contests_J = None if names is None else np.array(names)
        return Scores(a_SJ.mean(axis=1), b_SJ.mean(axis=1), (a_SJ, b_SJ), k, True, contests_J)
    a_S, b_S = np.split(np.array(logged_scores([*left, *right], spec)), [len(left)])
    first = pair.records[0].facts
    # an imported reward has its own unit, and a margin only if it is named in that unit
    points = unit_of(spec) == "frac" if first.imported else in_points(spec, first.config_flat)
    return Scores(a_S, b_S, points=bool(points), unit_known=points is not None)


def in_points(spec: MetricSpec, config: dict[str, Any]) -> bool | None:
    """Whether differences of a metric are reported in points; None where neither schema nor recipe says so.

    A guess from the values would change the unit, and with it the meaning of the margin, with a single run.
    """
    if unit_of(spec) != "reward":
        return unit_of(spec) == "frac"
    if config.get("report.unit") is not None:
        return bool(config["report.unit"] == "points")
    own = ":" in str(config.get("task.name")) or config.get("task.reward") is not None or config.get("task.rewards")
    return None if own else True  # built-in rewards are 0 or 1


def logged_scores(records: list[RunRecord], spec: MetricSpec) -> list[float]:
    """Each run's score from its log; NaN where it has no value. A failed run keeps its last value to the end of the
    plan or the range; areas are over one `common_range`.
    """
    if isinstance(spec, BenchmarkMetric):
        logged = [r.curves.values[spec.metric].to_list() if r.curves else [] for r in records]
        return [float(values[-1]) if values else np.nan for values in logged]
    curves = [r.curves.xy(spec.metric, spec.budget) if r.curves else None for r in records]
    first, last = common_range(records, spec)

    def score(record: RunRecord, xy: tuple[Array, Array] | None) -> float:
        if xy is None:
            return np.nan
        if spec.axis:
            return area_mean(*xy, first, last)
        planned = record.facts.planned_steps
        return last_mean(*xy, planned, min(1.0, spec.batches / planned) if spec.batches else 0.1)

    return list(map(score, records, curves))


def common_range(records: list[RunRecord], spec: MetricSpec) -> tuple[float, float]:
    """The stretch of the metric's axis that all runs cover which reached their budget (all runs, if none did).

    It goes from the first step to the last at which any of them has a value, as far as all have lines: one that has no
    value at an end (it did not apply, or was not finite) shortens nothing. Where there is no such stretch, the second
    number is the smaller one.
    """
    logged = [(r.facts.status, r.curves) for r in records if r.curves and len(r.curves.values[spec.metric])]
    whole = [curves for status, curves in logged if status == "completed"] or [curves for _, curves in logged]
    if not whole:
        return 0.0, 0.0
    indices = [curves.values[spec.metric].index for curves in whole]
    begin = max(min(int(steps[0]) for steps in indices), *(curves.first_step for curves in whole))
    end = min(max(int(steps[-1]) for steps in indices), *(curves.num_steps for curves in whole))
    first_R, last_R = np.stack([curves.positions(pd.Index([begin, end]), spec.budget) for curves in whole]).T
    return float(np.nanmax(first_R, initial=-np.inf)), float(np.nanmin(last_R, initial=np.inf))


def difference_stats(
    scores: Scores, margin: float | None, collapsed_S: Array | None = None, looks: int = 1
) -> DifferenceStats:
    """All tests on the differences; `margin` as declared, in points where differences are reported in points.

    `collapsed_S` = the pairs with a collapsed run, which the tests leave out.
    """
    all_S = scores.treatment_S - scores.baseline_S
    kept_S = np.ones(len(all_S), dtype=bool) if collapsed_S is None or len(all_S) == 1 else ~collapsed_S
    D_S = all_S[kept_S]
    if not scores.unit_known:
        margin = None
    elif scores.points:
        margin = (DEFAULT_MARGIN if margin is None else margin) / 100
    largest = float(np.abs([scores.treatment_S, scores.baseline_S]).max())
    t = None if paired.is_flat(D_S, largest) else paired.paired_t(D_S, looks)
    cube = None if scores.cube is None else (scores.cube[0][kept_S], scores.cube[1][kept_S])
    sides = (scores.baseline_S[kept_S], scores.treatment_S[kept_S])
    constant = len(D_S) < 3 or any(paired.is_flat(side) for side in sides)
    return DifferenceStats(
        scores=scores,
        D_S=all_S,
        kept_S=kept_S,
        t=t,
        flip=paired.sign_flip(D_S) if t else None,
        p_equal=paired.p_equal(D_S, margin) if t and margin else None,
        mde=paired.rule_mde(t.sd, t.n) if t and looks == 1 else None,
        seeds_needed=paired.rule_seeds_needed(t.sd, margin) if t and margin and looks == 1 else None,
        two_way=problems.two_way(cube[1] - cube[0], scores.contests_J) if cube and t else None,
        noise=problems.noise_split(*cube, scores.k) if cube and scores.k and len(D_S) else None,
        over_problems=problems.over_problems((cube[1] - cube[0])[0]) if cube and len(D_S) == 1 else None,
        correlation=None if constant else float(np.corrcoef(*sides)[0, 1]),
        margin=margin,
        median=robust.median(all_S),
        iqm=robust.interquartile_mean(D_S if len(D_S) else all_S),
        improvement=robust.improvement(all_S),
        looks=looks,
    )


def curves_apart_from(pair: Pair, spec: MetricSpec) -> int | None:
    """The step from which the two arms' curves differ, at 5 % for all steps at once; None if there is none, for a
    benchmark, and with fewer seeds than an exact test needs."""
    if isinstance(spec, BenchmarkMetric) or len(pair.seeds) < FEWEST:
        return None
    sides = (pair.left, pair.right)
    both = [[r.curves.values[spec.metric] for s in pair.seeds if (r := side[s]).curves] for side in sides]
    steps = reduce(pd.Index.intersection, [curve.index for side in both for curve in side]).sort_values()
    if not len(steps):
        return None
    a_ST, b_ST = (np.stack([curve.loc[steps].to_numpy(np.float64) for curve in side]) for side in both)
    return apart_from(steps.to_numpy(), max_t(b_ST - a_ST))


def collapses(pair: Pair, rule: CollapseRule) -> Collapses | None:
    """The collapsed runs among the paired seeds; None where they are not known."""
    if not collapses_known(pair):
        return None
    left, right = ([s for s in pair.seeds if _has_collapsed(side[s], rule)] for side in (pair.left, pair.right))
    return count_collapses(left, right, len(pair.seeds))


def collapses_known(pair: Pair) -> bool:
    """Not for imported runs with rewards outside [0, 1], whose spread nothing bounds."""
    imported = [r.curves.values[REWARD] for r in pair.records if r.facts.imported and r.curves]
    return all(rewards.between(0, 1).all() for rewards in imported)


def below_start(pair: Pair) -> Sides[list[int]]:
    """Seeds of the paired runs, of each arm, that ended below where they began: the mean reward of the last tenth of
    the plan is below that of the first `BEGINNING` batches.

    The rule for a collapse needs a rise first, and a fall beyond noise; this only counts, and decides nothing.
    """
    return Sides(*([seed for seed in pair.seeds if _below_start(side[seed])] for side in (pair.left, pair.right)))


def _below_start(record: RunRecord) -> bool:
    if record.curves is None:
        return False
    mean = record.curves.values[REWARD].dropna()
    window = _window(record, len(mean))
    first = mean.iloc[: max(0, min(BEGINNING, len(mean) - window))]
    return bool(len(first) and first.mean() - mean.iloc[-window:].mean() > ROUNDING)


def _has_collapsed(record: RunRecord, rule: CollapseRule) -> bool:
    """Whether training stopped on values that are not finite, a mean reward is not, or the reward fell by the rule."""
    if record.not_finite:
        return True
    if record.curves is None:
        return False
    mean, config = record.curves.values[REWARD], record.facts.config_flat
    if record.facts.imported:
        return has_collapsed(_assumed_spread(mean.tolist()), _window(record, len(mean)), rule)
    spreads = (record.curves.values[name].reindex(mean.index) for name in (SPREAD, GROUP_SPREAD))
    columns = (mean.tolist(), *([None if x != x else x for x in column.tolist()] for column in spreads))
    prompts, samples = config.get("rollout.prompts"), config.get("rollout.samples")
    batches = (batch_reward(m, std, group_std, prompts, samples) for m, std, group_std in zip(*columns, strict=True))
    return has_collapsed(batches, collapse_window(record.facts.planned_steps), rule)


def _window(record: RunRecord, logged: int) -> int:
    """Rollout batches in a tenth of the plan; of those logged, where an imported run's steps count updates."""
    return collapse_window(max(1, logged) if record.facts.imported else record.facts.planned_steps)


def _assumed_spread(means: list[float]) -> Iterator[BatchReward]:
    """Batches of a run that logged only their means, within [0, 1]: as if every reward were 0 or 1, which is the widest
    spread that a mean allows. The error of a mean is that of the differences between neighbours, drift included."""
    error = float(np.sqrt(np.mean(np.square(np.diff(means))) / 2)) if len(means) > 1 else None
    return (BatchReward(mean, (mean * (1 - mean)) ** 0.5, error) for mean in means)


def choose(study: Study, metric: str, trials: dict[str, Any]) -> dict[str, Any]:
    """Arm -> its best tuning trial by the mean of `metric` over the seeds, with number of trials, seeds and cost.

    A failed run keeps its last value, as in a comparison; a trial without a value ranks last.
    """
    spec = parse_metric(metric)
    records = load_records(study, spec)
    runs = [(label, run) for label in trials for run in records.get(label, {}).values()]
    values: dict[str, list[float]] = defaultdict(list)
    for (label, _), value in zip(runs, logged_scores([run for _, run in runs], spec), strict=True):
        values[label].append(value)
    sign = -1.0 if better_of(spec) == "lower" else 1.0
    by_arm: dict[str, dict[str, float]] = {}
    for label, trial in trials.items():
        by_arm.setdefault(trial["arm"], {})[label] = float(np.mean(values[label])) if label in values else np.nan
    return {arm: _chosen(by_trial, sign, trials, records) for arm, by_trial in by_arm.items()}


def _chosen(by_trial: dict[str, float], sign: float, trials: dict[str, Any], records: Records) -> dict[str, Any]:
    ranked = sorted(by_trial, key=lambda label: (np.isnan(by_trial[label]), -sign * by_trial[label], label))
    runs = [r for label in ranked for r in records.get(label, {}).values()]
    cost = {axis: sum(r.curves.total(axis) or 0.0 for r in runs if r.curves) for axis in ("tokens", "seconds")}
    return {
        "trials": len(by_trial),
        "seeds": sorted({seed for label in by_trial for seed in records.get(label, {})}),
        "chosen": trials[ranked[0]]["chosen"],
        "gen_tokens": cost["tokens"],
        "seconds": round(cost["seconds"], 3),
        "study": runs[0].run.folder.parent.resolve().name if runs else None,
        "starts": sorted({str(r.facts.run_json.get("model_sha256")) for r in runs}),
        "conditions": conditions_of(runs[0].facts.config_flat) if runs else None,
        "scores": [
            {"trial": label, **trials[label]["chosen"], "score": None if np.isnan(by_trial[label]) else by_trial[label]}
            for label in ranked
        ],
    }
