"""A comparison on the terminal: the sentence, the numbers behind it, the runs, and what speaks against them."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from gspo_cli.cli import console

Found = dict[str, Any]


def show(found: Found) -> None:
    """Prints the primary comparison in full and one line for each other arm; results on stdout."""
    one(found)
    for other in found["others"]:
        console.out.print()
        one(other)


def one(found: Found) -> None:
    """One pair of arms."""
    console.out.print(f"{found['treatment']} against {found['baseline']}, {found['metric']}")
    console.out.print(found["sentence"])
    console.out.print()
    if found["verdict"] == "refused":
        _print(_reasons(found["reasons"]))
        return
    _print(_seeds(found))
    _print(_statistics(found))
    for line in remarks(found):
        console.out.print(line)


def _print(table: Table) -> None:
    console.out.print(table, soft_wrap=False)


def _reasons(reasons: list[Found]) -> Table:
    table = _table("check", "what", "baseline", "treatment", "what to do")
    for r in reasons:
        table.add_row(r["check"], r["what"], r["baseline"], r["treatment"], r["do"], end_section=True)
    return table


def _seeds(found: Found) -> Table:
    """Every seed's numbers, so that none hides behind a mean."""
    table = _table("seed", found["baseline"], found["treatment"], "difference")
    for column in table.columns:
        column.justify = "right"
    for row in found["per_seed"]:
        table.add_row(
            str(row["seed"]), _value(found, row["baseline"]), _value(found, row["treatment"]),
            _value(found, row["difference"], sign=True),
        )  # fmt: skip
    return table


def _statistics(found: Found) -> Table:
    table = _table("", "")
    table.show_header = False
    for name, text in statistics(found):
        table.add_row(name, text)
    return table


def statistics(found: Found) -> list[tuple[str, str]]:
    """(name, value) of every number behind the sentence; n/a where it has no meaning, never 0."""
    two, noise, margin = found["two_way"], found["noise"], found["margin"]
    plan = "n/a" if found["n_problems"] is None else f"{found['n_problems']} problems, k = {found['k'] or 'n/a'}"
    flips = "" if found["p_exact"] is None else f" ({found['exact_flips']} sign flips{'' if found['exact'] else ', Monte Carlo'})"  # noqa: E501
    rows = [
        ("seeds", f"{found['n']}: {', '.join(map(str, found['seeds']))}"),
        ("problems", plan),
        ("mean difference", _value(found, found["effect"], sign=True)),
        ("95 % interval", f"{_interval(found, found['ci'])} ({found['ci_method']})"),
        ("for new problems", "n/a" if two is None else f"{_interval(found, two['ci'])} (two-way clustered, df {two['df']})"),
        ("p, paired t", _p(found["p_t"]) + (f", adjusted (Holm) {_p(found['p_holm'])}" if found["p_holm"] else "")),
        ("p, exact", _p(found["p_exact"]) + flips),
        ("p, equal", f"{_p(found['p_equal'])} (margin {_value(found, margin)})"),
        ("standard deviation", f"{_value(found, found['sd'])}{_factors(found['sd_range'])}"),
        ("noise between seeds", _noise(found, noise)),
        ("correlation of the arms", "n/a" if found["correlation"] is None else f"{found['correlation']:.2f}"),
        ("detectable, 80 % power", _value(found, found["mde"])),
        ("seeds for the margin", str(found["seeds_needed"] or "n/a")),
    ]  # fmt: skip
    return rows + _costs(found)


def _costs(found: Found) -> list[tuple[str, str]]:
    """What a run cost, treatment over baseline; and what tuning did."""
    spent, rows = found["budget"], []
    for axis in ("steps", "tokens", "seconds"):
        mine, ratio = spent[axis], spent["ratios"][axis]
        amounts = f"{_count(mine['baseline'])} and {_count(mine['treatment'])}"
        equal = ", equal by plan" if axis == spent["axis"] == "steps" else ""
        rows.append((f"{axis} a run", amounts + ("" if ratio is None else f", ratio {ratio:.3f}") + equal))
    arms = [found["baseline"], found["treatment"]]
    tuning = [found["tuning"][arm] for arm in arms]
    texts = ["not recorded" if t is None else f"{t['trials']} trials on seeds {t['seeds']}" for t in tuning]
    collapsed = found["collapses"]
    rows.append(("tuning", "; ".join(f"{arm}: {text}" for arm, text in zip(arms, texts, strict=True))))
    counts = f"{len(collapsed['baseline'])} and {len(collapsed['treatment'])} of {found['n']} runs"
    return [*rows, ("collapsed", f"{counts}, p = {_p(collapsed['p'])} (exact McNemar)")]


def remarks(found: Found) -> list[str]:
    """What a reader must know besides the numbers."""
    lines = [f"Failed, counted with its last valid value: {f['run']} ({f['reason']})." for f in found["failed"]]
    lines += [f"Invalidated, left out with its pair: {i['run']} ({i['reason']})." for i in found["invalidated"]]
    lines += [f"Waived, {w['check']}: {w['what']}: {w['baseline']}; {w['treatment']}." for w in found["waivers"]]
    used = set(found["seeds"])
    for arm, seeds in found["all_seeds"].items():
        if left := [seed for seed in seeds if seed not in used]:
            lines.append(f"Left out of {arm}: seed {', '.join(map(str, left))}.")
    if found["ungraded_as_wrong"]:
        lines.append(f"{found['ungraded_as_wrong']} answers without a verdict counted as wrong.")
    if found["n"] == 1:
        lines.append("One seed: the interval, if any, is over problems.")
    data = found["data"]
    lines.append(f"Data: {data['name']}{'@' + data['revision'] if data['revision'] else ''} {str(data['data_sha256'])[:16]}.")
    if not found["declared"]:
        lines.append("Not what the recipe declared before the runs: exploratory, and not kept.")
    return [*lines, *found["notes"]]


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _value(found: Found, value: float | None, sign: bool = False) -> str:
    """A number of the metric: in points where it lies within [0, 1]."""
    if value is None:
        return "n/a"
    return f"{100 * value:{'+' if sign else ''}.2f}" if found["points"] else f"{value:{'+' if sign else ''}.4g}"


def _interval(found: Found, ends: list[float] | None) -> str:
    return "n/a" if ends is None else f"[{_value(found, ends[0])}, {_value(found, ends[1])}]"


def _p(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}" if value >= 0.001 else f"{value:.2g}"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _factors(ends: list[float] | None) -> str:
    return "" if ends is None else f" (true value: 95 % within x {ends[0]:.2f} to {ends[1]:.2f})"


def _noise(found: Found, noise: Found | None) -> str:
    if noise is None or noise["share"] is None:
        return "n/a"
    plans = ", ".join(f"{_value(found, sd)} at {plan}" for plan, sd in noise["sd_at"].items())
    return f"{100 * noise['share']:.1f} % (standard deviation {plans})"
