"""The numbers of a comparison as text: statistics, costs, and what a reader must know beside them."""

from collections.abc import Sequence

from gspo_cli.config import Tuning
from gspo_cli.report.compare.result import ALL_PAIRS, Compared, Tested
from gspo_cli.report.compare.scores import BEGINNING
from gspo_cli.stats.paired import SignFlip, sd_range
from gspo_cli.stats.robust import Summary

BELOW_START = f"Ended below their start (last tenth below the first {BEGINNING} batches)"


def sensitivity_texts(result: Compared, all_pairs: bool = False) -> list[str]:
    """The verdict over other pairs, a line each; `all_pairs` = only that which counts what a collapse left out."""
    texts = []
    for one in (row for row in result.sensitivity if not all_pairs or row.pairs == ALL_PAIRS):
        ahead = result.treatment if (one.effect > 0) == (result.wording.better != "lower") else result.baseline
        verdict = f"{ahead} better" if one.verdict == "better" else one.verdict.replace("_", " ")
        effect = f"{value(result, one.effect, sign=True)} {result.wording.shown_unit} {interval(result, one.ci)}"
        texts.append(f"{one.pairs}: {effect}, N={one.n}: {verdict}.")
    return texts


def statistics(result: Tested) -> list[tuple[str, str]]:
    """(name, value) of the tests and their inputs."""
    stats, evidence = result.stats, result.evidence
    t, two, cube, contests_J = stats.t, stats.two_way, stats.scores.cube, stats.scores.contests_J
    plan = "n/a" if cube is None else f"{cube[0].shape[1]}, k = {stats.scores.k or 'n/a'}"
    plan += "" if contests_J is None else f", from {len(set(contests_J.tolist()))} contests"
    adjusted = "" if result.p_holm is None else f", adjusted (Holm) {_p(result.p_holm)}"
    tests = f"{_p(t.p)}, corrected for skewness {_p(t.p_skew)}{adjusted}" if t else f"n/a{adjusted}"
    return [
        ("seeds", f"{len(result.seeds)}: {', '.join(map(str, result.seeds))}"),
        ("pairs without a collapse", str(evidence.n)),
        ("problems", plan),
        ("mean difference", f"{value(result, evidence.effect, sign=True)} {result.wording.shown_unit}"),
        ("95 % interval", f"{interval(result, evidence.ci)} (over seeds, allowing for skewness)"),
        ("95 %, Student's t", interval(result, t.ci_t if t else None)),
        ("for new problems", f"{interval(result, two.ci)} (two-way clustered, df {two.df})" if two else "n/a"),
        ("p, paired t", tests),
        ("p, exact", _exact(stats.flip)),
        ("p, equal", f"{_p(stats.p_equal)} (margin {value(result, stats.margin)})"),
        ("standard deviation", f"{value(result, t.sd)}{_factors(sd_range(evidence.n))}" if t else "n/a"),
        ("noise between seeds", _noise(result)),
        ("correlation of the arms", "n/a" if stats.correlation is None else f"{stats.correlation:.2f}"),
        ("median, all pairs", _summary(result, stats.median)),
        ("interquartile mean", _summary(result, stats.iqm)),
        ("probability of improvement", _share(stats.improvement)),
        ("pairs for all runs", str(result.pairs_for_all_runs or "n/a")),
        ("curves apart from step", str(result.apart_from_step or "n/a")),
        ("detectable, 80 % power", value(result, stats.mde)),
        ("seeds to detect the margin", str(stats.seeds_needed or "n/a")),
    ]


def costs(result: Compared) -> list[tuple[str, str]]:
    """(name, value) of the runs' cost, their tuning, and how many collapsed."""
    spent, rows = result.budget, list[tuple[str, str]]()
    for axis, ratio in spent["ratios"].items():
        amounts = " and ".join(_count(amount) for amount in spent[axis].values())
        rows.append((f"{axis} a run", amounts + ("" if ratio is None else f", ratio {ratio:.3f}")))
    tuning = "; ".join(f"{arm}: {_tuned(own)}" for arm, own in result.tuning.items())
    fallen, sunk, num_pairs = result.collapses, result.below_start, len(result.seeds)
    counts = "n/a"
    if fallen:
        bounds = f"{100 * fallen.most.baseline:.0f} % and {100 * fallen.most.treatment:.0f} %"
        counts = f"{len(fallen.baseline)} and {len(fallen.treatment)} of {num_pairs} runs (at most {bounds}), "
        counts += f"p = {_p(fallen.p)} (exact McNemar)"
    below = f"{len(sunk.baseline)} and {len(sunk.treatment)} of {num_pairs} runs"
    return [
        *rows,
        ("tuning", tuning),
        ("collapsed", counts),
        ("ended below their start", f"{below} (last tenth below the first {BEGINNING} batches; left out of nothing)"),
    ]


def remarks(result: Compared) -> list[str]:
    """What a reader must know beside the numbers."""
    lines = [f"Failed, counted with its last valid value: {f['run']} ({f['reason']})." for f in result.failed]
    lines += [f"Invalidated, left out with its pair: {i['run']} ({i['reason']})." for i in result.invalidated]
    lines += [f"{text[0].upper()}{text[1:]}" for text in sensitivity_texts(result)]
    lines += [f"Waived, {w.check}: {w.what}: {w.baseline}; {w.treatment}." for w in result.waivers]
    for arm, seeds in result.all_seeds.items():
        if left := [str(seed) for seed in seeds if seed not in result.seeds]:
            lines.append(f"Left out of {arm}: seed {', '.join(left)}.")
    if result.ungraded_as_wrong:
        lines.append(f"{result.ungraded_as_wrong} answers without a verdict counted as wrong.")
    data = result.data
    revision = f"@{data['revision']}" if data["revision"] else ""
    if data["name"]:
        lines.append(f"Data: {data['name']}{revision}, sha256 {str(data['data_sha256'])[:16]}.")
    lines += [f"At the edge of its grid: {command}" for command in result.settings.wider]
    if shares := result.start_share:
        first = next(iter(shares.values()))
        texts = [
            f"{name} {100 * s.share:.0f} % [{100 * s.ci[0]:.0f}, {100 * s.ci[1]:.0f}]" for name, s in shares.items()
        ]
        of = f"{first.starts} starts, {first.seeds} seeds"
        lines.append(f"Share of the variance that comes from the start model ({of}): {', '.join(texts)}.")
    if result.wording.unit == "reward" and not result.stats.scores.unit_known:
        lines.append("The recipe does not say what a reward of 1 means (report.unit), so no margin applies.")
    if not result.declared and result.wording.recipe:
        lines.append("Not what the recipe declared before the runs: exploratory, and not kept.")
    return [*lines, *result.notes]


def value(result: Tested, number: float | None, sign: bool = False) -> str:
    """A value of the metric; x 100 where it is reported in points."""
    if number is None:
        return "n/a"
    return f"{result.wording.scale * number:{'+' if sign else ''}{'.2f' if result.wording.points else '.4g'}}"


def _summary(result: Tested, summary: Summary) -> str:
    between = f" {interval(result, summary.ci)}" if summary.ci else ""
    return value(result, summary.value, sign=True) + between


def _share(summary: Summary) -> str:
    low, high = summary.ci or (0.0, 1.0)
    return f"{summary.value:.2f} [{low:.2f}, {high:.2f}] (treatment above baseline in a pair)"


def interval(result: Tested, ends: Sequence[float] | None) -> str:
    """Both ends as `value` prints them."""
    return "n/a" if ends is None else f"[{value(result, ends[0])}, {value(result, ends[1])}]"


def _p(p: float | None) -> str:
    """Four decimals, or two digits of a small one."""
    return "n/a" if p is None else f"{p:.4f}" if p >= 0.001 else f"{p:.2g}"


def _tuned(tuning: Tuning | None) -> str:
    if tuning is None:
        return "not recorded"
    text = f"{tuning.trials} trials on seeds {list(tuning.seeds)}"
    if tuning.chosen:
        text += ", chose " + ", ".join(f"{key} = {number}" for key, number in tuning.chosen.items())
    if tuning.seconds is not None:
        text += f", {_count(tuning.gen_tokens)} tokens and {_count(tuning.seconds)} s"
    return text


def _exact(flip: SignFlip | None) -> str:
    return f"{_p(flip.p)} ({'all' if flip.exact else 'Monte Carlo,'} {flip.flips:,} sign flips)" if flip else "n/a"


def _count(amount: float | None) -> str:
    return "n/a" if amount is None else f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"


def _factors(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f" (the true one: 95 % within x {ends[0]:.2f} to x {ends[1]:.2f})"


def _noise(result: Tested) -> str:
    noise = result.stats.noise
    if noise is None or noise.share is None:
        return "n/a"
    plans = ", ".join(f"{value(result, sd)} at {plan}" for plan, sd in result.sd_at.items())
    return f"{100 * noise.share:.1f} %; standard deviation {plans}"
