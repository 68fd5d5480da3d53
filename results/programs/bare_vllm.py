"""The other side of `vllm_throughput.py`: `LLM.generate` with nothing around it. Run by vLLM's own interpreter.

The clock runs in this process, around that one call. What it returns is read afterwards.
"""

from __future__ import annotations

import time
from typing import Any

from vllm import LLM, SamplingParams


class Backend:
    """vLLM with the engine's own settings for model, precision and memory."""

    def __init__(self, model: str, dtype: str, stop_ids: list[int], kv_bytes: int) -> None:
        self.stop_ids = stop_ids
        self.llm = LLM(
            model, dtype=dtype, seed=0, skip_tokenizer_init=True, generation_config="vllm", enforce_eager=True,
            logprobs_mode="processed_logprobs", kv_cache_memory_bytes=kv_bytes, enable_prefix_caching=True,
        )  # fmt: skip
        self.facts = {"versions": {}, "dtype": dtype}

    def generate(
        self, prompts: list[list[int]], requests: list[list[int]], sampling: dict[str, Any], grouped: int
    ) -> dict[str, Any]:
        """Seconds and token ids. `grouped` = 0: the same requests as the engine's, one a sample with its own seed;
        else one request a prompt with that many samples and no seeds, as a program without either need would ask."""
        fixed = {"logprobs": 0, "flat_logprobs": True, "detokenize": False, "ignore_eos": True,
                 "stop_token_ids": self.stop_ids}  # fmt: skip
        if grouped:
            inputs = [{"prompt_token_ids": p} for p in prompts]
            params = [SamplingParams(n=grouped, **fixed, **sampling) for _ in prompts]
        else:
            inputs = [{"prompt_token_ids": prompts[prompt]} for prompt, _ in requests]
            params = [SamplingParams(n=1, seed=seed, **fixed, **sampling) for _, seed in requests]
        self.llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": [list(o.token_ids) for out in outputs for o in out.outputs]}
