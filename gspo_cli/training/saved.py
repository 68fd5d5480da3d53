"""What a checkpoint holds: gathered from a run, and put back into one.

Of a model that is divided over ranks rank 0 takes the weights, whole, and each rank its share of the moments and of the
critic; so a checkpoint says nothing about the number of ranks, and any number can go on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.checkpoint.state import State
from gspo_cli.checkpoint.tensors import (
    first_nonfinite,
    optimizer_tensors,
    restore_generators,
    restore_optimizer,
    restore_parameters,
)  # fmt: skip
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.sharding import copy_from_first, is_sharded, whole
from gspo_cli.ranks import Ranks
from gspo_cli.training.ahead import load_ahead

if TYPE_CHECKING:
    from gspo_cli.training.loop import Session

STATE, OPTIMIZER, CRITIC, GENERATORS = "state.json", "optimizer", "critic", "rng.safetensors"


@dataclass(frozen=True)
class Saved:
    """What goes into a checkpoint, as far as it lies in the memory of this rank."""

    weights: dict[str, Tensor]
    """Whole; empty on all ranks but the first."""
    files: dict[str, dict[str, Tensor]]
    weights_sha256: str


def collect(session: Session, run: Path, ranks: Ranks) -> Saved:
    """What this rank writes: of a divided model rank 0 takes the weights, each its share of the rest.

    Errors: GspoError (exit code 4) for a weight or moment that is not finite; such a state is never saved.
    """
    learner = session.learner
    weights = whole_weights(learner.model, ranks)
    files = {own_file(OPTIMIZER, ranks): optimizer_tensors(learner.optimizer, learner.model.named_parameters(), ranks)}
    if learner.critic is not None:
        files[own_file(CRITIC, ranks)] = learner.critic.tensors()
    everything: dict[str, Tensor] = dict(weights)
    for tensors in files.values():
        everything |= tensors

    def refuse_nonfinite() -> None:
        if bad := first_nonfinite(everything):
            raise GspoError(
                f"{bad} is not finite after rollout batch {session.step}",
                "a state like that is never saved",
                f"gspo train --resume {run} goes back to the last checkpoint, with another recipe if need be",
                ExitCode.GUARD,
            )

    ranks.everywhere(refuse_nonfinite)
    return Saved(weights, files, weights_hash(learner.model))


def whole_weights(model: PreTrainedModel, ranks: Ranks) -> dict[str, Tensor]:
    """The weights by name; what is trained of a divided model is gathered into the memory of rank 0's host."""
    if not is_sharded(model):
        return {name: p.detach() for name, p in model.named_parameters()}
    gathered = ((name, whole(p.detach())) for name, p in model.named_parameters() if p.requires_grad)
    return {name: rows.cpu() for name, rows in gathered if ranks.first}


def own_file(kind: str, ranks: Ranks) -> str:
    """Where this rank's share of the moments, or of the critic, goes."""
    return f"{kind}.safetensors" if ranks.size == 1 else f"{kind}-{ranks.rank + 1:05d}-of-{ranks.size:05d}.safetensors"


def load_shares(folder: Path, kind: str) -> dict[str, Tensor]:
    """All of them together, whichever number of ranks saved them.

    Errors: OSError when there are none.
    """
    files = sorted(folder.glob(f"{kind}*.safetensors")) or [folder / f"{kind}.safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def save_all(files: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """Each as a safetensors file."""
    for name, tensors in files.items():
        save_file(tensors, folder / name)


def restore(session: Session, folder: Path, state: State) -> None:
    """Puts a run into the state of a verified checkpoint; its start model has been loaded and compared before.

    Errors: GspoError (exit code 6) for a file that is missing or does not fit: never a fresh default instead.
    """
    learner = session.learner
    try:
        load_weights(session, folder / "model", state)
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), load_shares(folder, OPTIMIZER))
        if learner.critic is not None:
            learner.critic.restore(load_shares(folder, CRITIC))
        restore_generators(load_file(folder / GENERATORS))
        session.ahead.extend(load_ahead(folder, state))
    except (OSError, KeyError, ValueError) as error:
        raise GspoError(
            f"{folder} does not fit this run", str(error), "resume with the version that wrote it", ExitCode.STORAGE
        ) from error
    session.step, session.chunks, session.updates = state.step, state.portions, state.updates
    session.totals.counts.update(state.totals)
    session.guards.counts.update(state.guards)
    session.widest, session.outside = state.widest, state.outside
    session.engine.sync(learner.model, version=state.step)


def load_weights(session: Session, folder: Path, state: State) -> None:
    """Copies the saved weights into the model, in place, so that engine and optimizer keep their hold of it.

    Errors: ValueError unless the model then has the very weights that were saved.
    """
    model, config = session.learner.model, session.run.recipe.model
    config, ranks = config.model_copy(update={"device": "cpu", "revision": None}), session.learner.ranks
    loaded = load_policy(config, folder)[0] if ranks.first else None
    if is_sharded(model):
        copy_from_first(loaded, model)
    elif loaded is not None:
        restore_parameters(model.named_parameters(), dict(loaded.named_parameters()))
    if (found := weights_hash(model)) != state.weights_sha256:
        raise ValueError(f"the loaded weights have sha256 {found[:12]}, the saved ones {state.weights_sha256[:12]}")
