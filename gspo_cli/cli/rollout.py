"""`gspo rollout` and `gspo cold-start`: the first stages of training on their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gspo_cli.cli import console, options
from gspo_cli.cli.options import Json, Model, RecipeArgument, Set, TrustCode, check_seed
from gspo_cli.errors import GspoError

if TYPE_CHECKING:
    from gspo_cli.config import Recipe


def cold_start(
    recipe: RecipeArgument = "quickstart",
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("cold-start"),
    set_: Set = None,
    trust_remote_code: TrustCode = None,
    json_: Json = False,
) -> None:
    """Train a recipe's cold-start model on its own, from the task's demonstrations or your own file.

    Examples:
        gspo cold-start --out my-start
        gspo cold-start quickstart --set cold_start.path=demos.jsonl --out my-start
    """
    from gspo_cli.recipe import default_arms, load

    loaded = load(recipe, {}, set_ or [])
    if loaded.cold_start is None:
        raise GspoError(f"recipe {recipe} has no [cold_start]", "there is nothing to train", "add that table")
    if out.exists():
        raise GspoError(f"{out} exists", "models are never overwritten", "choose another --out")

    console.note_torch()  # it and all else only once the options are valid
    from gspo_cli.cli.views.training import ColdStartBar
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.training.cold_start import build
    from gspo_cli.training.study.arms import arm_notes

    arm_notes(loaded, default_arms(loaded))
    allow_code(trust_remote_code)
    prepare_torch(loaded.model.threads, loaded.model.float32_matmul)
    build(loaded.seeded(loaded.seed), out, ColdStartBar())
    console.print_result({"model": str(out)}, json_)


OF_MODEL = ("model.path", "model.tiny", "model=")
"""How a `--set` begins that names another model."""


def _recipe_of(name: str | None, model: str | None, sets: list[str]) -> tuple[Recipe, str]:
    """The recipe to sample with, and why its model is the one. Errors: GspoError for a run together with `--model`."""
    from gspo_cli.evals.targets import UNDIVIDED, named_folder, run_recipe
    from gspo_cli.recipe import load, names, use_model
    from gspo_cli.runlog.folder import only_run

    names_model = model or any(text.startswith(OF_MODEL) for text in sets)
    try:
        folder = None if name is None and names_model else named_folder(name, options.RESULTS)
    except GspoError:
        if name is not None:
            raise
        return load("quickstart", UNDIVIDED, sets), " (no name was given and there is no run: the recipe quickstart)"
    if folder is None or (name in names() and not (folder / "run.json").is_file()):
        return load(name or "quickstart", use_model(model) | UNDIVIDED, sets), ""
    run = only_run(folder)
    if model:
        raise GspoError(f"{run} with --model {model}", "a run samples with its own checkpoint", "give a recipe, or one")
    if other := [text for text in sets if text.startswith((*OF_MODEL, "cold_start"))]:
        raise GspoError(f"{run} with --set {other[0]}", "a run samples with its own checkpoint", "leave it out")
    newest = " (no name was given: the newest run)" if name is None else ""
    return run_recipe(run, sets), newest


def rollout(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|RECIPE",
            help="A run, whose newest checkpoint samples; or a recipe, whose start model does.",
            show_default="the newest run, else quickstart",
            autocompletion=options.complete_recipe,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the batch.")] = Path("rollout"),
    model: Model = None,
    seed: Annotated[int | None, typer.Option(help="Seed for prompts and samples.")] = None,
    set_: Set = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first prompt's exact tokens; sample nothing.")
    ] = False,
    trust_remote_code: TrustCode = None,
    json_: Json = False,
) -> None:
    """Sample one rollout batch with a run's or a recipe's model, score it, and store it as parquet.

    Without a name it takes the newest run under `results`, as `gspo eval benchmarks` does, unless `--model` or `--set`
    names a model.

    Examples:
        gspo rollout --out my-batch
        gspo rollout my-study/gspo-s0 --set rollout.prompts=2 --out my-batch
        gspo rollout gsm8k --model ./Qwen3-0.6B --set rollout.prompts=8 --out my-batch
        gspo rollout gsm8k --model ./Qwen3-0.6B --show-prompt
    """
    from gspo_cli.models.files import check_source
    from gspo_cli.recipe import default_arms, refuse_twice
    from gspo_cli.runlog.folder import refuse_file, writable

    loaded, why = _recipe_of(source, model, set_ or [])
    chosen = check_seed(loaded.seed if seed is None else seed)
    if seed is not None:
        refuse_twice(loaded, ["seed"], "--seed")
    if show_prompt:
        if seed is not None:
            raise GspoError("--show-prompt with --seed", "it shows the first problem of the data", "leave out --seed")
        return print_prompt(loaded, trust_remote_code, json_)
    target = out / "step_000001.parquet"
    if target.exists():
        raise GspoError(f"{target} exists", "stored batches are never overwritten", "choose another --out")
    refuse_file(out)
    if loaded.model.path is not None:
        check_source(loaded.model.path, loaded.model.revision)

    console.note_torch()  # it and all else only once the options are valid
    from gspo_cli.cli.views.training import ColdStartBar, SamplingBar
    from gspo_cli.models.device import prepare_torch
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.tasks.scoring import show_slow_rewards
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.run_folder import sample_once
    from gspo_cli.training.study.arms import arm_notes
    from gspo_cli.training.study.checks import check_recipe_engine

    arm_notes(loaded, default_arms(loaded))
    allow_code(trust_remote_code)
    show_slow_rewards(console.note)
    check_recipe_engine(loaded, trains=False)
    with writable(out):
        prepare_torch(loaded.model.threads, loaded.model.float32_matmul)
        start = start_model(loaded.seeded(chosen), ColdStartBar())
        console.note(f"model: {start}{why}")
        with SamplingBar() as bar:
            batch = sample_once(loaded, start, chosen, target, bar, console.note)
    prompts, responses = len(batch.groups), sum(len(group.samples) for group in batch.groups)
    rewards = [score.value for group in batch.groups for score in group.scores if score.value is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    facts = {"path": str(target), "prompts": prompts, "responses": responses, "reward_mean": mean}
    text = f"{target}: {responses} responses to {prompts} prompts, mean reward {console.number(mean, '.4f')}"
    console.print_result(facts, json_, text)


def print_prompt(recipe: Recipe, trust_remote_code: str | None, as_json: bool) -> None:
    """Print the first problem's prompt as the model gets it: its text with special tokens, and every token."""
    from gspo_cli.models.remote_code import allow_code
    from gspo_cli.rollout.prompts import describe_prompt
    from gspo_cli.training.study.inputs import read_inputs

    allow_code(trust_remote_code)
    inputs = read_inputs(recipe)
    assert inputs.tokenizer is not None and inputs.first is not None
    console.note(*(f"warning: {note}" for note in inputs.notes))
    text, ids, tokens = describe_prompt(inputs.tokenizer, inputs.first)
    if as_json:
        about = {"problem_id": inputs.first.problem_id, "text": text, "token_ids": ids, "tokens": tokens}
        return console.print_json(about)
    console.out.print(text)
    for number, token in zip(ids, tokens, strict=True):
        console.out.print(f"{number:>8}  {token!r}")
    console.note(f"problem {inputs.first.problem_id}: {console.plural(len(ids), 'token')}")
