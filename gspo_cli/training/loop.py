"""The training loop, in the paper's order: sample, score, compute advantages once, take N optimizer steps, repeat.

arXiv 2507.18071, §3 and §5.1: a large batch of rollouts is split into mini-batches, so all but the first of them are
off-policy, which is what the clip ranges are for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.rollout.collect import PromptStream, collect
from gspo_cli.rollout.engine import Engine
from gspo_cli.runlog.log import RunLog
from gspo_cli.tasks.contract import Task
from gspo_cli.training.accumulate import Accumulator
from gspo_cli.training.batches import make_mini_batches, rewards_and_groups
from gspo_cli.training.probe import Probe
from gspo_cli.training.record import Totals, record_batch
from gspo_cli.training.stopwatch import Stopwatch
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner, record_old_policy, update
from gspo_cli.types import RolloutBatch, Sampling, StepMetrics


@dataclass
class Hooks:
    """What happens around the loop without belonging to it."""

    evaluate: Callable[[], StepMetrics]
    store: Callable[[RolloutBatch], None]
    on_step: Callable[[int, dict[str, float | None]], None]
    """Called after each rollout batch with its metrics and times, for display."""


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
    with clock("rollout_s"):
        batch = sample_batch(session, step)
    with clock("prepare_s"):
        # once per rollout batch, over all of it: the mini-batches share one old policy and one set of advantages
        advantages_B = run.algorithm.advantage(*rewards_and_groups(batch), run.params)
        mini_batches = make_mini_batches(
            batch, advantages_B, run.recipe.train.minibatches, run.recipe.train.micro_batch_tokens, learner.model.device
        )
    with clock("probe_s"):
        probe = Probe(learner.model, batch)
    with clock("old_policy_s"):
        record_old_policy(learner, mini_batches[1:])  # the first one's old policy is the one it is trained with

    updates: list[Accumulator] = []
    for index, mini_batch in enumerate(mini_batches):
        with clock("update_s"):
            updates.append(update(learner, mini_batch, learning_rate(run, step, index)))
        with clock("probe_s"):
            updates[-1].add(probe.churn())
    session.engine.sync(version=step)

    shown = record_batch(session.log, session.totals, clock, batch, advantages_B, mini_batches, updates)
    stop_if_not_finite(updates, step)
    if run.recipe.rollout.store and step % run.recipe.rollout.store == 0:
        session.hooks.store(batch)
    session.hooks.on_step(step, shown)


def sample_batch(session: Session, step: int) -> RolloutBatch:
    """Samples and scores the prompts of this step with the weights of the step before."""
    recipe = session.run.recipe
    return collect(
        session.engine,
        session.tokenizer,
        session.task,
        session.stream.batch(step),
        recipe.rollout.samples,
        Sampling(recipe.rollout.temperature, recipe.rollout.max_new_tokens),
        seed_keys=(recipe.seed, "sample", step),
        version=step - 1,
    )


def evaluate(session: Session, step: int) -> None:
    """Logs the benchmarks' figures, if the recipe names any."""
    if not session.run.recipe.eval.bench:
        return
    session.log.line("eval", step, session.hooks.evaluate())
    session.log.flush()


def learning_rate(run: Run, step: int, mini_batch: int) -> float:
    """Constant after a linear warm-up; a function of the optimizer step's index alone."""
    train = run.recipe.train
    index = (step - 1) * train.minibatches + mini_batch
    return (run.recipe.algo.lr or train.lr) * min(1.0, (index + 1) / max(1, train.warmup * train.minibatches))


def stop_if_not_finite(updates: list[Accumulator], step: int) -> None:
    """Ends the run when an update was refused because its loss or gradient was not finite."""
    for index, update_metrics in enumerate(updates):
        values = update_metrics.result().values
        if values["update/applied"] == 0 and "grad/norm" in values:
            raise GspoError(
                f"the loss or the gradient of rollout batch {step} is not finite",
                f"loss {values['loss']}, gradient norm {values['grad/norm']} in mini-batch {index + 1}; "
                "that update was not made",
                "lower algo.lr, or look at the batch: the log holds everything up to it",
                ExitCode.GUARD,
            )
