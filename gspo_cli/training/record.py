"""Write the log lines of one rollout batch (`rollout`, an `update` per mini-batch, `step`); count its arithmetic."""

from collections import Counter

import torch
from torch import Tensor

from gspo_cli.distributed import Ranks
from gspo_cli.moe.replay import num_input_tokens
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.runlog.schema import NOT_APPLICABLE
from gspo_cli.training.session import Session
from gspo_cli.training.step.metrics import Accumulator, merge_ranks
from gspo_cli.training.step.rollout_metrics import rollout_metrics, sampler_metrics
from gspo_cli.training.step.update import Learner
from gspo_cli.types import MicroBatch, MiniBatch, Reduced, RolloutBatch, StepMetrics


def record_batch(
    session: Session,
    batch: RolloutBatch,
    advantages_B: Tensor,
    mini_batches: list[MiniBatch],
    updates: list[Accumulator],
    extra_metrics: dict[str, Reduced],
    sampled: list[RolloutBatch],
    sync_report: SyncReport | None,
) -> tuple[dict[str, float | None], list[StepMetrics]]:
    """Writes the lines. Returns the pooled values with the times, for display, and the `update` lines.

    `sampled` = the rollout batches on which all of the sampling time was spent: with `max_lag`, not the batch trained
    on, and none where a server samples others meanwhile.
    """
    learner, log, totals = session.learner, session.log, session.totals
    rollout, pooled = Accumulator(), Accumulator()
    rollout.add(rollout_metrics(batch, advantages_B, session.run.recipe.algo.dynamic_sampling))
    rollout.add(merge_ranks(sampler_metrics(batch, mini_batches, learner), learner.ranks).values)
    rollout.add(extra_metrics)
    for metrics in updates:
        pooled.add({name: value for name, value in metrics.values.items() if name != "lr"})
    rollout_line, update_lines = rollout.result(), [complete(metrics.result()) for metrics in updates]
    step_line = complete(pooled.result(learner.routing.layers if learner.routing else ()))

    num_groups, num_responses, num_tokens = num_sampled(batch)
    rollout_line.update(count(totals, queries=num_groups, responses=num_responses, gen_tokens=num_tokens))
    micro_batches = [micro for mini in mini_batches for micro in mini.own]
    num_trained, num_fed, *num_by_mini_batch = learner.ranks.all_sum(
        [
            float(sum(micro.loss_M.numel() for micro in micro_batches)),
            float(sum(map(num_input_tokens, micro_batches))),
            *(float(num_unpadded_tokens(mini.own)) for mini in mini_batches),
        ]
    )
    has_router_noise = any(micro.route_noise for micro in micro_batches)
    step_line.update(
        count(
            totals,
            train_tokens=int(num_trained),
            updates=sum(int(line.values["update/applied"] or 0) for line in update_lines),
            flops=batch_flops(learner, batch, [int(number) for number in num_by_mini_batch], has_router_noise),
        )
    )
    times = session.clock.reset()
    times |= {"padding_frac": 1 - sum(num_by_mini_batch) / num_fed if num_fed else 0.0}
    if sampled:
        times |= {"gen_tokens_per_s": sum(num_sampled(fresh)[2] for fresh in sampled) / times["rollout_s"]}
    times |= gpu_memory(learner.model.device, learner.ranks)
    if sync_report is not None and sync_report.wake_room_gb is not None:
        times |= {"wake_room_gb": sync_report.wake_room_gb}
    active, active_trained = learner.active_parameters
    per_token = (4 * active + 2 * active_trained) / 1e12 / learner.ranks.size  # recomputed layers are no use
    times |= {"update_tflops": per_token * sum(num_by_mini_batch) / times["update_s"]}  # per second

    log.line("rollout", batch.step, rollout_line, perf=times)
    for index, line in enumerate(update_lines):
        log.line("update", batch.step, line, mini_batch=index)
    log.line("step", batch.step, step_line)
    log.flush()
    return rollout_line.values | step_line.values | times, update_lines


def gpu_memory(device: torch.device, ranks: Ranks) -> dict[str, float]:
    """On a GPU, by the rank that needed most of it since the last call: `gpu_peak_gb`, the memory of tensors in 10^9
    bytes, and `gpu_peak_frac`, the share of the GPU's memory that torch held (a vLLM engine's is not in it)."""
    if device.type != "cuda":
        return {}
    held = torch.cuda.max_memory_reserved(device) / torch.cuda.mem_get_info(device)[1]
    peaks = ranks.all_gather(lambda: [torch.cuda.max_memory_allocated(device) / 1e9, held])
    torch.cuda.reset_peak_memory_stats(device)
    return dict(zip(("gpu_peak_gb", "gpu_peak_frac"), map(max, zip(*peaks, strict=True)), strict=True))


def count(totals: Counter[str], **amounts: int) -> StepMetrics:
    """Adds to the run's counters and returns their new values as metrics."""
    totals.update(amounts)
    return StepMetrics({f"compute/{name}": totals[name] for name in amounts})


def num_sampled(batch: RolloutBatch) -> tuple[int, int, int]:
    """Groups, responses and tokens sampled for a batch, those put aside included."""
    groups = (*batch.groups, *batch.dropped)
    samples = [sample for group in groups for sample in group.samples]
    return len(groups), len(samples), sum(len(sample.token_ids) for sample in samples)


def batch_flops(learner: Learner, batch: RolloutBatch, num_trained: list[int], has_router_noise: bool = False) -> int:
    """Floating-point operations of sampling, the old-policy and reference passes, training and the critic.

    Per parameter and token: 2 for a forward pass, 2 for the gradient that a backward pass hands on, 2 for the gradient
    of a trained weight.
    `num_trained` = tokens trained on in each mini-batch, without padding, over all ranks.
    Attention's own products are left out. Groups put aside count; passes that were not made do not.
    """
    groups = (*batch.groups, *batch.dropped)
    sampled = sum(len(g.prompt.token_ids) + sum(len(s.token_ids) for s in g.samples) for g in groups)
    forward, trained = sampled, sum(num_trained)
    if has_router_noise:
        forward += 2 * trained
    elif learner.needs_old_pass:
        forward += sum(num_trained[1:])
    if learner.reference is not None:
        forward += trained
    active, active_trained = learner.active_parameters
    flops = active * (2 * forward + 4 * trained) + active_trained * 2 * trained
    if learner.critic is not None:
        trunk = learner.critic.model.trunk
        embedding = trunk.get_input_embeddings().weight
        layers = [p for p in trunk.parameters() if p is not embedding]
        flops += sum(p.numel() * (8 if p.requires_grad else 6) for p in layers) * trained
    return flops


def num_unpadded_tokens(micro_batches: list[MicroBatch]) -> int:
    """Prompt and response tokens that the model is fed, without padding."""
    return sum(
        micro.positions_N.numel() + len(micro.mask_BT)  # of each row they leave out the last token
        if micro.packing is None
        else micro.packing.input_ids.numel()
        for micro in micro_batches
    )


def complete(line: StepMetrics) -> StepMetrics:
    """A line with null for what does not apply to this run, and with what follows from two of its values."""
    for name in NOT_APPLICABLE:
        line.values.setdefault(name, None)
    residual, spread = line.values.get("value/residual_std"), line.values.get("value/return_std")
    if residual is not None and spread:
        line.values["value/explained_var"] = 1 - (residual / spread) ** 2
    return line
