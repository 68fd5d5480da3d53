"""The numbers behind a comparison's sentence, as lines of text; n/a where one has no meaning, never 0."""

from __future__ import annotations

from typing import Any

Found = dict[str, Any]


def statistics(found: Found) -> list[tuple[str, str]]:
    """(name, value) of the tests and what they rest on."""
    two = found["two_way"]
    plan = "n/a" if found["n_problems"] is None else f"{found['n_problems']}, k = {found['k'] or 'n/a'}"
    plan += f", from {found['n_contests']} contests" if found["n_contests"] else ""
    new = "n/a" if two is None else f"{interval(found, two['ci'])} (two-way clustered, df {two['df']})"
    adjusted = "" if found["p_holm"] is None else f", adjusted (Holm) {p_value(found['p_holm'])}"
    correlation = "n/a" if found["correlation"] is None else f"{found['correlation']:.2f}"
    return [
        ("seeds", f"{found['n']}: {', '.join(map(str, found['seeds']))}"),
        ("problems", plan),
        ("mean difference", f"{value(found, found['effect'], sign=True)} {unit(found)}"),
        ("95 % interval", f"{interval(found, found['ci'])} (paired t over seeds)"),
        ("for new problems", new),
        ("p, paired t", p_value(found["p_t"]) + adjusted),
        ("p, exact", _exact(found)),
        ("p, equal", f"{p_value(found['p_equal'])} (margin {value(found, found['margin'])})"),
        ("standard deviation", f"{value(found, found['sd'])}{_factors(found['sd_range'])}"),
        ("noise between seeds", _noise(found)),
        ("correlation of the arms", correlation),
        ("curves apart from step", str(found["apart_from_step"] or "n/a")),
        ("detectable, 80 % power", value(found, found["mde"])),
        ("seeds to detect the margin", str(found["seeds_needed"] or "n/a")),
    ]


def costs(found: Found) -> list[tuple[str, str]]:
    """(name, value) of what the runs cost, what tuning did, and how many collapsed."""
    spent, rows = found["budget"], list[tuple[str, str]]()
    for axis in ("steps", "tokens", "seconds"):
        ratio = spent["ratios"][axis]
        amounts = " and ".join(_count(spent[axis][side]) for side in ("baseline", "treatment"))
        rows.append((f"{axis} a run", amounts + ("" if ratio is None else f", ratio {ratio:.3f}")))
    texts = []
    for arm in (found["baseline"], found["treatment"]):
        tuning = found["tuning"][arm]
        texts.append(f"{arm}: {'not recorded' if tuning is None else _tuned(tuning)}")
    fallen = found["collapses"]
    counts = f"{len(fallen['baseline'])} and {len(fallen['treatment'])} of {found['n']} runs"
    return [*rows, ("tuning", "; ".join(texts)), ("collapsed", f"{counts}, p = {p_value(fallen['p'])} (exact McNemar)")]


def remarks(found: Found) -> list[str]:
    """What a reader must know besides the numbers."""
    lines = [f"Failed, counted with its last valid value: {f['run']} ({f['reason']})." for f in found["failed"]]
    lines += [f"Invalidated, left out with its pair: {i['run']} ({i['reason']})." for i in found["invalidated"]]
    lines += [f"Waived, {w['check']}: {w['what']}: {w['baseline']}; {w['treatment']}." for w in found["waivers"]]
    for arm, seeds in found["all_seeds"].items():
        if left := [str(seed) for seed in seeds if seed not in found["seeds"]]:
            lines.append(f"Left out of {arm}: seed {', '.join(left)}.")
    if found["ungraded_as_wrong"]:
        lines.append(f"{found['ungraded_as_wrong']} answers without a verdict counted as wrong.")
    data = found["data"]
    name = f"{data['name']}@{data['revision']}" if data["revision"] else data["name"]
    lines.append(f"Data: {name}, sha256 {str(data['data_sha256'])[:16]}.")
    if not found["declared"]:
        lines.append("Not what the recipe declared before the runs: exploratory, and not kept.")
    return [*lines, *found["notes"]]


def value(found: Found, number: float | None, sign: bool = False) -> str:
    """A number of the metric: x 100 where it is told in points."""
    if number is None:
        return "n/a"
    return f"{100 * number:{'+' if sign else ''}.2f}" if found["points"] else f"{number:{'+' if sign else ''}.4g}"


def unit(found: Found) -> str:
    """What the numbers are in."""
    return "points" if found["points"] else str(found["unit"])


def interval(found: Found, ends: list[float] | None) -> str:
    """`[low, high]`."""
    return "n/a" if ends is None else f"[{value(found, ends[0])}, {value(found, ends[1])}]"


def p_value(p: float | None) -> str:
    """Four decimals, or two digits of a small one."""
    return "n/a" if p is None else f"{p:.4f}" if p >= 0.001 else f"{p:.2g}"


def _tuned(tuning: Found) -> str:
    """What an arm's tuning tried, chose and cost."""
    text = f"{tuning['trials']} trials on seeds {tuning['seeds']}"
    if tuning.get("chosen"):
        text += ", chose " + ", ".join(f"{key} = {number}" for key, number in tuning["chosen"].items())
    if tuning.get("seconds") is not None:
        text += f", {_count(tuning['gen_tokens'])} tokens and {_count(tuning['seconds'])} s"
    return text


def _exact(found: Found) -> str:
    if found["p_exact"] is None:
        return "n/a"
    how = "all" if found["exact"] else "Monte Carlo,"
    return f"{p_value(found['p_exact'])} ({how} {found['exact_flips']:,} sign flips)"


def _count(amount: float | None) -> str:
    return "n/a" if amount is None else f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"


def _factors(ends: list[float] | None) -> str:
    return "" if ends is None else f" (the true one: 95 % within x {ends[0]:.2f} to x {ends[1]:.2f})"


def _noise(found: Found) -> str:
    noise = found["noise"]
    if noise is None or noise["share"] is None:
        return "n/a"
    plans = ", ".join(f"{value(found, sd)} at {plan}" for plan, sd in noise["sd_at"].items())
    return f"{100 * noise['share']:.1f} %; standard deviation {plans}"
