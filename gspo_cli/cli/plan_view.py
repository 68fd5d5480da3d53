"""`gspo train --dry-run`: the plan of a study as tables, or as one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gspo_cli.cli import console
from gspo_cli.errors import ExitCode

if TYPE_CHECKING:
    from rich.table import Table

    from gspo_cli.plan.plan import Plan
    from gspo_cli.training.study import Run

GIB = 2**30


def show_plan(runs: list[Run], folder: Path, json_: bool) -> None:
    """Prints what the study needs; shown in full for the arm that needs most memory. Exit code 3 if it does not fit."""
    from gspo_cli.plan.plan import make_plan
    from gspo_cli.plan.read import architecture_of
    from gspo_cli.plan.remedies import remedies

    model, source = architecture_of(runs[0].recipe.model)
    plans = {run.arm: make_plan(run.recipe, model) for run in runs}
    arm, most = max(plans.items(), key=lambda item: item[1].peak)
    helps = [] if most.fits else remedies(most.setup.recipe, model)
    if json_:
        facts = {"source": source, "parameters": model.parameters, "active": model.active}
        console.print_json({
            "study": str(folder), "runs": [run.name for run in runs], "steps": most.setup.recipe.train.steps,
            "model": facts, "recipe": most.setup.recipe.model_dump(mode="json"),
            "arms": {name: as_dict(plan) for name, plan in plans.items()}, "fits": most.fits, "would_fit": helps,
        })  # fmt: skip
    else:
        print_plan(runs, folder, arm, most, plans, source, helps)
    if not most.fits:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan's numbers: bytes on each GPU, seconds of a rollout batch."""
    from gspo_cli.plan.time import anchored, total

    limit, low, high = total(plan.phases)
    return {
        "memory": plan.memory, "peak": plan.peak, "available": plan.available, "fits": plan.fits,
        "faults": plan.faults(), "warnings": plan.warnings(), "assumptions": plan.assumptions(),
        "phases": [{"name": p.name, "limit_s": p.limit_s, "low_s": p.low_s, "high_s": p.high_s} for p in plan.phases],
        "step": {"limit_s": limit, "low_s": low, "high_s": high, "anchored_s": anchored(plan.setup)}
        if plan.phases else None,
    }  # fmt: skip


def print_plan(
    runs: list[Run], folder: Path, arm: str, plan: Plan, plans: dict[str, Plan], source: str, helps: list[str]
) -> None:
    """The plan for a reader."""
    setup, say = plan.setup, console.out.print
    model, cluster = setup.model, setup.recipe.cluster
    say(f"study {folder}, nothing is written: {count(len(runs))} of {setup.recipe.train.steps} rollout batches")
    say(f"runs: {', '.join(run.name for run in runs)}\n")
    for name, table in setup.recipe.model_dump(mode="json", exclude_none=True, exclude={"arms"}).items():
        say(f"[{name}] {one_line(table)}" if isinstance(table, dict) else f"{name} = {json.dumps(table)}")
    say(
        f"\nmodel: {large(model.parameters)} parameters, {large(model.active)} met by a token, "
        f"{model.kv_bytes(setup.engine_itemsize) / 1024:.4g} KiB of keys and values a token ({source})"
    )
    machine = f"{setup.ranks} x {setup.gpu.name}, {setup.gpu.memory_gib:g} GiB each" if cluster and setup.gpu else ""
    say(f"machine: {machine or 'not said; --set cluster.gpu=h100 plans times and checks memory'}\n")
    say(memory_table(plan, arm))
    if plan.phases:
        say(time_table(plan, len(runs)))
    for name, other in plans.items():
        if other.peak != plan.peak:
            say(f"arm {name}: {other.peak / GIB:.1f} GiB")
    for line in plan.assumptions():
        say(f"assumed: {line}")
    for line in plan.warnings():
        say(f"warning: {line}")
    for line in plan.faults():
        say(f"does not fit: {line}")
    if not plan.fits:
        say(f"would fit, each on its own: {'; '.join(helps) or 'no single change that the planner tries'}")


def one_line(table: dict[str, Any]) -> str:
    """A recipe's table on one line; empty tables inside are left out."""
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items() if value not in ({}, []))


def memory_table(plan: Plan, arm: str) -> Table:
    """A row a part, a column a phase."""
    where = "a GPU" if plan.setup.gpu else "on one device"
    table = console.table(f"GiB {where}, arm {arm}", *(f"while {phase}" for phase in plan.memory))
    names = dict.fromkeys(name for parts in plan.memory.values() for name in parts)
    for name in names:
        table.add_row(name, *(f"{p[name] / GIB:.3g}" if name in p else "" for p in plan.memory.values()))
    room = "" if plan.available is None else f" of {plan.available / GIB:g}"
    table.add_section()
    table.add_row("in all", *(f"{sum(p.values()) / GIB:.3g}{room}" for p in plan.memory.values()))
    return table


def time_table(plan: Plan, num_runs: int) -> Table:
    """A row a phase of a rollout batch."""
    from gspo_cli.plan.time import anchored, total

    table = console.table("seconds a batch", "limit", "range", "what")
    for phase in plan.phases:
        table.add_row(phase.name, short(phase.limit_s), span(phase.low_s, phase.high_s), phase.note)
    limit, low, high = total(plan.phases)
    table.add_section()
    table.add_row("in all", short(limit), span(low, high), "")
    anchor = anchored(plan.setup)
    if anchor is not None:
        table.add_row(
            "as published", "", short(anchor), "by NeMo-RL's whole step: 4.3 % of the limit of its arithmetic"
        )
    hours = num_runs * plan.setup.recipe.train.steps / 3600
    what = f"{num_runs} x {plan.setup.recipe.train.steps} batches, no evaluation"
    table.add_row("hours in all", short(limit * hours), span(low * hours, high * hours), what)
    return table


def large(number: int) -> str:
    """`30.53 B`, or all digits of a small number."""
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number:,}"


def count(runs: int) -> str:
    """`1 run`, `2 runs`."""
    return f"{runs} run{'s' if runs > 1 else ''}"


def span(low: float, high: float) -> str:
    """`3.1 - 12`."""
    return f"{short(low)} - {short(high)}"


def short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
