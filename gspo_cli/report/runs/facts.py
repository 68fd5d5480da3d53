"""What a run folder holds besides its curves (configuration, provenance, how the run ended), and lists of runs."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from gspo_cli.config import Recipe, flat
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.report.runs.folders import StoredRun, read_study
from gspo_cli.report.runs.metric_spec import REWARD
from gspo_cli.report.runs.reader import LogReader, corrupt
from gspo_cli.runlog.lock import dead_writer, is_silent, read_heartbeat, slowest_rank
from gspo_cli.runlog.log import MAX_STEP
from gspo_cli.runlog.strict_json import parse_object, read_object
from gspo_cli.runlog.trainer_config import kind_of_key

Status = Literal["completed", "failed", "running", "killed", "interrupted", "broken"]
"""`failed`: stopped by a training guard, which counts as a result. `broken`: stopped by the engine, the disk or a
defect, which does not. `running`: no end was recorded, so the run is still going or was killed.
`killed`: its process on this host is gone, as after the kernel ended it for memory."""

NOT_FINITE = "not finite"
"""Part of the reason when training stopped on a loss or gradient that is nan or infinite."""
PER_RUN = {"--algo", "--seed", "--seeds", "--name", "--out"}
SWITCHES = {"--overwrite", "--no-overwrite", "--json", "--no-json"}
TAIL = 1 << 18
"""Bytes at a log's end that are searched for the last rollout line."""
ALWAYS_DIFFERENT = ("run_id", "created", "argv", "cwd", "study")
"""Keys of `run.json` that differ between any two runs."""
NO_CONDITIONS = (
    "seed", "name", "cold_start.seed", "train.steps", "model.threads", "report.", "arms", "eval.", "checkpoint.",
    "guards.", "cluster", "rollout.store", "rollout.keep_newest", "rollout.deadline_s", "rollout.kv_budget_gb",
    "rollout.vllm.url", "rollout.vllm.concurrency", "model.device", "train.divide",
)  # fmt: skip
"""Beginnings of recipe keys under which a setting is as well tuned as under others: they name, watch or end a run."""
FROM_TRAIN = {"algo.lr": "train.lr", "algo.minibatches": "train.minibatches"}
"""Keys of `[algo]` that override another table's."""

TRAINER = "trainer."
"""Before the keys of another trainer's configuration."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """One run."""

    run: StoredRun
    run_json: Json
    """Its `run.json`."""
    config: Json
    status: Status
    reason: str
    """Why it ended, unless it completed."""
    config_flat: Json
    """The configuration by dotted key."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.run.folder.name

    @property
    def invalid(self) -> str | None:
        """Why the run does not count; None if it does."""
        return self.run.invalid

    @property
    def planned_steps(self) -> int:
        """Rollout batches of the plan, or to which a resume changed it (`--allow-change train.steps`)."""
        return int(self.config["train"]["steps"])

    @property
    def imported(self) -> Json:
        """Where another trainer's log comes from; empty for a run of this program."""
        return dict(self.run_json.get("imported") or {})

    @property
    def changed_modules(self) -> list[str]:
        """The user's modules that changed while the run was trained, and after which rollout batch."""
        changes = [e for e in read_events(self.run.folder) if e.get("event") == "plugins_changed"]
        return [f"{name} after rollout batch {change['step']}" for change in changes for name in change["plugins"]]

    @property
    def algorithm_keys(self) -> Json:
        """What the configuration says about the algorithm, by dotted key: `[algo]`, or a trainer's keys."""
        return {
            key: value for key, value in self.config_flat.items()
            if key.startswith("algo.")
            or (key.startswith(TRAINER) and kind_of_key(key.removeprefix(TRAINER)) == "algorithm")
        }  # fmt: skip

    @property
    def not_finite(self) -> bool:
        """Whether training stopped on values that are not finite."""
        return self.status == "failed" and NOT_FINITE in self.reason


def read_facts(run: StoredRun) -> Facts:
    """Reads the small files of a run folder. Errors: GspoError (exit code STORAGE) naming a file that is corrupt."""
    config = read_object(run.folder / "config.json")
    steps = config["train"].get("steps") if isinstance(config.get("train"), dict) else None
    events = read_events(run.folder)
    changes = next((e.get("changes") for e in reversed(events) if e.get("event") == "start"), None)
    if isinstance(config.get("train"), dict) and isinstance(changes, dict) and "train.steps" in changes:
        steps = config["train"]["steps"] = changes["train.steps"]
    if type(steps) is not int or not 1 <= steps <= MAX_STEP:
        raise corrupt(str(run.folder / "config.json"), f"`train.steps` is {steps!r:.80}, not a positive whole number")
    status, reason = final_status(run.folder, events)
    run_json = read_object(run.folder / "run.json")
    return Facts(run, run_json, config, status, reason, flat(config))


def read_events(folder: Path) -> list[Json]:
    """A run's events, oldest first, if it has any. Errors: GspoError (exit code STORAGE) naming the corrupt line."""
    path = folder / "events.jsonl"
    reader = LogReader(path)
    return [event for block in reader.blocks() for event in reader.parse(block)] if path.is_file() else []


def final_status(folder: Path, events: list[Json] | None = None) -> tuple[Status, str]:
    """(how the last attempt ended, why), from `events.jsonl`, or from its `events` if they have been read."""
    if not (folder / "events.jsonl").is_file():
        return "running", "it has no events.jsonl"
    marks = [event for event in events or read_events(folder) if event.get("event") in ("start", "end")]
    if not marks or marks[-1]["event"] == "start":
        if (pid := dead_writer(folder)) is not None:
            return "killed", f"no end was recorded and process {pid} is gone: it was killed, perhaps for memory"
        return "running", "no end was recorded: it is running or was killed"
    end, reason = marks[-1], str(marks[-1].get("reason", ""))
    status = end.get("status")
    if status == "completed":
        return "completed", ""
    if status == "failed":
        return ("failed" if end.get("exit") == ExitCode.GUARD else "broken"), reason
    return "interrupted", reason or str(status)


def conditions_of(config: Json) -> Json:
    """What a run's learning rate and other tuned keys were good for, by dotted key: the recipe, arm included, without
    what only names, watches or ends the run. `config` is flat."""
    table = {key: value for key, value in config.items() if not key.startswith(NO_CONDITIONS)}
    own = {other: value for key, other in FROM_TRAIN.items() if (value := table.pop(key, None)) is not None}
    return table | own


def different_conditions(one: Json, other: Json) -> list[tuple[str, Any, Any]]:
    """(key, value, other value) wherever two runs' conditions differ. A key that one lacks is at its default there."""
    values = {key: [table.get(key, recipe_default(key)) for table in (one, other)] for key in one | other}
    return [(key, left, right) for key, (left, right) in values.items() if left != right]


def recipe_default(key: str) -> Any:
    """A recipe key's default; None for one that recipes do not have, such as a parameter of an algorithm."""
    model: type[BaseModel] = Recipe
    for part in key.split("."):
        field = model.model_fields.get(part)
        if field is None:
            return None
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not tables:
            return field.get_default(call_default_factory=True, validated_data={})
        model = tables[0]
    return None


def command_for(facts: Facts, arm: str, seeds: list[int], overwrite: bool = False) -> str:
    """The command that trains runs like this one with another arm or other seeds, in the same study."""
    return _train_again(facts, PER_RUN, arm, seeds, "", ["--overwrite"] if overwrite else [])


def tuning_command(facts: Facts, arms: list[str], seeds: list[int], key: str, grid: list[str]) -> str:
    """The command that tunes these arms alike over a grid, with runs like this one, in a study beside its own."""
    return _train_again(
        facts, PER_RUN | {"--tuned"}, ",".join(arms), seeds, "-tuning", ["--grid", f"{key}={','.join(grid)}"]
    )


def _train_again(facts: Facts, options: set[str], arms: str, seeds: list[int], suffix: str, more: list[str]) -> str:
    """The command that began the run, without some of its options and their values, for other arms and seeds."""
    study, kept, skip = facts.run.folder.parent.resolve(), ["gspo"], False
    for word in _training_words(facts):
        if not skip and word.partition("=")[0] not in options | SWITCHES:
            kept.append(word)
        skip = not skip and word in options
    kept += ["--algo", arms, "--seeds", ",".join(map(str, seeds)), "--out", str(study.parent)]
    return shlex.join([*kept, "--name", study.name + suffix, *more])


def _training_words(facts: Facts) -> list[str]:
    """The command that began the run, without the program. If the run was first trained by a `--resume` of its study,
    another run's command; failing that, the run's own recipe."""
    others = sorted(facts.run.folder.parent.glob("*/run.json"))
    for argv in (facts.run_json.get("argv"), *(read_object(path).get("argv") for path in others)):
        words = [str(word) for word in argv[1:]] if isinstance(argv, list) else []
        if words and not any(word.partition("=")[0] == "--resume" for word in words):
            return words
    return ["train", str(facts.run.folder / "recipe.toml")]


def list_runs(root: Path) -> Iterator[Json]:
    """Every run of the studies under `root` (which may itself be a study or a run), by study, arm and seed.

    A folder that cannot be read has a row with the reason.
    """
    studies = [root] if any(root.glob("run.json")) or any(root.glob("*/run.json")) else sorted(root.glob("*"))
    for folder in (f for f in studies if any(f.glob("run.json")) or any(f.glob("*/run.json"))):
        try:
            yield from (row_of(read_facts(run)) for run in read_study(folder).runs)
        except GspoError as error:
            yield {"study": folder.name, "run": "", "status": "unreadable", "reason": f"{error.message}: {error.why}"}


def row_of(facts: Facts) -> Json:
    """A run in one row."""
    run, last = facts.run, _last_rollout(facts.run.folder / "metrics.jsonl")
    status: str = "invalidated" if facts.invalid else facts.status
    beat = read_heartbeat(run.folder) if facts.status in ("running", "killed") else None
    reason = facts.invalid or facts.reason
    if status == "running" and beat and is_silent(beat["age_s"]):
        status = "silent"
        reason = f"no sign of life for {beat['age_s']:.0f} s: stopped, killed, or its host {beat['host']} is gone"
    values = metrics if isinstance(metrics := last.get("metrics"), dict) else {}
    return {
        "study": run.folder.parent.resolve().name, "run": facts.name, "arm": run.arm, "algorithm": run.algorithm,
        "seed": run.seed, "status": status, "reason": reason,
        "phase": beat and beat["phase"], "last_sign_s": beat and beat["age_s"],
        "slowest_rank": beat and slowest_rank(run.folder),
        "steps": last.get("step", 0), "planned": facts.planned_steps,
        "reward": values.get(REWARD), "created": facts.run_json.get("created"),
        "run_id": run.run_id, "folder": str(run.folder),
    }  # fmt: skip


def _last_rollout(path: Path) -> Json:
    """The last whole `rollout` line of a log; empty if there is none near its end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return parse_object(next(line for line in reversed(lines) if b'"kind":"rollout"' in line).decode())
    except (OSError, ValueError, StopIteration):
        return {}


def describe_run(run: StoredRun) -> Json:
    """A run in full: its row, provenance, and configuration by dotted key."""
    facts = read_facts(run)
    changed = {"changed modules": facts.changed_modules} if facts.changed_modules else {}
    return row_of(facts) | changed | {"about": facts.run_json, "config": facts.config_flat}


def differences(one: StoredRun, other: StoredRun) -> list[Json]:
    """Every key of configuration and provenance in which two runs differ."""
    tables = []
    for facts in map(read_facts, (one, other)):
        provenance = {key: value for key, value in facts.run_json.items() if key not in ALWAYS_DIFFERENT}
        tables.append(facts.config_flat | {f"run.json {key}": value for key, value in flat(provenance).items()})
    left, right = tables
    pairs = [(key, left.get(key, "absent"), right.get(key, "absent")) for key in sorted(left.keys() | right.keys())]
    return [{"key": key, "one": a, "other": b} for key, a, b in pairs if a != b]
