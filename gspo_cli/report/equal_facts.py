"""The recorded facts that must be equal between runs, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gspo_cli.report.judged_by import Number
from gspo_cli.report.pairs import Member
from gspo_cli.report.run_facts import flatten

ABSENT = "not recorded"
"""A fact that every run should hold; it equals nothing, not even another gap."""
BUDGET = ("train.steps", "train.minibatches", "rollout.prompts", "rollout.samples", "rollout.max_new_tokens")
OF_A_RUN = ("seed", "name")
"""Keys of the configuration, besides those of `[algo]`, that differ between runs of one study."""

Table = dict[str, Any]


def differences(groups: Iterable[list[Member]], facts: Callable[[Member], Table]) -> Iterator[tuple[str, str, str]]:
    """(key, value of a group's first run, another value) wherever they differ; runs with the same value are told
    together. Runs without any fact are left out."""
    found: dict[tuple[str, str, str], tuple[str, list[str]]] = {}
    for group in groups:
        tables = [(member.name, table) for member in group if (table := facts(member))]
        for key in sorted({key for _, table in tables for key in table}):
            values = [(name, str(table.get(key, "absent"))) for name, table in tables]
            first_name, first = values[0]
            for name, value in values[1:]:
                if value != first or value == ABSENT:
                    found.setdefault((key, first, value), (first_name, []))[1].append(name)
    for (key, one, other), (name, names) in found.items():
        yield key, f"{_short(one)} in {name}", f"{_short(other)} in {_names(names)}"


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _short(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:16]}..."


def _recorded(member: Member, *keys: str) -> Table:
    """Keys of `run.json`, each of which must be there."""
    return {key: ABSENT if member.facts.about.get(key) is None else member.facts.about[key] for key in keys}


def _start(member: Member, _: Number) -> Table:
    return _recorded(member, "model_sha256", "tokenizer_sha256")


def _data(member: Member, _: Number) -> Table:
    return _recorded(member, "data_sha256")


def _budget(member: Member, number: Number) -> Table:
    """What a run may spend. At equal tokens or seconds the curves are cut to a common length, so that neither the steps
    nor the updates a step need agree."""
    config = member.facts.config_flat
    keys = BUDGET if number.budget == "steps" else BUDGET[2:]
    own = config.get("algo.minibatches")
    mine = {"train.minibatches": own} if own is not None and number.budget == "steps" else {}
    return {key: config.get(key, ABSENT) for key in keys} | mine


def _config(member: Member, _: Number) -> Table:
    config = member.facts.config_flat
    tuned = set(config.get("report.tuned") or ())
    skipped = {*BUDGET, *OF_A_RUN, *tuned, "report.checkpoint"}
    skipped |= {key for key in config if key.startswith("algo.")}
    return {key: value for key, value in config.items() if key not in skipped}


def _checkpoint(member: Member, _: Number) -> Table:
    return {"report.checkpoint": member.facts.config_flat.get("report.checkpoint", ABSENT)}


def _eval(member: Member, _: Number) -> Table:
    return dict(flatten(member.answers.protocol)) if member.answers else {}


def _code(member: Member, _: Number) -> Table:
    about = member.facts.about
    code = about["code"] if isinstance(about.get("code"), dict) else {"commit": ABSENT}
    task = {member.facts.config_flat.get("task.name"), member.facts.config_flat.get("task.reward")}
    plugins = {name: sha for name, sha in (about.get("plugins") or {}).items() if name in task}
    return _recorded(member, "gspo") | {k: str(v) for k, v in code.items()} | dict(flatten(plugins))


def _hardware(member: Member, _: Number) -> Table:
    return _recorded(member, "cpu", "device", "threads")


def _versions(member: Member, _: Number) -> Table:
    about, keys = member.facts.about, ("packages", "engine", "determinism")
    missing = {key: ABSENT for key in keys if not isinstance(about.get(key), dict)}
    found = dict(flatten({key: about[key] for key in keys if key not in missing}))
    found.pop("engine.routes", None)  # follows from algo.replay
    return _recorded(member, "python") | missing | found


FACTS: dict[str, tuple[Callable[[Member, Number], Table], str]] = {
    "start": (_start, "train both arms in one study, or from one --model folder"),
    "data": (_data, "train both arms on the same rows"),
    "budget": (_budget, "train both arms with one recipe"),
    "eval": (_eval, "evaluate all runs with the same settings"),
    "config": (_config, "train both arms with one recipe; `report.tuned` names keys that may differ"),
    "checkpoint": (_checkpoint, 'report.checkpoint = "last": any other rule chooses by the number that is tested'),
    "code": (_code, "train both arms with one version of the code, or --allow code"),
    "hardware": (_hardware, "train both arms on one kind of machine, or --allow hardware"),
    "versions": (_versions, "train both arms in one environment, or --allow versions"),
}
"""Check -> the facts it wants equal, and what to do where they are not."""
