"""`gspo rollout`: sample and store one scored batch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import RECIPE, Json, Model, Set, TrustCode
from gspo_cli.errors import GspoError


@console.command
def rollout(
    recipe: RECIPE = "quickstart",
    out: Annotated[Path, typer.Option(help="Folder for the batch.")] = Path("rollout"),
    model: Model = None,
    seed: Annotated[int | None, typer.Option(help="Seed of prompts and samples.")] = None,
    set_: Set = None,
    trust_remote_code: TrustCode = None,
    json_: Json = False,
) -> None:
    """Sample one rollout batch with a recipe's model, score it and store it as parquet.

    Examples:

        gspo rollout --out my-batch

        gspo rollout gsm8k --model ./Qwen3-0.6B --set rollout.prompts=8 --out my-batch
    """
    from gspo_cli import recipe as recipes
    from gspo_cli.cli.bars import ColdStartBar, SamplingBar

    options = {} if model is None else {"model": {"path": model, "tiny": None}, "cold_start": None}
    loaded = recipes.load(recipe, options, set_ or [])
    target = out / "step_000001.parquet"
    if target.exists():
        raise GspoError(f"{target} exists", "a stored batch is not overwritten", "choose another --out")

    from gspo_cli.models.foreign_code import allow_code
    from gspo_cli.models.torch_setup import prepare_torch
    from gspo_cli.runlog.folder import make_writable
    from gspo_cli.training.checks import check_recipe_engine
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.sample import sample_once

    allow_code(trust_remote_code)
    check_recipe_engine(loaded, trains=False)
    make_writable(out)
    prepare_torch(loaded.model.threads)
    start = start_model(loaded, ColdStartBar())
    batch = sample_once(loaded, start, loaded.seed if seed is None else seed, target, SamplingBar())
    console.note(f"sampled with {start}")
    rewards = [s.value for g in batch.groups for s in g.scores if s.value is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    found = {"path": str(target), "prompts": len(batch.groups), "responses": sum(len(g.samples) for g in batch.groups),
             "reward_mean": mean}  # fmt: skip
    if json_:
        console.print_json(found)
    else:
        reward = "n/a" if mean is None else f"{mean:.4f}"
        console.out.print(
            f"{target}: {found['responses']} responses to {found['prompts']} prompts, mean reward {reward}"
        )
