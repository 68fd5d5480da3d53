"""What must hold before two arms are compared. All checks run; all failures are reported."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gspo_cli.config import flat
from gspo_cli.errors import quoted
from gspo_cli.report.compare.scores import collapses_known, common_range
from gspo_cli.report.runs.curves import QUERIES
from gspo_cli.report.runs.facts import TRAINER, command_for
from gspo_cli.report.runs.metric_spec import REWARD, BenchmarkMetric, CurveMetric, MetricSpec
from gspo_cli.report.runs.pairs import Pair, RunRecord
from gspo_cli.runlog.schema import metric
from gspo_cli.runlog.trainer_config import kind_of_key
from gspo_cli.task_config import environment_module

ABSENT = "not recorded"
"""A fact that every run should record; it equals nothing, not even another gap."""
BUDGET = ("train.steps", "train.minibatches", "rollout.prompts", "rollout.samples", "rollout.max_new_tokens")
PER_RUN = ("seed", "name", "cold_start.seed")
"""Keys of the configuration, besides those of `[algo]`, that differ between runs of one study."""
WAIVABLE = ("code", "hardware", "versions")
"""What `--allow` accepts: differences whose importance the reader may judge."""

Table = dict[str, Any]
Check = str | Callable[[Pair, MetricSpec], Iterable["Failure"]]


@dataclass(frozen=True, slots=True)
class Failure:
    """One precondition that does not hold."""

    check: str
    what: str
    baseline: str
    """What one side has, and where."""
    treatment: str
    """What the other side has."""
    do: str


def failures(pair: Pair, spec: MetricSpec, checks: tuple[Check, ...] = ()) -> list[Failure]:
    """Every precondition that fails, in the order of `checks` (default: `CHECKS`); empty if the two arms may be
    compared."""
    found: list[Failure] = []
    for check in checks or CHECKS:
        found += _unequal_facts(check, pair, spec) if isinstance(check, str) else check(pair, spec)
    return found


def _recorded(record: RunRecord, *keys: str) -> Table:
    """Keys of `run.json` that every run must record."""
    run_json = record.facts.run_json
    return {key: ABSENT if run_json.get(key) is None else run_json[key] for key in keys}


def _budget(record: RunRecord, spec: MetricSpec) -> Table:
    """What a run may spend. At equal tokens or seconds the curves are cut to a common length, so neither the steps nor
    the updates per step need to agree."""
    config = record.facts.config_flat
    if record.facts.imported:  # the rest is among the trainer's own keys
        return {"last step": record.facts.planned_steps}
    keys = BUDGET if spec.budget == "steps" else BUDGET[2:]
    own = config.get("algo.minibatches")
    override = {"train.minibatches": own} if own is not None and spec.budget == "steps" else {}
    return {key: config.get(key, ABSENT) for key in keys} | override


def _config(record: RunRecord, _: MetricSpec) -> Table:
    config = record.facts.config_flat
    tuned = config.get("report.tuned")
    skipped = {*BUDGET, *PER_RUN, *(tuned if isinstance(tuned, list) else ()), "report.checkpoint"}
    theirs = {key for key in config if key.startswith(TRAINER) and kind_of_key(key.removeprefix(TRAINER)) != "setting"}
    log = {"the log's trainer": record.facts.imported["from"]} if record.facts.imported else {}
    kept = {k: v for k, v in config.items() if k not in skipped | theirs and not k.startswith("algo.")}
    return kept | log


def _eval(record: RunRecord, _: MetricSpec) -> Table:
    answers = record.answers
    if answers is None:
        return {}
    table = flat(answers.protocol) | {"the problems' ids": answers.problems_hash}
    table.pop("seed", None)  # compared within each pair
    return table


def _eval_seed(record: RunRecord, _: MetricSpec) -> Table:
    return {"seed": record.answers.protocol.get("seed")} if record.answers else {}


def _code(record: RunRecord, _: MetricSpec) -> Table:
    run_json, config = record.facts.run_json, record.facts.config_flat
    code = run_json["code"] if isinstance(run_json.get("code"), dict) else {"commit": ABSENT}
    rewards = config.get("task.rewards") or ()
    task = {config.get("task.name"), config.get("task.reward"), *(reward.get("name") for reward in rewards)}
    task |= {environment_module(environment)} if (environment := config.get("task.environment")) else set()
    sources = {name: source for name, source in (run_json.get("plugins") or {}).items() if name in task}
    plugins = {
        name: {key: source[key] for key in ("file", "sha256") if key in source} for name, source in sources.items()
    }
    return _recorded(record, "gspo") | {k: str(v) for k, v in code.items()} | flat(plugins)


def _versions(record: RunRecord, _: MetricSpec) -> Table:
    run_json, keys = record.facts.run_json, ("packages", "engine", "determinism")
    missing = {key: ABSENT for key in keys if not isinstance(run_json.get(key), dict)}
    found = flat({key: run_json[key] for key in keys if key not in missing})
    found.pop("engine.routes", None)  # follows from algo.replay
    return _recorded(record, "python") | missing | found


FACTS: dict[str, tuple[tuple[str, ...] | Callable[[RunRecord, MetricSpec], Table], str]] = {
    "start": (("model_sha256", "tokenizer_sha256"), "train both arms in one study, or from one --model folder"),
    "data": (("data_sha256",), "train both arms on the same rows"),
    "budget": (_budget, "train both arms with one recipe"),
    "eval": (_eval, "evaluate all runs on the same problems with the same settings"),
    "eval seed": (_eval_seed, "evaluate both runs of a pair with one seed"),
    "config": (_config, "train both arms with one recipe; `report.tuned` names keys that may differ"),
    "code": (_code, "train both arms with one version of the code, or --allow code"),
    "hardware": (("cpu", "device", "threads"), "train both arms on one kind of machine, or --allow hardware"),
    "versions": (_versions, "train both arms in one environment, or --allow versions"),
}
"""Check -> the facts that must be equal (keys of `run.json`, or a function), and what to do where they are not."""


def _unequal_facts(check: str, pair: Pair, spec: MetricSpec) -> Iterable[Failure]:
    """Recorded facts must be equal: all runs' to the first one's, or (if waivable) each pair's. The start may differ
    from pair to pair where the recipe planned it so: runs with one seed of the cold start have one start."""
    facts, do = FACTS[check]
    by_seed = [[pair.left[seed], pair.right[seed]] for seed in pair.seeds]
    groups = by_seed if check in (*WAIVABLE, "eval seed") else [pair.records]
    if check == "start":
        planned: dict[object, list[RunRecord]] = {}
        for record in pair.records:
            planned.setdefault(record.facts.config_flat.get("cold_start.seed"), []).append(record)
        groups = [*planned.values(), *by_seed] if len(planned) > 1 else [pair.records]

    def of_run(record: RunRecord) -> Table:
        return _recorded(record, *facts) if isinstance(facts, tuple) else facts(record, spec)

    for what, left, right in _unequal(groups, of_run):
        yield Failure(check, what, left, right, do)


def _unequal(groups: Iterable[list[RunRecord]], facts: Callable[[RunRecord], Table]) -> Iterator[tuple[str, str, str]]:
    """(key, value of a group's first run, another value) wherever they differ; runs with the same value are named
    together. Runs without any fact are left out."""
    found: dict[tuple[str, str, str], tuple[str, list[str]]] = {}
    for group in groups:
        tables = [(record.name, table) for record in group if (table := facts(record))]
        for key in sorted({key for _, table in tables for key in table}):
            values = [(name, str(table.get(key, "absent"))) for name, table in tables]
            first_name, first = values[0]
            for name, value in values[1:]:
                if value != first or value == ABSENT:
                    found.setdefault((key, first, value), (first_name, []))[1].append(name)
    for (key, one, other), (name, names) in found.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield key, f"{_short(one)} in {name}", f"{_short(other)} in {', '.join(names[:3])}{more}"


def _short(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:16]}..."


def _sides(pair: Pair, record: RunRecord, text: str) -> tuple[str, str]:
    """(baseline, treatment), the text on the side of the run."""
    return (text, "") if record.run.arm == pair.baseline else ("", text)


def _pairs(pair: Pair, _: MetricSpec) -> Iterable[Failure]:
    if not pair.left and not pair.right:
        yield Failure("pairs", "runs that count", "none", "none", "train the study, or take other --seeds")
    for arm, side, other in ((pair.baseline, pair.left, pair.right), (pair.treatment, pair.right, pair.left)):
        if missing := sorted(other.keys() - side.keys()):
            lacks = f"no {', '.join(f'{arm}-s{seed}' for seed in missing)}"
            sides = (lacks, "present") if arm == pair.baseline else ("present", lacks)
            facts = next(iter(other.values())).facts
            do = f"train what is missing: {command_for(facts, arm, missing)}"
            if facts.imported:
                do = "import what is missing, or say with --unpaired that runs of one seed share nothing"
            yield Failure("pairs", f"seed {', '.join(map(str, missing))}", *sides, do)


def _queries(pair: Pair, spec: MetricSpec) -> Iterable[Failure]:
    """Dynamic sampling consumes more prompts per step than the recipe says, so equal steps are not equal queries."""
    if spec.budget != "steps":
        return
    for records in ((pair.left[seed], pair.right[seed]) for seed in pair.seeds):
        left, right = (None if r.curves is None else r.curves.values[QUERIES] for r in records)
        if left is None or right is None:
            continue
        common = left.index.intersection(right.index)
        if len(common) and left[common[-1]] != right[common[-1]]:
            sides = [f"{q[common[-1]]:.0f} in {r.name}" for q, r in zip((left, right), records, strict=True)]
            do = "compare at equal tokens: --metric METRIC:area@tokens"
            yield Failure("budget", f"prompts consumed by step {common[-1]}", sides[0], sides[1], do)


MOST_UNSCORED = 0.01
"""Share of unscored responses above which a mean over the scored ones may be a mean over the easy ones."""
SAMPLED = ("group/dropped_frac", "compute/", "moe/", "lr", "kl/sampler", "mismatch/", "lag/", "entropy/")
"""Prefixes of what dynamic sampling leaves as it is: over all groups, on the probe, about engine and trainer, or only
over rows with an advantage anyway."""
ON_RATIOS = ("ratio/", "kl/old", "clip/", "gate/", "weight/")
ON_LOSS_TOKENS = (*ON_RATIOS, "entropy/", "kl/", "mismatch/", "lag/", "correction/", "value/", "loss", "grad/")
ON_ADVANTAGES = ("adv/", "length/mean_", "loss", "grad/", "update/skipped_rows_frac", "gate/mean_")


@dataclass(frozen=True, slots=True)
class Meaning:
    """A setting, and the metrics that mean something else under it."""

    key: str
    affects: Callable[[str], bool]
    """Whether a logged metric changes its meaning with this key."""
    why: str
    default: Any = None
    instead: str = "judge by reward/mean, or by a benchmark"


def _is_eval(name: str) -> bool:
    return "eval" in metric(name).lines


def _any_of(prefixes: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefixes)


MEANINGS = (
    Meaning("algo.dynamic_sampling", lambda name: not (name == REWARD or name.startswith(SAMPLED) or _is_eval(name)),
            "it covers only the groups that dynamic sampling kept", False),
    Meaning("algo.truncation", _any_of(ON_LOSS_TOKENS), "masked responses are not among the loss tokens", "keep"),
    Meaning("algo.overlong_cache_frac", _any_of(ON_ADVANTAGES), "advantages contain the penalty on long responses"),
    Meaning("algo.old_log_probs", _any_of(ON_RATIOS), "ratios are taken to another old policy", "trainer"),
    Meaning("algo.name", lambda name: name == "loss", "each algorithm has its own objective", "gspo"),
    Meaning("rollout.max_lag", lambda name: not _is_eval(name),
            "the value of a step belongs to weights of another age", 0, "judge by a benchmark"),
)  # fmt: skip
"""Also where `report.tuned` lets the key differ. To add a setting, add a row here and in docs/compare.md."""


def _meaning(pair: Pair, spec: MetricSpec) -> Iterable[Failure]:
    """The metric must be the same quantity in both arms, whatever their settings, and cover nearly all responses."""
    if isinstance(spec, BenchmarkMetric):
        return
    for meaning in (m for m in MEANINGS if m.affects(spec.metric)):
        sides = [{str(_setting(record, meaning)) for record in side.values()} for side in (pair.left, pair.right)]
        if sides[0] != sides[1] and all(sides):
            left, right = (" or ".join(sorted(side)) for side in sides)
            what = f"what {spec.metric} means: {meaning.key} ({meaning.why})"
            yield Failure("meaning", what, left, right, meaning.instead)
    for record in pair.records if spec.metric == REWARD else ():
        if (share := _unscored_share(record)) is not None and share > MOST_UNSCORED:
            sides_of_run = _sides(pair, record, f"{share:.1%} of the responses of {record.name}")
            do = f"mend the reward; a mean over scored responses may leave out {MOST_UNSCORED:.0%} at most"
            yield Failure("meaning", "responses without a reward", *sides_of_run, do)


def _setting(record: RunRecord, meaning: Meaning) -> Any:
    value = record.facts.config_flat.get(meaning.key)
    return meaning.default if value is None else value


def _unscored_share(record: RunRecord) -> float | None:
    """The share of sampled responses without a reward; None where the log has no counts."""
    if record.curves is None:
        return None
    scored = record.curves.counts[REWARD]
    queries, samples = record.curves.values[QUERIES], record.facts.config_flat.get("rollout.samples")
    if not len(scored) or not len(queries) or scored.isna().any() or not isinstance(samples, int):
        return None
    return max(0.0, 1 - float(scored.sum()) / (float(queries.iloc[-1]) * samples))


def _status(pair: Pair, _: MetricSpec) -> Iterable[Failure]:
    for record in pair.records:
        facts, run = record.facts, record.run
        if facts.status not in ("completed", "failed"):
            sides = _sides(pair, record, f"{record.name}: {facts.status} ({facts.reason})")
            do = f"let it finish, or resume it: gspo train --resume {quoted(run.folder)}"
            yield Failure("status", "how the run ended", *sides, do)


def _cells(pair: Pair, spec: MetricSpec) -> Iterable[Failure]:
    stored = any(r.answers for r in pair.records)
    for record in pair.records:
        gap, do = _gap(record, spec, stored), "complete it; a part of a run is not compared"
        counts_as_collapsed = record.not_finite and collapses_known(pair)
        if not gap and record.curves and spec.metric in record.curves.non_finite and not counts_as_collapsed:
            gap, do = "a value is not finite", "judge by another metric, or leave the seed out with --seeds"
        if gap:
            if isinstance(spec, BenchmarkMetric) and spec.k and gap == UNSCORED:
                do = f"training logs {spec.metric} with eval.bench and eval.samples = {spec.k}; of stored weights: "
                do += f"gspo eval benchmarks {quoted(record.run.folder.parent)} --bench {spec.bench} --samples {spec.k}"
            if isinstance(spec, BenchmarkMetric) and stored:
                do = f"gspo eval benchmarks {quoted(record.run.folder)} --bench {spec.bench}"
                if record.answers and record.answers.num_ungraded:
                    do = "grade them again, or --grader-errors wrong counts them in both arms"
            yield Failure("cells", f"{spec.text} of {record.name}", *_sides(pair, record, gap), do)
    if isinstance(spec, CurveMetric) and spec.axis:
        first, last = common_range(pair.records, spec)
        if last < first:
            axis = f"{spec.axis} that all runs cover"
            do = "compare over steps: --metric METRIC:area@steps"
            yield Failure("cells", axis, f"some begin at {first:g}", f"others end at {last:g}", do)


UNSCORED = "neither stored answers nor a value in the log"


def _gap(record: RunRecord, spec: MetricSpec, stored: bool) -> str | None:
    """What a run's number lacks; None if it is complete."""
    planned, completed = record.facts.planned_steps, record.facts.status == "completed"
    if isinstance(spec, BenchmarkMetric) and stored:
        if record.answers is None:
            return "not evaluated"
        last = f"step-{planned:06d}"
        if completed and record.answers.step != last:
            return f"evaluated at {record.answers.step}, not at its last checkpoint {last}"
        return record.answers.why_unusable(spec)
    if record.curves is None:
        return "no metrics.jsonl"
    if completed and record.curves.num_steps != planned:
        return f"the log ends at step {record.curves.num_steps} of {planned}"
    if isinstance(spec, BenchmarkMetric):
        values = record.curves.values[spec.metric]
        if spec.kind != "avg" or not len(values):
            return UNSCORED
        if completed and values.index[-1] != planned:
            return f"last evaluated at step {values.index[-1]} of {planned}"
        return None
    return None if record.curves.xy(spec.metric, spec.budget) else "no value: it does not apply or was not logged"


def _copies(pair: Pair, _: MetricSpec) -> Iterable[Failure]:
    for what, hashes in (
        ("the same metrics.jsonl", [(r.name, r.curves.sha256) for r in pair.records if r.curves]),
        (
            "the same imported log",
            [
                (r.name, str(imported.get("sha256") or imported["files"]))
                for r in pair.records
                if (imported := r.facts.imported)
            ],
        ),
        ("the same answers", [(r.name, r.answers.sha256) for r in pair.records if r.answers]),
    ):
        first: dict[str, str] = {}
        for name, digest in hashes:
            if (twin := first.setdefault(digest, name)) != name:
                yield Failure("copies", what, twin, name, "remove the copy; train that seed instead")


def _one_setting(pair: Pair, _: MetricSpec) -> Iterable[Failure]:
    """All runs of an arm have its one `[algo]` table: a sentence names one value of each key."""
    for side in (pair.left, pair.right):
        for key, one, other in _unequal([list(side.values())], lambda record: record.facts.algorithm_keys):
            sides = _sides(pair, next(iter(side.values())), f"{one}; {other}")
            do = "train its other seeds again, or leave them out with --seeds"
            yield Failure("config", f"{key}, within one arm", *sides, do)


def _changed_modules(pair: Pair, _: MetricSpec) -> Iterable[Failure]:
    """A reward, task or algorithm of the user's that changed while a run was trained."""
    for record in pair.records:
        for change in record.facts.changed_modules:
            do = "train anew with one version of it, or --allow code"
            yield Failure("code", f"changed in {record.name}", *_sides(pair, record, change), do)


CHECKS: tuple[Check, ...] = (
    _pairs, "start", "data", "budget", _queries, _meaning, "eval", "eval seed", "config", _one_setting, _status, _cells,
    _copies, "code", _changed_modules, "hardware", "versions",
)  # fmt: skip
"""Names are those of `FACTS`. To add a check, write a function that yields its failures and add it here."""
OF_IMPORTED: tuple[Check, ...] = (
    _pairs, "budget", _meaning, "config", _one_setting, _status, _cells, _copies,
)  # fmt: skip
"""What another trainer's log and configuration allow to be checked; the rest is assumed, and named."""
