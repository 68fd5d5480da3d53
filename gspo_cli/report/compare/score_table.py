"""The runs of a csv of scores compared by the rules of a study, with the tables that the field expects.

S = seeds, J = tasks; a_SJ = one run's scores. The unit is the seed: one trained model answers all tasks, so tasks are
never resampled apart from their seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from pydantic_core import to_jsonable_python

from gspo_cli.errors import GspoError
from gspo_cli.report.compare.learning_curves import LearningCurve, learning_curve
from gspo_cli.report.compare.result import Table, Tested, adjust, to_json
from gspo_cli.report.compare.score_file import ScoreFile
from gspo_cli.report.compare.scores import Scores, difference_stats
from gspo_cli.report.compare.study import ComparisonRequest, refuse_absent, treatments
from gspo_cli.report.compare.verdict import Collapses, Interval, Wording, count_collapses
from gspo_cli.stats import problems, robust
from gspo_cli.stats.paired import is_flat, paired_t
from gspo_cli.stats.problems import Array
from gspo_cli.stats.robust import Summary

UNKNOWN = "Start, data, budget and tuning are not in the file, so no run is called better."
NO_COLUMN = "the file does not say which runs collapsed (column collapsed: 0 or 1), and unseen ones could turn the sign"
"""Without it, 45 % of studies whose means over all runs agree would be told apart (5 % of runs collapse, 12 seeds)."""
NOT_SAID = "evaluations do not say which training runs collapsed"
PROFILE_POINTS = 11


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The mean difference on one task, over seeds."""

    task: str
    difference: float
    ci: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRuns(Tested):
    """Two runs of the file."""

    per_task: list[TaskRow]
    improvement_tasks: Summary
    """The probability that the treatment is above the baseline on a task, the mean over tasks (ties count half)."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run over its seeds."""

    run: str
    n: int
    mean: Summary
    median: Summary
    iqm: Summary


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """A point of a run's performance profile."""

    tau: float
    run: str
    share: float
    ci: Interval | None


@dataclass(frozen=True, slots=True)
class FileComparison:
    """A whole file."""

    file: str
    sha256: str
    tasks: int
    form: str
    comparisons: list[OfRuns]
    runs: list[RunSummary]
    profile: list[ProfilePoint]
    learning_curves: list[LearningCurve]

    def to_json(self) -> Table:
        """Plain values; the fields are the keys."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        plain: Table = to_jsonable_python(own | {"comparisons": [to_json(one) for one in self.comparisons]})
        return plain


def compare_scores(file: ScoreFile, request: ComparisonRequest, form: str) -> FileComparison:
    """Every run against the baseline: the same tests and sentences as for a study, all comparisons one Holm family;
    then each run's summaries and the performance profiles.

    Errors: GspoError for a run that the file lacks, or fewer than two.
    """
    refuse_absent(request.seeds, {seed for by_seed in file.scores.values() for seed in by_seed}, "file")
    names = list(file.scores)
    baseline = request.baseline or next((run for run in names if run != request.treatment), names[0])
    first = request.treatment or next((run for run in names if run != baseline), baseline)
    others = treatments(names, str(file.path), baseline, first, only=request.treatment is not None)
    number = file.number if form == "last" else f"{file.number}:{form}"
    number += f", mean of {len(file.tasks)} {file.each}s" if len(file.tasks) > 1 else ""
    rows = [_compare_runs(file, baseline, name, request, number) for name in others]
    rows = adjust(rows) if len(rows) > 1 else rows
    shown = {
        run: np.stack(list(by_seed.values())) for run, by_seed in file.scores.items() if run in (baseline, *others)
    }
    return FileComparison(
        file.path.name, file.sha256, len(file.tasks), form, rows, [_summary(*run) for run in shown.items()],
        profile(shown), [learning_curve(run, file.curves[run]) for run in shown if run in file.curves],
    )  # fmt: skip


def _compare_runs(file: ScoreFile, baseline: str, treatment: str, request: ComparisonRequest, number: str) -> OfRuns:
    seeds, a_SJ, b_SJ = _paired(file, baseline, treatment, request.seeds)
    left_out = sorted((file.scores[baseline].keys() & file.scores[treatment].keys()) - set(seeds))
    fallen, cube = _collapses(file, baseline, treatment, seeds), (a_SJ, b_SJ) if len(file.tasks) > 1 else None
    scores = Scores(a_SJ.mean(axis=1), b_SJ.mean(axis=1), cube)
    stats = difference_stats(scores, request.margin, fallen.among(seeds) if fallen else None)
    evidence = stats.evidence(fallen)
    if fallen is None:
        evidence = replace(evidence, collapses_unknown=True, unequal=NO_COLUMN if file.each == "task" else NOT_SAID)
    wording = Wording(
        baseline, treatment, number, "", "", False, "units", "neither", problem=file.each,
        conditions=_conditions(file, baseline, treatment, seeds),
        why_exploratory=f"seeds {', '.join(map(str, left_out))} left out" if left_out else "",
    )  # fmt: skip
    return OfRuns(
        metric=number, baseline=baseline, treatment=treatment, seeds=seeds, stats=stats, evidence=evidence,
        wording=wording,
        per_task=_by_task(file.tasks, a_SJ, b_SJ), improvement_tasks=_share((b_SJ > a_SJ) + (b_SJ == a_SJ) / 2),
    )  # fmt: skip


def _paired(
    file: ScoreFile, baseline: str, treatment: str, seeds: Sequence[int] | None
) -> tuple[list[int], Array, Array]:
    """(seeds of both runs, their scores [S, J] each)."""
    left, right = (
        {seed: scores for seed, scores in file.scores[run].items() if seeds is None or seed in seeds}
        for run in (baseline, treatment)
    )
    both, single = sorted(left.keys() & right.keys()), sorted(left.keys() ^ right.keys())
    if single or not both:
        raise GspoError(
            f"{file.path}: {baseline} and {treatment} do not have the same seeds",
            f"only one of them has seed {', '.join(map(str, single))}" if single else "they have none in common",
            "complete the pairs, or name the seeds that both have with --seeds",
        )
    return both, np.stack([left[s] for s in both]), np.stack([right[s] for s in both])


def _conditions(file: ScoreFile, baseline: str, treatment: str, seeds: list[int]) -> str:
    """What a file cannot show, and steps that it shows to differ within a pair."""
    last = {run: file.last_steps[run] for run in (baseline, treatment)}
    if all(last[baseline][seed] == last[treatment][seed] for seed in seeds):
        return UNKNOWN
    ends = {run: sorted({steps[seed] for seed in seeds}) for run, steps in last.items()}
    texts = [f"{run} {found[0]}" + (f" to {found[-1]}" if len(found) > 1 else "") for run, found in ends.items()]
    return f"The runs of a pair end at different steps ({', '.join(texts)}). {UNKNOWN}"


def _collapses(file: ScoreFile, baseline: str, treatment: str, seeds: list[int]) -> Collapses | None:
    """The collapsed runs of the pairs, as the file says; None if it does not."""
    if file.collapsed is None:
        return None
    a, b = (sorted(file.collapsed[run] & set(seeds)) for run in (baseline, treatment))
    return count_collapses(a, b, len(seeds))


def _by_task(tasks: list[str], a_SJ: Array, b_SJ: Array) -> list[TaskRow]:
    """The mean difference on each task with its interval over seeds; not adjusted for the number of tasks."""
    d_SJ, largest = b_SJ - a_SJ, float(np.abs([a_SJ, b_SJ]).max())
    return [
        TaskRow(task, float(d_S.mean()), None if is_flat(d_S, largest) else paired_t(d_S).ci)
        for task, d_S in zip(tasks, d_SJ.T, strict=True)
    ]


def _share(shares_SJ: Array) -> Summary:
    """The mean of shares with its 95 % interval, within [0, 1]: over seeds; with a single seed over tasks."""
    shares = shares_SJ.mean(axis=1) if len(shares_SJ) > 1 else shares_SJ[0]
    mean = float(shares.mean())
    return Summary(mean, problems.interval(mean, problems.clustered_error(shares.tolist()), len(shares)))


def _summary(run: str, scores_SJ: Array) -> RunSummary:
    """One run's mean, median and interquartile mean over seeds, of the mean over tasks."""
    score_S = scores_SJ.mean(axis=1)
    mean = Summary(float(score_S.mean()), None if is_flat(score_S) else paired_t(score_S).ci)
    return RunSummary(run, len(score_S), mean, robust.median(score_S), robust.interquartile_mean(score_S))


def profile(scores: dict[str, Array]) -> list[ProfilePoint]:
    """Performance profiles: the share of tasks on which a run's score is above tau, the mean over seeds.

    tau runs over the deciles of all scores. The interval is that of `_share`, pointwise.
    """
    values = np.concatenate([s.ravel() for s in scores.values()])
    taus = np.unique(np.quantile(values, np.linspace(0, 1, PROFILE_POINTS))).tolist()
    shares = [(tau, run, _share((scores_SJ > tau).astype(float))) for tau in taus for run, scores_SJ in scores.items()]
    return [ProfilePoint(tau, run, share.value, share.ci) for tau, run, share in shares]
