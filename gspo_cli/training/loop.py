"""The training loop, in the paper's order: sample, score, compute advantages once, take N optimizer steps, repeat.

arXiv 2507.18071, §3 and §5.1: a large batch of rollouts is split into mini-batches, so all but the first of them are
off-policy, which is what the clip ranges are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.packing import packs
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.rollout.engine import Engine
from gspo_cli.runlog.log import RunLog
from gspo_cli.tasks.contract import Task
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.batches import Cut, make_mini_batches, rewards_and_groups
from gspo_cli.training.checkpoints import Checkpoints
from gspo_cli.training.checks import minibatches
from gspo_cli.training.guards import Guards, enough_memory
from gspo_cli.training.preflight import preflight
from gspo_cli.training.probe import Probe
from gspo_cli.training.record import Totals, record_batch
from gspo_cli.training.rollout_metrics import lag_metrics, sync_metrics
from gspo_cli.training.sampling import sample_due
from gspo_cli.training.signals import Interruption, Signals
from gspo_cli.training.stopwatch import Stopwatch
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner, record_old_policy, update, was_applied
from gspo_cli.types import MiniBatch, Reduced, RolloutBatch, StepMetrics

LESS_TO_SAMPLE = "lower rollout.kv_budget_gb (fewer responses at a time) or rollout.max_new_tokens"
LESS_TO_TRAIN = "lower train.micro_batch_tokens: the same gradient in smaller passes"
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
    signals: Signals = field(default_factory=Signals)
    guards: Guards = field(default_factory=Guards)
    totals: Totals = field(default_factory=Totals)
    clock: Stopwatch = field(default_factory=Stopwatch)
    step: int = 0
    """Rollout batches done."""
    updates: int = 0
    """Mini-batches gone through, whether their update was applied or not."""
    chunks: int = 0
    """Portions of the prompt stream consumed so far."""
    ahead: deque[RolloutBatch] = field(default_factory=deque)
    """Rollout batches that are sampled and not yet trained on, the next one first."""
    widest: float = 0.0
    """Largest distance of a sequence ratio from 1 so far."""
    outside: bool = False
    """Whether any ratio has left the clip range."""


def train(session: Session, checkpoints: Checkpoints) -> None:
    """All rollout batches of one run that are still to be done.

    Errors: GspoError when an update would not be finite (exit code 4; the weights are those before it), or when a
    signal asked for the end (129, 130, 143; the run is saved).
    """
    recipe, first = session.run.recipe, session.step
    try:
        if first == 0:
            checkpoints.boundary(session, {})
        for step in range(first, recipe.train.steps + 1):
            if step > first:
                shown = train_batch(session, step)
                session.step = step
                checkpoints.boundary(session, shown)
            if is_evaluated(recipe, step):
                evaluate(session, step)
    except Interruption:
        assert session.signals.received is not None
        checkpoints.stop(session, session.signals.received)
    planned = recipe.train.steps * minibatches(recipe)
    if session.updates != planned:
        raise GspoError(
            f"{session.updates} updates were made or refused, not the {planned} planned",
            "the plan and the loop disagree: a defect of gspo",
            "report this with the run folder",
            ExitCode.UNEXPECTED,
        )


def is_evaluated(recipe: Recipe, step: int) -> bool:
    """Whether the benchmarks are run after this many rollout batches."""
    every = recipe.eval.every
    return step == recipe.train.steps or (every > 0 and step % every == 0)


def train_batch(session: Session, step: int) -> dict[str, float | None]:
    """One rollout batch: everything between two synchronisations of the engine. Gives its pooled metrics."""
    run, learner, clock = session.run, session.learner, session.clock
    clock.reset()  # what lies between two batches (evaluation, storing) is not theirs
    with clock("rollout_s"), session.signals.abandonable(), enough_memory("sampling", LESS_TO_SAMPLE):
        sampled, portions = sample_due(session, step)
    session.ahead.extend(sampled)  # out here, where a signal no longer abandons: the state has all of it or nothing
    session.chunks = portions
    session.engine.rest()
    for fresh in sampled:
        session.guards.before_updates(fresh)
        if run.recipe.rollout.store and fresh.step % run.recipe.rollout.store == 0:
            session.hooks.store(fresh)  # now, while the model is the one that sampled it
    batch = session.ahead.popleft()
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
        probe = Probe(learner.model, learner.routing, batch, learner.ranks)
    with clock("old_policy_s"):
        record_old_policy(learner, mini_batches)

    updates: list[Accumulator] = []
    for index, mini_batch in enumerate(mini_batches):
        with clock("update_s"), enough_memory("training", LESS_TO_TRAIN):
            updates.append(update(learner, mini_batch, learning_rate(run, step, index), first=index == 0))
        if was_applied(updates[-1]):  # without a step there is no change to measure, which is not a change of 0
            with clock("probe_s"):
                updates[-1].add(probe.churn())
    with clock("sync_s"):
        synced = session.engine.sync(learner.model, version=step)

    shown, update_lines = record_batch(
        session.log, session.totals, clock, learner, batch, advantages_B, mini_batches, updates,
        checked | sync_metrics(synced) | lag_metrics(batch, run.recipe.rollout.max_lag), sampled,
    )  # fmt: skip
    session.updates += len(update_lines)
    session.guards.after_updates(session.log, batch, update_lines)
    stop_if_not_replayed(update_lines, step)
    watch_band(session, step, shown)
    session.hooks.on_step(step, shown)
    return shown


def cut_plan(run: Run, learner: Learner) -> Cut:
    """How this run's batches are cut."""
    return Cut(
        packed=packs(learner.model),
        minibatches=minibatches(run.recipe),
        micro_batch_tokens=run.recipe.train.micro_batch_tokens,
        keep_rows_without_advantage=learner.reference is not None or learner.critic is not None,
        mask_truncated=run.recipe.algo.truncation == "mask",
        routing=learner.routing if run.recipe.records_routes else None,
        ranks=learner.ranks,
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
    with session.clock("evaluate_s"), session.signals.abandonable(), enough_memory("evaluating", LESS_TO_SAMPLE):
        found = session.hooks.evaluate()
    session.log.line("eval", step, found)
    session.log.flush()


def learning_rate(run: Run, step: int, mini_batch: int) -> float:
    """Constant after a linear warm-up; a function of the optimizer step's index alone."""
    train, parts = run.recipe.train, minibatches(run.recipe)
    index = (step - 1) * parts + mini_batch
    return (run.recipe.algo.lr or train.lr) * min(1.0, (index + 1) / max(1, train.warmup * parts))


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
