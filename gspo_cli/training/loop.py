"""The training loop, in the paper's order: sample, score, compute advantages once, take N optimizer steps, repeat.

arXiv 2507.18071, §3 and §5.1: a large batch of rollouts is split into mini-batches, so all but the first of them are
off-policy, which is what the clip ranges are for.
"""

from __future__ import annotations

import time
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
from gspo_cli.training.rollout_metrics import mismatch_metrics, rollout_metrics
from gspo_cli.training.study import Run
from gspo_cli.training.update import Learner, record_old_policy, update
from gspo_cli.types import RolloutBatch, Sampling, StepMetrics


@dataclass
class Hooks:
    """What happens around the loop without belonging to it."""

    evaluate: Callable[[int], StepMetrics]
    store: Callable[[RolloutBatch], None]
    on_step: Callable[[int, dict[str, float | None]], None]
    """Called after each rollout batch with its metrics and times, for display."""


@dataclass
class Totals:
    """The compute/* counters."""

    values: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("queries", "responses", "gen_tokens", "train_tokens", "updates"), 0.0)
    )

    def add(self, **amounts: float) -> StepMetrics:
        """Adds to the counters and gives those named as metrics."""
        for name, amount in amounts.items():
            self.values[name] += amount
        return StepMetrics({f"compute/{name}": self.values[name] for name in amounts})


def train(
    run: Run,
    learner: Learner,
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    stream: PromptStream,
    log: RunLog,
    hooks: Hooks,
) -> None:
    """All rollout batches of one run.

    Errors: GspoError (exit code 4) when an update would not be finite; the weights are those before it.
    """
    recipe, totals = run.recipe, Totals()
    sampling = Sampling(recipe.rollout.temperature, recipe.rollout.max_new_tokens)
    if recipe.eval.every:
        log.line("eval", 0, hooks.evaluate(0))
        log.flush()
    for step in range(1, recipe.train.steps + 1):
        clock = [time.perf_counter()]
        batch = collect(
            engine, tokenizer, task, stream.batch(step), recipe.rollout.samples, sampling,
            (recipe.seed, "sample", step), version=step - 1,
        )  # fmt: skip
        clock.append(time.perf_counter())
        advantages_B = run.algorithm.advantage(*rewards_and_groups(batch), run.params)
        mini_batches = make_mini_batches(
            batch, advantages_B, recipe.train.minibatches, recipe.train.micro_batch_tokens, learner.model.device
        )
        probe = Probe(learner.model, batch)
        learner.model.train()
        record_old_policy(learner, mini_batches[1:])  # the first one's old policy is the one it is trained with
        updates: list[StepMetrics] = []
        pooled = Accumulator()
        for index, mini_batch in enumerate(mini_batches):
            lr = learning_rate(run, (step - 1) * recipe.train.minibatches + index)
            metrics = update(learner, mini_batch, lr)
            metrics.add(probe.churn())
            updates.append(metrics.result())
            pooled.add(metrics.values)
            if updates[-1].values["update/applied"] == 0 and mini_batch.micro_batches:
                break
        engine.sync(step)
        clock.append(time.perf_counter())

        sampled = StepMetrics()
        rollout = Accumulator()
        rollout.add(rollout_metrics(batch, advantages_B))
        if len(updates) == len(mini_batches):
            rollout.add(mismatch_metrics(mini_batches))
        sampled.update(rollout.result())
        num_tokens = sum(len(s.token_ids) for g in batch.groups for s in g.samples)
        num_responses = sum(len(g.samples) for g in batch.groups)
        sampled.update(totals.add(queries=len(batch.groups), responses=num_responses, gen_tokens=num_tokens))
        trained = sum(int(m.mask_BT.sum()) for mini in mini_batches for m in mini.micro_batches)
        whole = pooled.result()
        whole.values.pop("lr", None)
        whole.update(totals.add(train_tokens=trained, updates=sum(u.values["update/applied"] or 0 for u in updates)))
        times = {"rollout_s": clock[1] - clock[0], "update_s": clock[2] - clock[1]}
        log.line("rollout", step, sampled, perf=times | {"gen_tokens_per_s": num_tokens / times["rollout_s"]})
        for index, line in enumerate(updates):
            log.line("update", step, line, mini_batch=index)
        log.line("step", step, whole)
        if recipe.eval.every and (step % recipe.eval.every == 0 or step == recipe.train.steps):
            log.line("eval", step, hooks.evaluate(step))
        log.flush()
        stop_if_not_finite(updates, step)
        if recipe.rollout.store and step % recipe.rollout.store == 0:
            hooks.store(batch)
        hooks.on_step(step, sampled.values | whole.values | times)
    if not recipe.eval.every:
        log.line("eval", recipe.train.steps, hooks.evaluate(recipe.train.steps))
        log.flush()


def learning_rate(run: Run, index: int) -> float:
    """Constant after a linear warm-up; a function of the optimizer step's index alone (from 0)."""
    warmup = run.recipe.train.warmup * run.recipe.train.minibatches
    return (run.recipe.algo.lr or run.recipe.train.lr) * min(1.0, (index + 1) / max(1, warmup))


def stop_if_not_finite(updates: list[StepMetrics], step: int) -> None:
    """Ends the run when an update was refused because its loss or gradient was not finite."""
    last = updates[-1].values
    if last["update/applied"] == 0 and last.get("grad/norm") is not None:
        raise GspoError(
            f"the loss or the gradient of rollout batch {step} is not finite",
            f"loss {last['loss']}, gradient norm {last['grad/norm']} in mini-batch {len(updates)}; no update was made",
            "lower algo.lr, or look at the batch: the log holds everything up to it",
            ExitCode.GUARD,
        )
