"""The training loop, in the paper's order: sample, score, compute advantages once, take N optimizer steps, repeat.

arXiv 2507.18071, §3 and §5.1: a large batch of rollouts is split into mini-batches, so all but the first of them are
off-policy, which is what the clip ranges are for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.packing import packs
from gspo_cli.rollout.collect import PromptStream, collect
from gspo_cli.rollout.engine import Engine
from gspo_cli.runlog.log import RunLog
from gspo_cli.tasks.contract import Task
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.batches import Cut, make_mini_batches, rewards_and_groups
from gspo_cli.training.checks import minibatches
from gspo_cli.training.preflight import preflight
from gspo_cli.training.probe import Probe
from gspo_cli.training.record import Totals, record_batch
from gspo_cli.training.rollout_metrics import sync_metrics
from gspo_cli.training.stopwatch import Stopwatch
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner, record_old_policy, update, was_applied
from gspo_cli.types import Group, MiniBatch, Reduced, RolloutBatch, Sampling, StepMetrics

MAX_ROUNDS = 10
BAND_BATCHES = 10


@dataclass
class Hooks:
    """What happens around the loop without belonging to it."""

    evaluate: Callable[[], StepMetrics]
    store: Callable[[RolloutBatch], None]
    on_step: Callable[[int, dict[str, float | None]], None]
    """Called after each rollout batch with its metrics and times, for display."""
    on_preflight: Callable[[dict[str, float], list[str]], None]
    """Called once with what the preflight measured and its warnings."""


@dataclass
class Session:
    """A run with everything it needs."""

    run: Run
    learner: Learner
    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    task: Task
    stream: PromptStream
    log: RunLog
    hooks: Hooks
    totals: Totals = field(default_factory=Totals)
    clock: Stopwatch = field(default_factory=Stopwatch)
    chunks: int = 0
    """Portions of the prompt stream consumed so far."""
    widest: float = 0.0
    """Largest distance of a sequence ratio from 1 so far."""
    outside: bool = False
    """Whether any ratio has left the clip range."""


def train(session: Session) -> None:
    """All rollout batches of one run.

    Errors: GspoError (exit code 4) when an update would not be finite; the weights are those before it.
    """
    steps, every = session.run.recipe.train.steps, session.run.recipe.eval.every
    if every:
        evaluate(session, step=0)
    for step in range(1, steps + 1):
        train_batch(session, step)
        if step == steps or (every and step % every == 0):
            evaluate(session, step)


def train_batch(session: Session, step: int) -> None:
    """One rollout batch: everything between two synchronisations of the engine."""
    run, learner, clock = session.run, session.learner, session.clock
    clock.reset()  # what lies between two batches (evaluation, storing) is not theirs
    with clock("rollout_s"):
        batch = sample_batch(session, step)
    session.engine.rest()
    if run.recipe.rollout.store and step % run.recipe.rollout.store == 0:
        session.hooks.store(batch)  # now, while the model is the one that sampled it
    with clock("prepare_s"):
        # once per rollout batch, over all of it: the mini-batches share one old policy and one set of advantages
        algo = run.recipe.algo
        overlong_from = None if algo.overlong_cache_frac is None else 1 - algo.overlong_cache_frac
        advantages_B = run.algorithm.advantage(*rewards_and_groups(batch, overlong_from), run.params)
        mini_batches = make_mini_batches(batch, advantages_B, cut_plan(run, learner), learner.model.device)
        if learner.critic is not None:
            learner.critic.set_advantages(run.algorithm, run.params, mini_batches)
    checked = check_first_batch(session, batch, mini_batches) if step == 1 else {}
    with clock("probe_s"):
        probe = Probe(learner.model, learner.routing, batch)
    with clock("old_policy_s"):
        record_old_policy(learner, mini_batches)

    updates: list[Accumulator] = []
    for index, mini_batch in enumerate(mini_batches):
        with clock("update_s"):
            updates.append(update(learner, mini_batch, learning_rate(run, step, index), first=index == 0))
        if was_applied(updates[-1]):  # without a step there is no change to measure, which is not a change of 0
            with clock("probe_s"):
                updates[-1].add(probe.churn())
    with clock("sync_s"):
        synced = session.engine.sync(learner.model, version=step)

    shown, update_lines = record_batch(
        session.log, session.totals, clock, learner, batch, advantages_B, mini_batches, updates,
        checked | sync_metrics(synced),
    )  # fmt: skip
    stop_if_not_finite(update_lines, step)
    stop_if_not_replayed(update_lines, step)
    watch_band(session, step, shown)
    session.hooks.on_step(step, shown)


def sample_batch(session: Session, step: int) -> RolloutBatch:
    """Samples and scores the prompts of this step with the weights of the step before.

    With dynamic sampling, groups without spread are put aside and further prompts sampled until the batch is full
    (arXiv 2503.14476, Eq. 11), for at most `MAX_ROUNDS` rounds; what is there then is trained on.
    """
    recipe, kept, dropped = session.run.recipe, list[Group](), list[Group]()
    rounds = MAX_ROUNDS if recipe.algo.dynamic_sampling else 1
    for _ in range(rounds):
        session.chunks += 1
        batch = collect(
            session.engine,
            session.tokenizer,
            session.task,
            session.stream.batch(session.chunks),
            recipe.rollout.samples,
            Sampling(recipe.rollout.temperature, recipe.rollout.max_new_tokens),
            seed_keys=(recipe.seed, "sample", step),
            version=step - 1,
        )
        if rounds == 1:
            return batch
        for group in batch.groups:
            (kept if has_spread(group) else dropped).append(group)
        if len(kept) >= recipe.rollout.prompts:
            break
    full, spare = kept[: recipe.rollout.prompts], kept[recipe.rollout.prompts :]
    missing = recipe.rollout.prompts - len(full)
    return replace(batch, groups=tuple(full + dropped[:missing]), dropped=tuple(spare + dropped[missing:]))


def has_spread(group: Group) -> bool:
    """Whether the group's scored responses got different rewards."""
    return len({score.value for score in group.scores if score.value is not None}) > 1


def cut_plan(run: Run, learner: Learner) -> Cut:
    """How this run's batches are cut."""
    return Cut(
        packed=packs(learner.model),
        minibatches=minibatches(run.recipe),
        micro_batch_tokens=run.recipe.train.micro_batch_tokens,
        keep_rows_without_advantage=learner.reference is not None or learner.critic is not None,
        mask_truncated=run.recipe.algo.truncation == "mask",
        routing=learner.routing if run.recipe.records_routes else None,
    )


def check_first_batch(session: Session, batch: RolloutBatch, mini_batches: list[MiniBatch]) -> dict[str, Reduced]:
    """The preflight, logged as an event and shown; its metrics."""
    found = preflight(session.learner, batch, mini_batches, session.engine.info.stop_ids)
    session.log.event("preflight", values=found.values, warnings=found.warnings)
    session.hooks.on_preflight(found.values, found.warnings)
    return found.metrics


def watch_band(session: Session, step: int, values: dict[str, float | None]) -> None:
    """Warns once when no ratio has left the clip range in the first `BAND_BATCHES` rollout batches.

    A range that is never reached clips nothing: the usual cause is one meant for another algorithm.
    """
    session.outside |= bool(values["ratio/outside_frac"])
    for edge in (values.get("ratio/seq_min"), values.get("ratio/seq_max")):
        session.widest = max(session.widest, abs((edge or 1.0) - 1))
    clips = getattr(session.run.params, "clip", None) is not None and minibatches(session.run.recipe) > 1
    if step == BAND_BATCHES and clips and not session.outside:
        warning = (
            f"the clip range was never reached in {step} rollout batches: |s - 1| stayed below {session.widest:.2g}"
        )
        session.log.event("clip_band_never_reached", widest=session.widest)
        session.hooks.on_preflight({}, [warning])


def evaluate(session: Session, step: int) -> None:
    """Logs the benchmarks' figures, if the recipe names any."""
    if not session.run.recipe.eval.bench:
        return
    session.log.line("eval", step, session.hooks.evaluate())
    session.log.flush()


def learning_rate(run: Run, step: int, mini_batch: int) -> float:
    """Constant after a linear warm-up; a function of the optimizer step's index alone."""
    train, parts = run.recipe.train, minibatches(run.recipe)
    index = (step - 1) * parts + mini_batch
    return (run.recipe.algo.lr or train.lr) * min(1.0, (index + 1) / max(1, train.warmup * parts))


def stop_if_not_finite(lines: list[StepMetrics], step: int) -> None:
    """Ends the run when an update was refused because its loss or gradient was not finite."""
    for index, values in enumerate(line.values for line in lines):
        if values["update/applied"] == 0 and "grad/norm" in values:
            raise GspoError(
                f"the loss or the gradient of rollout batch {step} is not finite",
                f"loss {values['loss']}, gradient norm {values['grad/norm']} in mini-batch {index + 1}; "
                "that update was not made",
                "lower algo.lr, or look at the batch: the log holds everything up to it",
                ExitCode.GUARD,
            )


def stop_if_not_replayed(lines: list[StepMetrics], step: int) -> None:
    """Ends the run when the experts were called with others than those recorded: Routing Replay would be a fiction."""
    wrong = sum(line.values.get("replay/violations") or 0 for line in lines)
    if wrong:
        raise GspoError(
            f"Routing Replay went wrong in rollout batch {step}",
            f"for {wrong:.0f} (layer, token) pairs the experts used are not the recorded ones",
            "report this with the model's name; algo.replay = 'none' trains without it",
            ExitCode.GUARD,
        )
