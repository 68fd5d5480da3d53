"""The training loop, in the paper's order: sample, score, compute advantages once, take N optimizer steps, repeat.

arXiv 2507.18071, §3 and §5.1: a large batch of rollouts is split into mini-batches, so all but the first of them are
off-policy, which is what the clip ranges are for.
"""

import os
from collections import deque
from dataclasses import asdict, replace
from math import exp, inf

from torch import Tensor
from torch.profiler import profile

from gspo_cli.distributed import ACTIVITY, PROFILE, Interruption
from gspo_cli.errors import ExitCode, GspoError, quoted
from gspo_cli.evals.command import measure_all
from gspo_cli.evals.settings import Subject
from gspo_cli.events import BatchDone, BatchSampled, EvaluationProgress, Noted, PreflightDone, Warned
from gspo_cli.models.admission import paths_of
from gspo_cli.training.guards import enough_memory
from gspo_cli.training.record import record_batch
from gspo_cli.training.rollout_queue import begin_sampling, sample_batches, steps_to_sample
from gspo_cli.training.run_folder import store_if_due, stored_as
from gspo_cli.training.session import CODES, Session
from gspo_cli.training.state.checkpoints import Checkpoints
from gspo_cli.training.step.batches import Batching, advantages_of, make_mini_batches
from gspo_cli.training.step.clip_advice import clip_advice
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.noise import noise_of
from gspo_cli.training.step.preflight import preflight
from gspo_cli.training.step.probe import Probe
from gspo_cli.training.step.rollout_metrics import lag_metrics, sync_metrics
from gspo_cli.training.step.update import Learner, record_old_policy, update, was_applied
from gspo_cli.training.study.arms import Run
from gspo_cli.types import MiniBatch, Reduced, RolloutBatch, StepMetrics

SAMPLE_LESS = "lower rollout.kv_budget_gb (fewer responses at a time) or rollout.max_new_tokens"
TRAIN_LESS = "lower train.micro_batch_tokens: the same gradient in smaller passes"
CLIP_RANGE_BATCHES = 10
"""After so many rollout batches a clip range that was never reached is reported."""


def train(session: Session, checkpoints: Checkpoints) -> None:
    """All rollout batches that a run has left.

    Errors: GspoError when an update would not be finite (exit code 4; the weights are those before it), or on a signal
    (129, 130, 143; the run is saved if time allows).
    """
    recipe, first = session.run.recipe, session.step
    if (traced := os.environ.get(PROFILE)) and not first < int(traced) <= recipe.train.steps:
        session.emit(Warned(f"--profile {traced}: only batches {first + 1} to {recipe.train.steps} are trained"))
    try:
        if first == 0:
            checkpoints.boundary(session, {})
        for step in range(first, recipe.train.steps + 1):
            if step > first:
                values = train_batch(session, step)
                session.step = step
                checkpoints.boundary(session, values)
            evaluate_if_due(session, step)
    except Interruption:
        number = session.signals.agreed()
        assert number is not None
        checkpoints.stop(session, number)
    planned = recipe.train.steps * recipe.minibatches
    if session.updates != planned:
        raise GspoError(
            f"{session.updates} updates were made or refused, not the {planned} planned",
            "the plan and the loop disagree: a defect of gspo",
            "report this with the run folder",
            ExitCode.UNEXPECTED,
        )


def train_batch(session: Session, step: int) -> dict[str, float | None]:
    """One rollout batch: everything between two synchronisations of the engine. Returns its pooled metrics."""
    run, learner, clock = session.run, session.learner, session.clock
    clock.reset()  # what happened since the last batch (evaluation, saving) is not part of this one

    # Sample and score
    now, ahead = steps_to_sample(step, len(session.rollout_queue), run.recipe)
    # with nothing to sample now the phase ends at once, which says nothing of how long sampling may take
    phase = "rollout_s" if now else "prepare_s"
    with clock(phase), session.signals.abandonable(), enough_memory("sampling", SAMPLE_LESS):
        sampled, prompt_batches = sample_batches(session, now, step - 1)
        begin_sampling(session, ahead, prompt_batches)
    session.engine.rest()
    for fresh in sampled:
        accept(session, fresh, stored_as(session, fresh.step))
    stored_later = [stored_as(session, number) for number in ahead]  # of the weights that sample them
    profiler = start_profiler(step)
    queue = deque([*session.rollout_queue, *sampled])
    batch = queue.popleft()

    # Advantages, once for the whole rollout batch: its mini-batches share them, and share one old policy
    with clock("prepare_s"):
        advantages_B = advantages_of(batch, run.recipe, run.algorithm, run.params)
        mini_batches = make_mini_batches(batch, advantages_B, batching(run, learner, step), learner.model.device)
        if learner.critic is not None:
            learner.critic.set_advantages(run.algorithm, run.params, mini_batches)
    extra_metrics = check_first_batch(session, batch, advantages_B, mini_batches) if step == 1 else {}
    with clock("probe_s"):
        probe = Probe(learner.model, learner.routing, batch, learner.ranks)
    waits = ["sync", "save", "write", *(["rollout"] if ahead else [])]
    abandon_if_late(session, step, len(mini_batches), ["old_policy", *waits])
    with clock("old_policy_s"):
        record_old_policy(learner, mini_batches)

    # N optimizer steps
    updates: list[Accumulator] = []
    for index, mini_batch in enumerate(mini_batches):
        abandon_if_late(session, step, len(mini_batches) - index, waits)
        if index == 0:  # only here, where nothing abandons: the session has all of the batch or nothing
            session.prompt_batches, session.rollout_queue = prompt_batches, queue
        with clock("update_s"), enough_memory("training", TRAIN_LESS):
            updates.append(update(learner, mini_batch, learning_rate(run, step, index), first=index == 0))
        if was_applied(updates[-1]):  # without a step there is no change to measure, which is not a change of 0
            with clock("probe_s"):
                updates[-1].add(probe.churn())

    # What a server sampled meanwhile; then it gets the new weights
    if ahead:
        with clock("rollout_s"):
            begun, session.prompt_batches = sample_batches(session, ahead, step - 1)
        for fresh, metadata in zip(begun, stored_later, strict=True):
            accept(session, fresh, metadata)
        session.rollout_queue.extend(begun)
    with clock("sync_s"):
        sync_report = session.engine.sync(learner.model, version=step)
    if profiler is not None:
        write_trace(session, profiler, step)

    extra_metrics |= sync_metrics(sync_report) | lag_metrics(batch, run.recipe.rollout.max_lag)
    values, update_lines = record_batch(
        session, batch, advantages_B, mini_batches, updates, extra_metrics, [] if ahead else sampled, sync_report
    )
    session.updates += len(updates)
    session.guards.after_updates(session.log, batch, update_lines)
    stop_if_not_replayed(update_lines, step)
    watch_clip_range(session, step, values)
    if step == CLIP_RANGE_BATCHES:
        advise_clip_range(session, update_lines, values["length/mean"] or 0.0)
    session.emit(BatchDone(step, values))
    for watch in session.watches:
        watch.observe(step, values)
    return values


def accept(session: Session, batch: RolloutBatch, metadata: dict[str, str] | None) -> None:
    """Checks, stores and shows a batch that has been sampled and scored."""
    session.guards.before_updates(batch)
    store_if_due(session, batch, metadata)
    session.emit(BatchSampled(batch))


def start_profiler(step: int) -> profile | None:
    """torch's profiler, if this rollout batch is the one that `--profile` names. It starts after sampling, which has a
    thousand operations for each token: their records would fill the memory."""
    if os.environ.get(PROFILE) != str(step):
        return None
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # else it says on stderr that it starts and stops
    profiler = profile()
    profiler.start()
    return profiler


def write_trace(session: Session, profiler: profile, step: int) -> None:
    """Writes what the profiler saw, a file a rank, for chrome://tracing or ui.perfetto.dev."""
    profiler.stop()
    path = session.log.folder / "profile" / f"batch-{step:06d}-rank-{session.learner.ranks.rank}.json.gz"
    path.parent.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(path))
    session.emit(Noted(f"profile: {path}"))


def abandon_if_late(session: Session, step: int, num_updates: int, phases: list[str]) -> None:
    """Before an update of batch `step`: ends the batch if the process would be killed before `num_updates` updates and
    these phases are done.

    Errors: Interruption before the first update; GspoError after it, when no state is left that could be saved.
    """
    longest = ACTIVITY.longest
    needed_s = num_updates * longest.get("update", inf) + sum(longest.get(phase, 0.0) for phase in phases)
    if not session.signals.too_late(needed_s):
        return
    if num_updates == session.run.recipe.minibatches:
        raise Interruption
    number, folder = session.signals.agreed(), quoted(session.log.folder)
    assert number is not None
    session.log.event("interrupted", signal=number.name, step=step, unsaved=True)
    raise GspoError(
        f"interrupted by {number.name} within the updates of rollout batch {step}",
        f"{num_updates} more of them would take about {needed_s:.0f} s, longer than checkpoint.grace_s leaves",
        f"gspo train --resume {folder} repeats what followed the last checkpoint; signal earlier, or save more often",
        CODES[number],
    )


def batching(run: Run, learner: Learner, step: int) -> Batching:
    """How this run's rollout batch `step` is divided."""
    return Batching(
        minibatches=run.recipe.minibatches,
        micro_batch_tokens=run.recipe.train.micro_batch_tokens,
        keep_rows_without_advantage=(
            learner.reference is not None or learner.critic is not None or learner.algorithm.EVERY_ROW
        ),
        whole_groups=learner.algorithm.WHOLE_GROUPS,
        mask_truncated=run.recipe.algo.truncation == "mask",
        routing=learner.routing if run.recipe.records_routes else None,
        packed=paths_of(learner.model).packed,
        ranks=learner.ranks,
        attention=learner.attention_share,
        noise=noise_of(run.recipe, step),
    )


def learning_rate(run: Run, step: int, mini_batch: int) -> float:
    """Constant after a linear warm-up; depends on the optimizer step's index alone."""
    train, minibatches = run.recipe.train, run.recipe.minibatches
    index = (step - 1) * minibatches + mini_batch
    return (run.recipe.algo.lr or train.lr) * min(1.0, (index + 1) / max(1, train.warmup * minibatches))


def evaluate_if_due(session: Session, step: int) -> None:
    """Runs and logs the recipe's benchmarks, if they are due after this many rollout batches."""
    recipe, every = session.run.recipe, session.run.recipe.eval.every
    due = step == recipe.train.steps or (every > 0 and step % every == 0)
    if not due or not recipe.eval.bench:
        return
    with session.clock("evaluate_s"), session.signals.abandonable(), enough_memory("evaluating", SAMPLE_LESS):
        subject = Subject(session.engine, session.learner.model, session.tokenizer, recipe.name, recipe.task)
        metrics = measure_all(
            session.benchmarks, recipe.eval, subject, recipe.seed, session.learner.ranks,
            lambda done, wanted, _: session.emit(EvaluationProgress(done, wanted)),
        )  # fmt: skip
    session.log.line("eval", step, metrics)
    session.log.flush()


def check_first_batch(
    session: Session, batch: RolloutBatch, advantages_B: Tensor, mini_batches: list[MiniBatch]
) -> dict[str, Reduced]:
    """The preflight, logged as an event and shown. Returns its metrics."""
    learner = session.learner
    if not any(part.micro_batches for part in mini_batches):  # no reward differs in its group: look at all rows then
        every_row = replace(batching(session.run, learner, batch.step), keep_rows_without_advantage=True)
        mini_batches = make_mini_batches(batch, advantages_B, every_row, learner.model.device)
    report = preflight(learner, batch, mini_batches, session.engine.info.stop_ids)
    session.log.event("preflight", values=report.values, warnings=report.warnings)
    if report.values:
        session.emit(PreflightDone(report.values))
    for warning in report.warnings:
        session.emit(Warned(warning))
    return report.metrics


def watch_clip_range(session: Session, step: int, values: dict[str, float | None]) -> None:
    """Warns once when no ratio has left the clip range in the first `CLIP_RANGE_BATCHES` rollout batches.

    A range that is never reached clips nothing; usually it was meant for another algorithm.
    """
    session.left_clip_range |= bool(values["ratio/outside_frac"])
    ratios = [values.get("ratio/seq_min"), values.get("ratio/seq_max")]
    if session.run.algorithm.clip_unit == "token":
        ratios = [exp(min(20.0, values.get("ratio/token_log_absmax") or 0.0))]
    for ratio in ratios:
        session.max_ratio_deviation = max(session.max_ratio_deviation, abs((ratio or 1.0) - 1))
    clips = getattr(session.run.params, "clip", None) is not None and session.run.recipe.minibatches > 1
    if step == CLIP_RANGE_BATCHES and clips and not session.left_clip_range:
        largest = session.max_ratio_deviation
        session.log.event("clip_band_never_reached", widest=largest)
        session.emit(
            Warned(
                f"the clip range was never reached in {step} rollout batches: |ratio - 1| stayed below {largest:.2g}"
            )
        )


def advise_clip_range(session: Session, update_lines: list[StepMetrics], length: float) -> None:
    """Logs what the clip range discards and which one would fit; warns where it discards more than a third."""
    algo = session.run.recipe.algo.model_dump()
    advice = clip_advice(update_lines, session.run.algorithm.clip_unit, length, algo)
    if advice is None:
        return
    session.log.event("clip_range", **asdict(advice))
    if warning := advice.sentence():
        session.emit(Warned(warning))


def stop_if_not_replayed(update_lines: list[StepMetrics], step: int) -> None:
    """Errors: GspoError when experts were called that are not the recorded ones: Routing Replay did not happen."""
    wrong = sum(line.values.get("replay/violations") or 0 for line in update_lines)
    if wrong:
        raise GspoError(
            f"Routing Replay went wrong in rollout batch {step}",
            f"for {wrong:.0f} (layer, token) pairs the experts used are not the recorded ones",
            "report this with the model's name; algo.replay = 'none' trains without it",
            ExitCode.GUARD,
        )
