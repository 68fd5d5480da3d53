"""The decoding step compiled by torch, once it has been shown to compute what the plain one does.

On a GPU, inductor records a CUDA graph for each size of rows and cache, so that a token is one launch. On a CPU the
same code is compiled to C++, which needs g++ or clang.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.admission import HALF_LIMIT, LIMIT, fixed_steps, input_ids_of, paths_of
from gspo_cli.models.device import deterministic_kernels
from gspo_cli.models.fixed import Decode, FixedCache, FixedRows, FixedStep, decode
from gspo_cli.models.precision import compute_dtype
from gspo_cli.models.trunk import MODEL_ERRORS, head_logits, one_line

MOST_VARIANTS = 256
"""Compiled variants in one process, of all models together; torch's default of 8 is for one model."""
TRIED_TOKENS = 3
HINT = "leave out rollout.compile: the sampler's plain step draws from the same distribution"
Backend = str | Callable[..., Any]
"""torch's name of one, or a function."""


def compiled_step(model: PreTrainedModel, backend: Backend = "inductor") -> FixedStep:
    """The model's step, compiled and tried. It takes a minute or more; `seconds` of the result says how many.

    Errors: GspoError for a model that cannot be decoded in steps of fixed shape, that torch cannot compile, or whose
    compiled step differs from the plain one.
    """
    name, paths = type(model).__name__, paths_of(model)
    why = None
    if paths.cache != "shared":
        why = f"it is sampled on {'its own cache' if paths.cache == 'own' else 'no cache'}, whose size changes"
    elif not (fixed := fixed_steps(model)).accepted:
        why = f"in steps of fixed shape it computes something else: {fixed.what}"
    if why:
        raise GspoError(f"rollout.compile with {name}", why, HINT)
    start, faults = time.monotonic(), []
    # transformers' kernels for experts that can be compiled: `batched_mm` gathers the weights of every choice;
    # `grouped_mm` does not, but is compiled for bfloat16 on a GPU only
    grouped = model.device.type == "cuda" and compute_dtype(model) == torch.bfloat16
    has_experts = hasattr(model.config.get_text_config(), "num_experts_per_tok")
    for experts in ("grouped_mm", "batched_mm") if grouped and has_experts else ("batched_mm",):
        step = FixedStep(model, compiled(backend), experts)
        try:
            wrong = difference(model, step)
        except (*MODEL_ERRORS, OSError, ImportError) as error:
            wrong = one_line(error).partition(" Set TORCHDYNAMO")[0]
        if wrong is None:
            step.seconds = time.monotonic() - start
            return step
        faults.append(wrong)
    message = f"rollout.compile: the decoding step of {name} cannot be compiled here"
    raise GspoError(message, "; ".join(faults), HINT, ExitCode.ENGINE)


def compiled(backend: Backend) -> Decode:
    """`decode`, compiled for sizes that vary: one compilation, and on a GPU one recorded graph for each size."""
    from torch.fx.experimental import _config as shapes

    mode: dict[str, Any] = {"mode": "reduce-overhead"} if backend == "inductor" else {}
    function = torch.compile(decode, fullgraph=True, dynamic=True, backend=backend, **mode)

    def run(trunk: nn.Module, cache: FixedCache, inputs_3R: Tensor) -> Tensor:
        for stored in (*cache.keys_RHTD, *cache.values_RHTD):  # a CUDA graph writes to them where they are
            torch._dynamo.mark_static_address(stored, guard=False)  # type: ignore[no-untyped-call]
        torch.compiler.cudagraph_mark_step_begin()
        with (
            # the step writes each place of the cache once and needs no deterministic kernels: with them, every layer's
            # two writes would be kernels of their own, which sort
            deterministic_kernels(False),
            # a layer's epsilon or scale is a constant: an input is on the CPU, where no CUDA graph can read it
            torch._dynamo.config.patch(specialize_float=True, recompile_limit=MOST_VARIANTS),  # type: ignore[no-untyped-call]
            shapes.patch(use_duck_shape=False),  # type: ignore[attr-defined]  # equal sizes by chance are no rule
        ):
            hidden_RH: Tensor = function(trunk, cache, inputs_3R)
        return hidden_RH.clone()  # the next step overwrites what a CUDA graph returned

    return run


@torch.no_grad()
def difference(model: PreTrainedModel, step: FixedStep) -> str | None:
    """What is wrong with a step beside the same that is not compiled; None if nothing is.

    Several tokens of rows of two sizes: the second size must not need another compilation to be right.
    """
    top = min(1024, input_ids_of(model))
    ids = np.random.default_rng(1).integers(1, top, (9, 8 + TRIED_TOKENS))
    plain = FixedStep(model)
    for rows in (9, 5):
        prompts = [tuple(row[: 4 + i % 3]) for i, row in enumerate(ids[:rows].tolist())]
        both = [FixedRows(model, prompts, TRIED_TOKENS, rows, one) for one in (plain, step)]
        for t in range(TRIED_TOKENS):
            for one in both:
                one.step(np.arange(rows), ids[:rows, 8 + t])
            expected_RV, found_RV = (head_logits(model, one.hidden_RH).float().log_softmax(-1) for one in both)
            off_RV = (found_RV - expected_RV).abs().masked_fill(expected_RV < np.log(1e-6), 0.0)
            half = compute_dtype(model).itemsize <= 2
            off, limit = (float(off_RV.amax(-1).median()), HALF_LIMIT) if half else (float(off_RV.amax()), LIMIT)
            if not off <= limit:
                return f"log-probabilities are off by {off:.2g} nats"
    return None
