"""The plan that `gspo train --dry-run` prints: tables, or one JSON object."""

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
    from gspo_cli.training.study.arms import Run

GIB = 2**30


def show_plan(runs: list[Run], config: dict[str, Any] | None, folder: Path, as_json: bool) -> None:
    """Print what a study needs, in full for the arm that needs the most memory; `config` = the model's, if known.
    Exit code 3 if it does not fit."""
    from gspo_cli.plan.architecture import architecture_of
    from gspo_cli.plan.plan import make_plan, remedies

    model, source = architecture_of(runs[0].recipe.model, config)
    plans = {run.arm: make_plan(run.recipe, model) for run in runs}
    arm, largest = max(plans.items(), key=lambda item: item[1].peak)
    fixes = [] if largest.fits else remedies(largest.workload.recipe, model)
    if as_json:
        facts = {"source": source, "parameters": model.parameters, "active": model.active}
        console.print_json({
            "study": str(folder), "runs": [run.name for run in runs], "steps": largest.workload.recipe.train.steps,
            "model": facts, "recipe": largest.workload.recipe.model_dump(mode="json"),
            "arms": {name: _to_dict(plan) for name, plan in plans.items()}, "fits": largest.fits, "would_fit": fixes,
        })  # fmt: skip
    else:
        _print_plan(runs, folder, arm, plans, source, fixes)
    if not largest.fits:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _to_dict(plan: Plan) -> dict[str, Any]:
    """A plan in bytes per GPU and seconds per rollout batch."""
    from gspo_cli.plan.time import anchored, total

    limit, low, high = total(plan.phases)
    return {
        "algo": plan.workload.recipe.algo.model_dump(mode="json"),
        "memory": plan.memory, "peak": plan.peak, "available": plan.available, "fits": plan.fits,
        "faults": plan.faults(), "warnings": plan.warnings(), "assumptions": plan.assumptions(),
        "phases": [{"name": p.name, "limit_s": p.limit_s, "low_s": p.low_s, "high_s": p.high_s} for p in plan.phases],
        "step": {"limit_s": limit, "low_s": low, "high_s": high, "anchored_s": anchored(plan.workload)}
        if plan.phases else None,
    }  # fmt: skip


def _print_plan(runs: list[Run], folder: Path, arm: str, plans: dict[str, Plan], source: str, fixes: list[str]) -> None:
    plan, say = plans[arm], console.out.print
    workload = plan.workload
    model, cluster = workload.model, workload.recipe.cluster
    batches = f"{console.plural(len(runs), 'run')} of {workload.recipe.train.steps} rollout batches"
    say(f"study {folder} (dry run, nothing is written): {batches}")
    say(f"runs: {', '.join(run.name for run in runs)}\n")
    recipe = workload.recipe.model_dump(mode="json", exclude_none=True, exclude={"arms", "algo"})
    algos = {f"algo of {name}": other.workload.recipe.algo.model_dump(mode="json") for name, other in plans.items()}
    for name, table in (recipe | algos).items():
        if isinstance(table, dict):
            keys = (f"{key} = {json.dumps(value)}" for key, value in table.items() if value not in ({}, []))
            say(f"[{name}] {', '.join(keys)}")
        else:
            say(f"{name} = {json.dumps(table)}")
    say(
        f"\nmodel: {_large(model.parameters)} parameters, {_large(model.active)} active per token, "
        f"{model.kv_bytes(workload.engine_itemsize) / 1024:.4g} KiB of KV cache per token ({source})"
    )
    machine = "unknown; --set cluster.gpu=h100 adds time estimates and a memory check"
    if cluster and workload.gpu:
        machine = f"{workload.ranks} x {workload.gpu.name}, {workload.gpu.memory_gib:g} GiB each"
    say(f"machine: {machine}\n")
    say(_memory_table(plan, arm))
    if plan.phases:
        say(_time_table(plan, len(runs)))
    for name, other in plans.items():
        if other.peak != plan.peak:
            say(f"arm {name}: {other.peak / GIB:.1f} GiB")
    remarks = {"assumed": plan.assumptions(), "warning": plan.warnings(), "does not fit": plan.faults()}
    for kind, line in ((kind, line) for kind, lines in remarks.items() for line in lines):
        say(f"{kind}: {line}")
    if not plan.fits:
        say(f"would fit, each on its own: {'; '.join(fixes) or 'no single change that the planner tries'}")


def _memory_table(plan: Plan, arm: str) -> Table:
    """One row per part of memory, one column per phase."""
    device = "per GPU" if plan.workload.gpu else "on one device"
    table = console.table(f"GiB {device}, arm {arm}", *(f"while {phase}" for phase in plan.memory))
    for name in dict.fromkeys(name for parts in plan.memory.values() for name in parts):
        table.add_row(name, *(f"{p[name] / GIB:.3g}" if name in p else "" for p in plan.memory.values()))
    available = "" if plan.available is None else f" of {plan.available / GIB:g}"
    table.add_section()
    table.add_row("total", *(f"{sum(p.values()) / GIB:.3g}{available}" for p in plan.memory.values()))
    return table


def _time_table(plan: Plan, num_runs: int) -> Table:
    """One row per phase of a rollout batch."""
    from gspo_cli.plan.time import anchored, total

    table = console.table("seconds per batch", "limit", "range", "notes")
    for phase in plan.phases:
        table.add_row(phase.name, _short(phase.limit_s), _span(phase.low_s, phase.high_s), phase.note)
    limit, low, high = total(plan.phases)
    table.add_section()
    table.add_row("total", _short(limit), _span(low, high), "")
    anchor = anchored(plan.workload)
    if anchor is not None:
        note = "by NeMo-RL's published whole step: 4.3 % of its arithmetic limit"
        table.add_row("as published", "", _short(anchor), note)
    steps = plan.workload.recipe.train.steps
    hours = num_runs * steps / 3600
    note = f"{num_runs} x {steps} batches"
    table.add_row("total hours", _short(limit * hours), _span(low * hours, high * hours), note)
    return table


def _large(number: int) -> str:
    """`30.53 B`, or all digits of a smaller number."""
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number:,}"


def _span(low: float, high: float) -> str:
    return f"{_short(low)} - {_short(high)}"


def _short(number: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
