"""Runs found on disk, for `gspo runs`: a row each, one in full, the difference of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError
from gspo_cli.report.folders import Run, read_study
from gspo_cli.report.run_facts import Facts, flatten, read_facts
from gspo_cli.runlog.heartbeat import read_heartbeat
from gspo_cli.runlog.strict_json import parse_object

TAIL = 1 << 18
"""Bytes of a log's end in which the last rollout line is looked for."""
CHANCE = ("run_id", "created", "argv", "cwd", "study")
"""Keys of `run.json` that differ between any two runs and say nothing."""

Row = dict[str, Any]


def list_runs(root: Path) -> Iterator[Row]:
    """Every run of the studies under `root` (or of the study or run that `root` is), by study, arm and seed.

    A folder that cannot be read has a row that says why.
    """
    studies = [root] if any(root.glob("run.json")) or any(root.glob("*/run.json")) else sorted(root.glob("*"))
    for folder in (f for f in studies if any(f.glob("run.json")) or any(f.glob("*/run.json"))):
        try:
            yield from (row_of(read_facts(run)) for run in read_study(folder).runs)
        except GspoError as error:
            yield {"study": folder.name, "run": "", "status": "unreadable", "reason": f"{error.message}: {error.why}"}


def row_of(facts: Facts) -> Row:
    """A run in short."""
    run, last = facts.run, last_rollout(facts.run.folder / "metrics.jsonl")
    status = "invalidated" if facts.invalid else facts.status
    beat = read_heartbeat(run.folder) if facts.status == "running" else None
    return {
        "study": run.folder.resolve().parent.name, "run": facts.name, "arm": run.arm, "algorithm": run.algorithm,
        "seed": run.seed, "status": status, "reason": facts.invalid or facts.reason,
        "phase": beat and beat["phase"], "last_sign_s": beat and beat["age_s"],
        "steps": last.get("step", 0), "planned": facts.planned,
        "reward": last.get("metrics", {}).get("reward/mean"), "created": facts.about.get("created"),
        "run_id": run.run_id, "folder": str(run.folder),
    }  # fmt: skip


def last_rollout(path: Path) -> Row:
    """The last whole `rollout` line of a log; empty if there is none near its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        if b'"kind":"rollout"' in line:
            try:
                return parse_object(line.decode())
            except ValueError:
                return {}
    return {}


def find_run(name: str, root: Path) -> Run:
    """The run that a path, `<study>/<run>` under `root`, or the beginning of a run id means.

    Errors: GspoError if none or several are meant.
    """
    for folder in (Path(name), root / name):
        if (folder / "run.json").is_file():
            return read_study(folder).runs[0]
    rows = [row for row in list_runs(root) if row["run"]]
    by_id = [row for row in rows if len(name) >= 4 and row["run_id"].startswith(name)]
    found = by_id or [row for row in rows if row["run"] == name]
    if len(found) == 1:
        return read_study(Path(found[0]["folder"])).runs[0]
    raise GspoError(
        f"{'several runs are' if found else 'no run is'} called {name!r}",
        "; ".join(row["folder"] for row in found[:4]) or f"it is no path of a run, nor a name or id under {root}",
        "`gspo runs ls` lists them; give the path",
    )


def whole(run: Run) -> Row:
    """A run in full: row, provenance, configuration by dotted key."""
    facts = read_facts(run)
    return row_of(facts) | {"about": facts.about, "config": facts.config_flat}


def differences(one: Run, other: Run) -> list[Row]:
    """Every key of configuration and provenance in which two runs differ."""
    tables = []
    for facts in map(read_facts, (one, other)):
        about = {f"run.json {k}": v for k, v in flatten({k: v for k, v in facts.about.items() if k not in CHANCE})}
        tables.append(facts.config_flat | about)
    keys = sorted(tables[0].keys() | tables[1].keys())
    pairs = [(key, tables[0].get(key, "absent"), tables[1].get(key, "absent")) for key in keys]
    return [{"key": key, "one": a, "other": b} for key, a, b in pairs if a != b]
