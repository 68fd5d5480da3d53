"""Milliseconds of one CPU core per token: the plain sampler and its compiled step, in turn, with the same seeds.

    python results/programs/compiled_sampling.py qwen3_moe --tokens 48
    python results/programs/compiled_sampling.py FOLDER_OF_A_MODEL --tokens 32 --repeats 3

The processor's time is taken, with one thread, so that other work on the machine matters little. Set
TORCHINDUCTOR_CACHE_DIR to an empty folder to measure a first compilation.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gspo_cli.config import TinyModel
from gspo_cli.models.admission import admit
from gspo_cli.models.compiled import compiled_step
from gspo_cli.models.device import prepare_torch
from gspo_cli.models.tiny import build_tiny
from gspo_cli.rollout.builtin.sampler import Drawn, sample
from gspo_cli.types import Sampling


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="qwen3, qwen3_moe (tiny ones), or a folder")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    prepare_torch(1)
    model: PreTrainedModel
    if Path(options.model).is_dir():
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    else:
        model = build_tiny(TinyModel(kind=options.model), seed=1)[0]
    model.eval()
    admit(model, options.model)
    prompts = [tuple(range(5 + i, 21 + i)) for i in range(8)]

    def draw(step: Any) -> list[Drawn]:
        seeds = [[1, 2, 3, 4]] * len(prompts)
        groups = sample(model, prompts, seeds, Sampling(1.0, options.tokens), frozenset({-1}), math.inf, step=step)
        return [drawn for group in groups for drawn in group]

    with torch.no_grad():
        start = time.process_time()
        step = compiled_step(model)
        found: dict[str, Any] = {"model": options.model, "rows": 32, "tokens": options.tokens}
        found["compile_cpu_s"] = round(time.process_time() - start, 1)
        plain, compiled = draw(None), draw(step)
        same = [a.token_ids == b.token_ids for a, b in zip(plain, compiled, strict=True)]
        found["same_responses"] = sum(same)
        for name in ("plain", "compiled"):
            found[f"{name}_ms"] = []
        for _ in range(options.repeats):
            for name, its in (("plain", None), ("compiled", step)):
                start = time.process_time()
                draw(its)
                found[f"{name}_ms"].append(round(1000 * (time.process_time() - start) / options.tokens, 2))
        found |= {f"{name}_median_ms": statistics.median(found[f"{name}_ms"]) for name in ("plain", "compiled")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
