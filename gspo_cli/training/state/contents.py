"""What a checkpoint holds, gathered from a run and put back into one: `state.json`, weights and named tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.amp import GradScaler
from transformers import PreTrainedModel

from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.sharding import copy_from_rank0, full_tensor, is_sharded
from gspo_cli.runlog.log import Position
from gspo_cli.training.rollout_queue import load_queue
from gspo_cli.training.state.checkpoint_folder import Damaged
from gspo_cli.training.state.tensors import optimizer_tensors, restore_generators, restore_optimizer, restore_parameters

if TYPE_CHECKING:
    from gspo_cli.training.session import Session
    from gspo_cli.training.step.update import Learner

STATE, OPTIMIZER, CRITIC, GENERATORS = "state.json", "optimizer", "critic", "rng.safetensors"


class RunState(BaseModel):
    """`state.json`: a run between two rollout batches. It holds nothing of the clock or the attempt, so that a resumed
    run's checkpoints equal an uninterrupted run's byte for byte."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    version: Literal[1] = 1
    step: NonNegativeInt
    """Rollout batches done; the position in the data and the learning rate follow from it and `portions`."""
    portions: NonNegativeInt
    """`Session.prompt_batches`."""
    ahead: NonNegativeInt = 0
    """Length of `Session.rollout_queue`; its batches are files beside this one."""
    updates: NonNegativeInt
    totals: dict[str, int]
    """The compute/* counters."""
    guards: dict[str, int]
    """The guards' counts; without them a resume would reset their limits."""
    norms: list[float] = []
    """The gradient norms that the guards compare the next one with."""
    widest: float
    """`Session.max_ratio_deviation`."""
    outside: bool
    """`Session.left_clip_range`."""
    log: Position
    """The end of `metrics.jsonl`."""
    loss_scales: dict[str, dict[str, int | float]] = {}
    """The scalers of policy and critic, where passes are in float16."""
    score: float | None
    """The metric `checkpoint.best` of the rollout batch, negated if lower is better."""
    weights_sha256: str
    start_sha256: str
    """Of the start model, which the KL penalty refers to."""
    config_sha256: str
    changes: dict[str, Any]
    """Keys of the recipe that a resume was allowed to change, with their values."""


def read_state(checkpoint: Path) -> RunState:
    """The state of a checkpoint. Errors: Damaged for one that is not of this version, or of another step."""
    try:
        state = RunState.model_validate_json((checkpoint / STATE).read_bytes())
    except OSError as error:
        raise Damaged(f"{STATE}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Damaged(f"{STATE}: {'.'.join(map(str, first['loc']))} {first['msg']}") from error
    if checkpoint.name != f"step-{state.step:06d}":
        raise Damaged(f"{STATE} is that of step {state.step:.6g}")
    return state


@dataclass(frozen=True)
class CheckpointState:
    """The tensors that this rank writes into a checkpoint."""

    weights: dict[str, Tensor]
    """Full tensors on rank 0; empty on the others."""
    files: dict[str, dict[str, Tensor]]
    weights_sha256: str


def collect(session: Session, run: Path, ranks: Ranks) -> CheckpointState:
    """This rank's tensors: of a sharded model rank 0 takes the weights, and each rank its share of the rest.

    Errors: GspoError (exit code 4) for a weight or moment that is not finite; such a state is never saved.
    """
    learner = session.learner
    weights = full_weights(learner.model, ranks)
    optimizer = optimizer_tensors(learner.optimizer, learner.model.named_parameters(), ranks)
    files = {share_name(OPTIMIZER, ranks): optimizer}
    if learner.critic is not None:
        files[share_name(CRITIC, ranks)] = learner.critic.tensors()
    everything: dict[str, Tensor] = dict(weights)
    for tensors in files.values():
        everything |= tensors

    def refuse_nonfinite() -> None:
        bad = next((n for n, t in everything.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
        if bad is not None:
            raise GspoError(
                f"{bad} is not finite after rollout batch {session.step}",
                "a state like that is never saved",
                f"gspo train --resume {run} goes back to the last checkpoint, with another recipe if need be",
                ExitCode.GUARD,
            )

    ranks.all_gather(refuse_nonfinite)
    return CheckpointState(weights, files, weights_hash(learner.model))


def loss_scalers(learner: Learner) -> dict[str, GradScaler]:
    """Those that scale, by the name of their model."""
    every = {"policy": learner.scaler} | ({"critic": learner.critic.scaler} if learner.critic else {})
    return {name: scaler for name, scaler in every.items() if scaler.is_enabled()}


def full_weights(model: PreTrainedModel, ranks: Ranks) -> dict[str, Tensor]:
    """The weights by name; the trained ones of a sharded model are gathered into the host memory of rank 0."""
    if not is_sharded(model):
        return {name: p.detach() for name, p in model.named_parameters()}
    gathered = ((name, full_tensor(p.detach())) for name, p in model.named_parameters() if p.requires_grad)
    return {name: rows.cpu() for name, rows in gathered if ranks.is_main}


def share_name(kind: str, ranks: Ranks) -> str:
    """The file for this rank's share of the moments, or of the critic."""
    return f"{kind}.safetensors" if ranks.size == 1 else f"{kind}-{ranks.rank + 1:05d}-of-{ranks.size:05d}.safetensors"


def load_shares(folder: Path, kind: str) -> dict[str, Tensor]:
    """All shares together, however many ranks saved them. Errors: OSError when there are none."""
    files = sorted(folder.glob(f"{kind}*.safetensors")) or [folder / f"{kind}.safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def save_all(files: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """Writes each entry as a safetensors file."""
    for name, tensors in files.items():
        save_file(tensors, folder / name)


def restore(session: Session, folder: Path, state: RunState) -> None:
    """Puts a run into the state of a verified checkpoint; its start model has been loaded and compared before.

    Errors: GspoError (exit code 6) for a file that is missing or does not fit: never a fresh default instead.
    """
    learner = session.learner
    try:
        load_weights(session, folder / "model", state)
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), load_shares(folder, OPTIMIZER))
        if learner.critic is not None:
            learner.critic.restore(load_shares(folder, CRITIC))
        for name, scaler in loss_scalers(learner).items():
            scaler.load_state_dict(state.loss_scales[name])
        restore_generators(load_file(folder / GENERATORS))
        session.rollout_queue.extend(load_queue(folder, state.step, state.ahead))
    except (OSError, KeyError, ValueError, RuntimeError) as error:  # RuntimeError: a generator's state
        raise GspoError(
            f"{folder} does not fit this run", str(error), "resume with the version that wrote it", ExitCode.STORAGE
        ) from error
    session.step, session.prompt_batches, session.updates = state.step, state.portions, state.updates
    session.totals.update(state.totals)
    session.guards.counts.update(state.guards)
    session.guards.norms.extend(state.norms)
    session.max_ratio_deviation, session.left_clip_range = state.widest, state.outside
    session.engine.sync(learner.model, version=state.step)


def load_weights(session: Session, folder: Path, state: RunState) -> None:
    """Copies the saved weights into the model, in place: engine and optimizer hold references to it.

    Errors: ValueError unless the model then has the very weights that were saved.
    """
    model, ranks = session.learner.model, session.learner.ranks
    config = session.run.recipe.model.model_copy(update={"device": "cpu", "revision": None})
    loaded = load_policy(config, folder)[0] if ranks.is_main else None
    if is_sharded(model):
        copy_from_rank0(loaded, model)
    elif loaded is not None:
        restore_parameters(model.named_parameters(), dict(loaded.named_parameters()))
    if (found := weights_hash(model)) != state.weights_sha256:
        raise ValueError(f"the loaded weights have sha256 {found[:12]}, the saved ones {state.weights_sha256[:12]}")
