"""What the command line of an evaluation names: models, where results go, where problems come from. Light: no torch."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import ModelConfig, Recipe, RolloutConfig, TaskConfig, flat, merge
from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet
from gspo_cli.plugins import add_search_folder, plugin_source
from gspo_cli.recipe import Layer, parse_set, user_error, validate
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.rollout.prompts import PLAIN
from gspo_cli.runlog.folder import find_folder, newest_run
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.tables import Table
from gspo_cli.tasks import make_task, read_problems

ARITHMETIC = ("dtype", "compute", "float32_head", "float32_matmul", "device", "threads")
"""What a run's checkpoints keep of the recipe's table `[model]`: without these they would give other numbers."""
UNDIVIDED = {"train": {"minibatches": 1}, "algo": {"minibatches": None}}
"""What is sampled without training is not divided into mini-batches, so that it may have few prompts."""
DEADLINE_S = 24 * 3600.0
"""For one portion of answers: long responses take longer than a training batch may."""


def problem_loader(choices: Mapping[str, DataChoice], warn: Callable[[str], None]) -> Callable[[Benchmark], ProblemSet]:
    """A function that loads the problems of a benchmark, once, and gives their warnings as it does."""

    loaded: dict[str, ProblemSet] = {}

    def load(benchmark: Benchmark) -> ProblemSet:
        if benchmark.name not in loaded:
            loaded[benchmark.name] = benchmark.load(choices.get(benchmark.name, DataChoice()))
            for warning in loaded[benchmark.name].warnings:
                warn(f"warning: {warning}")
        return loaded[benchmark.name]

    return load


def parse_data(options: Mapping[str, list[str] | None], benchmarks: list[Benchmark]) -> dict[str, DataChoice]:
    """From the values `NAME=VALUE` of `--data`, `--revision`, `--release`, `--window`, `--contests`, `--ratings`.

    Several files for one name are joined.
    Errors: GspoError for another form, or for the name of a benchmark that is not evaluated.
    """
    by_name = {b.name: b for b in benchmarks}
    values: dict[str, dict[str, list[str]]] = {}
    for option, texts in options.items():
        for text in texts or ():
            name, equals, value = text.partition("=")
            if not equals or not value:
                raise GspoError(f"--{option} {text} has no name and value", "the form is NAME=VALUE", "give both")
            if name not in by_name:
                chosen = ", ".join(by_name)
                raise GspoError(f"--{option} {text}", f"{name!r} is not among --bench {chosen}", "correct the name")
            if option not in ("data", "revision", *by_name[name].takes):
                raise GspoError(f"--{option} {text}", f"{name} does not take --{option}", "leave it out")
            values.setdefault(name, {}).setdefault(option, []).append(value)
    return {name: _data_choice(name, chosen) for name, chosen in values.items()}


def _data_choice(name: str, values: dict[str, list[str]]) -> DataChoice:
    repeated = next((option for option, texts in values.items() if option != "data" and len(texts) > 1), None)
    if repeated:
        raise GspoError(f"--{repeated} for {name} is given twice", "it takes one value", "leave out the others")
    if "data" in values and "revision" in values:
        raise GspoError(f"--data and --revision for {name}", "a local file has no revision", "use one of them")
    single = {option: texts[0] for option, texts in values.items() if option != "data"}
    contests, ratings = (Path(single.pop(k)) if k in single else None for k in ("contests", "ratings"))
    return DataChoice(tuple(map(Path, values.get("data", ()))), contests=contests, ratings=ratings, **single)


class ModelSource(Table):
    """The tables of a recipe that an evaluation uses: where the model is and what samples from it."""

    model: ModelConfig
    rollout: RolloutConfig = RolloutConfig()


@dataclass(frozen=True, slots=True)
class Target:
    """One model to evaluate."""

    name: str
    folder: Path
    """Of all its results; a run's checkpoints share one."""
    step: str | None
    """`step-000060` of a run's checkpoint; None for a bare model."""
    source: ModelSource
    prompting: TaskConfig
    """How the run wrote its prompts: system prompt and chat template."""
    seed: int
    """The run's seed, so that an evaluation repeats the one that ended its training; 0 for a bare model."""
    logged: Mapping[str, Any] = field(default_factory=dict)
    """The run's `[eval]`: how it was evaluated in training."""

    def results(self, benchmark: Benchmark) -> Path:
        """Where the results of a benchmark go."""
        return self.folder / benchmark.name / (self.step or "")


SAMPLED_ALIKE = ("temperature", "top_p", "top_k", "min_p")
"""What a recipe cannot change in a benchmark."""


def unlike_training(target: Target, benchmark: str, chosen: Mapping[str, Any]) -> str | None:
    """What of its `[eval]` a run logged this benchmark with, and `chosen` has not; None without a difference."""
    if benchmark not in target.logged.get("bench", ()):
        return None
    then = {**target.logged, "data": target.logged.get("data", {}).get(benchmark)}
    differing = [f"eval.{key} = {then[key]}" for key, now in chosen.items() if then.get(key) not in (None, now)]
    differing += [f"the benchmark's own {key}" for key in SAMPLED_ALIKE if chosen.get(key) is not None]
    if not differing:
        return None
    return f"{target.folder.parent.name} logged {benchmark} with {', '.join(differing)}: this is another measurement"


def find_targets(
    name: str | None, out: Path, all_checkpoints: bool, engine: str | None, sets: Iterable[str]
) -> list[Target]:
    """The last or all checkpoints of a run (default: the newest run) or of every run of a study, or a model folder or
    hub name.

    Errors: GspoError for a run without checkpoints, or `--set` keys that do not fit.
    """
    layers = [Layer("--engine", {"rollout": {"engine": engine}} if engine else {}), *map(parse_set, sets)]
    refuse_unused(layers)
    folder = named_folder(name, out)
    if folder is None:
        return [_bare_model(str(name), out, all_checkpoints, layers)]
    return [target for run in _runs_of(folder) for target in _targets_of(run, all_checkpoints, layers)]


def _runs_of(folder: Path) -> list[Path]:
    """The run itself, or the runs of a study."""
    own = (folder / "run.json").is_file()
    return [folder] if own else sorted(file.parent for file in folder.glob("*/run.json"))


UNUSED = {
    "rollout.samples": "--samples",
    "rollout.temperature": "--temperature",
    "rollout.max_new_tokens": "--max-tokens",
    "rollout.prompts": "--limit",
    "model.path": "the argument MODEL",
    "model.tiny": "the argument MODEL",
    "model.lora": "",
} | dict.fromkeys([f"rollout.{key}" for key in ("routes", "max_lag", "store", "keep_newest", "stop")], "")
"""Keys of training that an evaluation does not use, and what decides them here, if anything does."""


def refuse_unused(layers: Iterable[Layer]) -> None:
    """Errors: GspoError for a key that would change nothing."""
    for layer in layers:
        for given, (key, instead) in itertools.product(flat(layer.table), UNUSED.items()):
            if f"{given}.".startswith(f"{key}."):
                raise GspoError(
                    f"{layer.source} has no part in an evaluation",
                    f"{instead} decides that" if instead else f"{key} is a key of training",
                    f"use {instead}" if instead else "leave it out",
                )


def _targets_of(run: Path, all_checkpoints: bool, layers: list[Layer]) -> list[Target]:
    config, record = _read_object(run / "config.json"), _read_object(run / "run.json")
    for name, kind in (("model", dict), ("rollout", dict), ("seed", int)):
        if not isinstance((record if kind is int else config).get(name, kind()), kind):
            raise GspoError(f"{run} is no run", f"its {name!r} is of another kind", "name a run or a model folder")
    model = {k: v for k, v in config.get("model", {}).items() if k in ARITHMETIC}
    rollout = config.get("rollout", {}) | {"deadline_s": DEADLINE_S}
    base = Layer(str(run / "config.json"), {"model": model, "rollout": rollout})
    folders, prompting = model_folders(run), _prompting(config.get("task", {}))
    return [
        Target(
            name=str(folder),
            folder=run / "eval",
            step=folder.parent.name,
            source=_model_source([base, *layers], folder),
            prompting=prompting,
            seed=record.get("seed", 0),
            logged=config["eval"] if isinstance(config.get("eval"), dict) else {},
        )
        for folder in (folders if all_checkpoints else folders[-1:])
    ]


def named_folder(name: str | None, out: Path) -> Path | None:
    """The run or study of `gspo rollout` and `gspo eval`: without a name the newest run, else what `find_folder` finds.
    None for a name of something else, such as the folder of a model.

    Errors: GspoError without a name and without a run.
    """
    if name is None:
        return newest_run(out)
    if (Path(name) / "config.json").is_file() and not (Path(name) / "run.json").is_file():
        return None  # a model's folder, although a run may have the same name
    folder = find_folder(name, out)
    return folder if folder and any(next(folder.glob(runs), None) for runs in ("run.json", "*/run.json")) else None


def trained_recipe(name: str | None, out: Path, warn: Callable[[str], None]) -> Recipe | None:
    """The recipe of the named run, or of a study's first; None for a bare model. Warns of data or code that have
    changed since it was trained."""
    folder = named_folder(name, out)
    if folder is None:
        return None
    run = _runs_of(folder)[0]
    recipe, record = run_recipe(run, ()), _read_object(run / "run.json")
    changed = [
        plugin for plugin, source in (record.get("plugins") or {}).items()
        if plugin_source(plugin).get("sha256") != source.get("sha256")
    ]  # fmt: skip
    if recipe.task.too_long != "drop":  # else it depends on the tokenizer which rows were trained on
        rows = problems_hash(read_problems(make_task(recipe.task), recipe.task))
        changed += ["the rows"] if rows != record.get("data_sha256") else []
    if changed:
        warn(f"warning: {', '.join(changed)} changed since {run} was trained: not the benchmark that it logged")
    return recipe


def run_recipe(run: Path, sets: Iterable[str]) -> Recipe:
    """The recipe of a run with its newest checkpoint as the model, changed by `--set`. The modules that its study names
    can be imported from now on.

    Errors: GspoError for a run without a checkpoint, or keys that do not fit.
    """
    config = _read_object(run / "config.json")
    model = {key: value for key, value in config.get("model", {}).items() if key in ARITHMETIC}
    plans = run.parent / "study.json"
    study = _read_object(plans) if plans.is_file() else {}
    for folder in (folder for plan in study.get("plans", ()) for folder in plan.get("modules", ())):
        add_search_folder(Path(folder))
    own = {"model": model | {"path": str(model_folders(run)[-1])}, "cold_start": None}
    layers = [Layer(str(run / "config.json"), config | own), Layer("gspo rollout", UNDIVIDED)]
    return validate([*layers, *map(parse_set, sets)])


def model_folders(run: Path) -> list[Path]:
    """The model folders of a run's checkpoints, by step. Errors: GspoError when the run has none."""
    steps = {p: p.parent.name.removeprefix("step-") for p in run.glob("checkpoints/step-*/model")}
    folders = sorted((p for p, step in steps.items() if step.isdecimal()), key=lambda p: int(steps[p]))
    if not folders:
        raise GspoError(
            f"{run} has no saved model", "a run saves its weights when it ends", "let it finish, or name a model folder"
        )
    return folders


def _bare_model(name: str, out: Path, all_checkpoints: bool, layers: list[Layer]) -> Target:
    if all_checkpoints:
        raise GspoError(
            f"{name} is not a run", "only a run has checkpoints", "leave out --all-checkpoints, or name a run"
        )
    safe_name = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    base = Layer("the defaults", {"rollout": {"deadline_s": DEADLINE_S}})
    return Target(name, out / f"eval-{safe_name}", None, _model_source([base, *layers], Path(name)), PLAIN, 0)


def _prompting(task: Any) -> TaskConfig:
    """The keys of a run's `[task]` that say how any prompt is written."""
    keys = ("system", "chat", "chat_template_kwargs")
    return TaskConfig.model_validate({key: task[key] for key in keys if key in task} if isinstance(task, dict) else {})


def _model_source(layers: list[Layer], model: Path) -> ModelSource:
    table: dict[str, Any] = {}
    for layer in layers:
        table = merge(table, layer.table)
    try:
        return ModelSource.model_validate(merge(table, {"model": {"path": str(model), "tiny": None}}))
    except ValidationError as error:
        raise user_error(error.errors(include_url=False)[0], layers, ModelSource) from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except GspoError as error:
        raise GspoError(error.message, error.why, "name a model folder instead") from error
