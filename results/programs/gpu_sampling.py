"""Point `sampling` of gpu.py: tokens per second of the sampler, of transformers' generate, and of the compiled step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpu_workload import STOP, Cases, build, places_of_waits, seconds, wait
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import PreTrainedModel

from gspo_cli.models.compiled import compiled_step
from gspo_cli.models.fixed import FixedStep
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.types import Sampling


def sampling(device: str, tiny: bool, cases: Cases) -> None:
    """(2) Tokens per second of the sampler and of transformers' generate, in turn, then of the sampler's compiled step;
    kernels and launches per token. What fails in the compiled part is recorded and ends nothing."""
    # as many layers in the rehearsal, for the number of kernels
    model = build(False, tiny, device, torch.float32 if tiny else torch.bfloat16, num_hidden_layers=28)
    cases.found["rows"] = {}
    _measure(model, ("ours", "generate"), None, device, tiny, cases)
    if not cases.begin("compiled"):
        return
    if tiny:  # a step is one launch whatever its layers, and a CPU's compiler takes minutes for 28
        model = build(False, tiny, device)
    try:
        step = compiled_step(model)
        cases.found["compile_s"] = round(step.seconds, 1)
        _measure(model, ("compiled",), step, device, tiny, cases)
    except Exception as error:  # torch's compiler and drivers raise many types
        cases.found["compiled_error"] = f"{type(error).__name__}: {error}"[:1500]
    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    cases.found["compiled_without_graph"] = skipped  # step variants that torch would not record


def _measure(
    model: PreTrainedModel, names: tuple[str, ...], step: FixedStep | None, device: str, tiny: bool, cases: Cases
) -> None:
    rows = (2, 6) if tiny else (16, 64, 256)
    prompt, new, repeats = (4, 6, 1) if tiny else (64, 128, 2)
    dtype = str(model.dtype).removeprefix("torch.")
    cases.found |= {"unit": "tokens per second", "prompt_tokens": prompt, "new_tokens": new, "dtype": dtype}
    for number in rows:
        if not cases.begin(f"{number} rows, {' and '.join(names)}"):
            continue
        works, half = (
            {name: _drawing(model, name, number, prompt, tokens, device, step) for name in names}
            for tokens in (new, new // 2)
        )
        speeds: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(repeats):
            for name, work in works.items():
                speeds[name] += [round(number * new / s, 1) for s in seconds(work, device, 1, int(repeat == 0))]
        row = cases.found["rows"].setdefault(str(number), {})
        row |= speeds
        if "generate" in names:
            row["ratio_median"] = round(statistics.median(row["ours"]) / statistics.median(row["generate"]), 3)
        elif "ours" in row and not tiny:
            row["compiled_ratio"] = round(statistics.median(row["compiled"]) / statistics.median(row["ours"]), 3)
        if number == rows[0]:
            for name, work in works.items():  # of the second half of the tokens: without prefill
                fewer = started(half[name], device, step)
                for what, count in started(work, device, step).items():
                    each = (count - fewer[what]) / (new - new // 2)
                    cases.found.setdefault(what, {})[name] = round(each, 1)


def _drawing(
    model: PreTrainedModel, name: str, number: int, prompt: int, new: int, device: str, step: FixedStep | None
) -> Callable[[], object]:
    """Draws so many rows of full length, two of each prompt."""
    g = torch.Generator().manual_seed(number)
    ids = torch.randint(5, min(50_000, int(model.config.vocab_size)), (number // 2, prompt), generator=g)
    prompts = [tuple(row) for row in ids.tolist()]
    both = ids.repeat_interleave(2, 0).to(device)

    def generate() -> object:
        return model.generate(
            both, attention_mask=torch.ones_like(both), do_sample=True, top_k=0, top_p=1.0, max_new_tokens=new,
            min_new_tokens=new, pad_token_id=0,
        )  # fmt: skip

    def ours() -> object:
        return sample(model, prompts, [[1, 2]] * len(prompts), Sampling(1.0, new), STOP, math.inf, step=step)

    return generate if name == "generate" else ours


class Operations(TorchDispatchMode):
    """Counts operations that are no views: a GPU starts at least one kernel for each."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
COPIES = ("cudaMemcpy", "cuMemcpy")


def started(work: Callable[[], object], device: str, step: FixedStep | None = None) -> dict[str, int]:
    """`kernels_per_token`, `launches_per_token`, `copies_per_token` and `waits_per_token`, of all tokens together: what
    the GPU runs, how often the host starts something, a CUDA graph counting once, or copies, or waits. On a CPU,
    operations that are no views, and one for the compiled step."""
    from torch.profiler import ProfilerActivity, profile

    if device == "cpu":
        with Operations() as operations, one_launch(step, operations):
            work()
        return {"launches_per_token": operations.count}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        wait(device)
    events = profiler.events() or []
    return {
        "kernels_per_token": sum(e.device_type == torch.autograd.DeviceType.CUDA for e in events),
        "launches_per_token": sum(e.name.startswith(LAUNCHES) for e in events),
        "copies_per_token": sum(e.name.startswith(COPIES) for e in events),
        "waits_per_token": sum(places_of_waits(work, device).values()),
    }


@contextmanager
def one_launch(step: FixedStep | None, operations: Operations) -> Iterator[None]:
    """Within the context, the compiled step counts as one operation."""
    if step is None:
        yield
        return
    compiled = step.function

    def replay(*args: Any) -> Tensor:
        operations.count += 1
        with _disable_current_modes():
            return compiled(*args)

    step.function = replay
    try:
        yield
    finally:
        step.function = compiled
