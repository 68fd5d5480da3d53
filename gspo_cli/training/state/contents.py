"""What a checkpoint holds, gathered from a run and put back into one: `state.json`, weights and named tensors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors.torch import load_file
from torch import Tensor
from torch.amp import GradScaler

from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode, GspoError, quoted
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.models.sharding import copy_from_rank0, full_tensor, is_sharded
from gspo_cli.runlog.log import Position
from gspo_cli.training.rollout_queue import load_queue
from gspo_cli.training.state.checkpoint_folder import Damaged
from gspo_cli.training.state.shards import CheckpointState, load_pieces, own_part, share_name, shared_hash
from gspo_cli.training.state.tensors import optimizer_tensors, restore_generators, restore_optimizer

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


def collect(session: Session, run: Path, ranks: Ranks) -> CheckpointState:
    """This rank's tensors. With several ranks, which write while training goes on, they are copies of the rows that
    each rank holds.

    Errors: GspoError (exit code 4) for a weight or moment that is not finite; such a state is never saved.
    """
    learner, size = session.learner, num_writers(session)
    trained, weights = {n: p for n, p in learner.model.named_parameters() if p.requires_grad}, dict[str, Tensor]()
    buffers = dict[str, Tensor]()
    parts = {share_name(OPTIMIZER, ranks.rank, size): optimizer_tensors(learner.optimizer, trained.items())}
    if learner.critic is not None:
        parts[share_name(CRITIC, ranks.rank, size)] = learner.critic.tensors()
    if ranks.size == 1:
        weights = {name: p.detach() for name, p in learner.model.named_parameters()}
    elif session.run.recipe.model.lora is not None:
        # a copy: where each machine has one rank, the whole tensor is the model's own memory
        whole, trained = {n: full_tensor(p.detach()).to("cpu", copy=True) for n, p in trained.items()}, {}
        weights = whole if ranks.is_main else {}
    elif ranks.is_main:
        known, kept = dict(learner.model.named_buffers()), learner.model.state_dict()
        buffers = {name: t.to("cpu", copy=True) for name, t in known.items() if name in kept}
    everything = weights | {name: own_part(p) for name, p in trained.items()}
    for tensors in parts.values():
        everything |= tensors

    def refuse_nonfinite() -> None:
        bad = next((n for n, t in everything.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)
        if bad is not None:
            raise GspoError(
                f"{bad.partition('@')[0]} is not finite after rollout batch {session.step}",
                "a state like that is never saved",
                f"gspo train --resume {quoted(run)} goes back to the last checkpoint, with another recipe if need be",
                ExitCode.GUARD,
            )

    ranks.all_gather(refuse_nonfinite)
    if ranks.size == 1:
        files = {file: {n: t.cpu().contiguous() for n, t in tensors.items()} for file, tensors in parts.items()}
        return CheckpointState(weights, {}, {}, files, weights_hash(learner.model))
    files = {file: {n: t.to("cpu", copy=True) for n, t in tensors.items()} for file, tensors in parts.items()}
    rows = {name: (p.shape, own_part(p).to("cpu", copy=True)) for name, p in trained.items()}
    return CheckpointState(weights, rows, buffers, files, "")


def num_writers(session: Session) -> int:
    """How many ranks hold different rows, and write them: the first ones."""
    return int(next(session.learner.model.parameters()).device_mesh.size(-1)) if session.learner.ranks.size > 1 else 1


def loss_scalers(learner: Learner) -> dict[str, GradScaler]:
    """Those that scale, by the name of their model."""
    every = {"policy": learner.scaler} | ({"critic": learner.critic.scaler} if learner.critic else {})
    return {name: scaler for name, scaler in every.items() if scaler.is_enabled()}


def restore(session: Session, folder: Path, state: RunState) -> None:
    """Puts a run into the state of a verified checkpoint; its start model has been loaded and compared before.

    Errors: GspoError (exit code 6) for a file that is missing or does not fit: never a fresh default instead.
    """
    learner = session.learner
    try:
        load_weights(session, folder / "model", state)
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), load_pieces(folder, OPTIMIZER))
        if learner.critic is not None:
            learner.critic.restore(load_pieces(folder, CRITIC))
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
        model.load_state_dict(loaded.state_dict())
    hashes = [partial(weights_hash, model), partial(shared_hash, model, ranks)]  # of one rank's, and of several ranks'
    if not any(found() == state.weights_sha256 for found in hashes[:: 1 if ranks.size == 1 else -1]):
        raise ValueError(f"the loaded weights are not the saved ones, whose sha256 is {state.weights_sha256[:12]}")
