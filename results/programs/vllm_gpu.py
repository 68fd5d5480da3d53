"""Engine `vllm` on one GPU, shared with the trainer: everything worth knowing in one call.

    python results/programs/vllm_gpu.py MODEL --json vllm_gpu.json

Not yet run on a GPU. Memory before and after sleep, the time to hand over weights, tokens per second of the engine and
of `LLM.generate` on the very same vLLM, the difference of the two sides' log-probabilities after each hand-over, and
greedy agreement. Fails where the one-prompt check does. Needs `pip install '.[vllm]'`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gspo_cli.config import ModelConfig, RolloutConfig
from gspo_cli.models.load import load_policy
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.prompts import encode
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import InProcessHost, vllm_sampling
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.types import Prompt, Sampling


def main() -> None:
    options = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here; results/programs/vllm_throughput.py measures the engine on a CPU")
    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "settings": vars(options), "used_gib": {}}

    def used(when: str) -> None:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        report["used_gib"][when] = round((total - free) / 2**30, 2)

    used("nothing loaded")
    model, tokenizer = load_policy(ModelConfig(path=options.model, dtype=options.dtype), options.model)
    prompts = [encode(tokenizer, p) for p in Arithmetic().problems("train")[: options.prompts]]
    used("trainer's weights")
    start = time.perf_counter()
    engine = open_engine(RolloutConfig(engine="vllm", kv_budget_gb=options.kv_budget_gb), model, tokenizer)
    assert isinstance(engine, HostedEngine)
    report |= {"start_s": round(time.perf_counter() - start, 2), "engine": asdict(engine.info)}
    used("engine awake")
    report["greedy"] = agreement(engine, model, prompts[:8])
    syncs, generator = [], torch.Generator(model.device).manual_seed(0)
    for version in range(1, options.syncs + 1):
        engine.rest()
        used("engine asleep")
        change(model, generator)
        start = time.perf_counter()
        synced = engine.sync(model, version)
        assert synced is not None
        syncs.append({"seconds": round(time.perf_counter() - start, 3), "absdiff_max": synced.absdiff_max,
                      "absdiff_mean": synced.absdiff_mean})  # fmt: skip
    used("engine awake again")
    report |= {"syncs": syncs, "greedy_after_syncs": agreement(engine, model, prompts[:8])}
    report["tokens_per_s"] = throughput(engine, prompts, options)
    engine.close()
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def agreement(engine: HostedEngine, model: Any, prompts: list[Prompt]) -> dict[str, float]:
    """Share of greedy tokens that are the same up to the first difference, and how far their log-probabilities are."""
    own = TransformersEngine(model, frozenset(engine.info.stop_ids), 1.0, 600.0)
    own.weight_version = engine.weight_version
    seeds: dict[SampleKey, int] = {(p.problem_id, 0): 0 for p in prompts}
    ours, theirs = (
        {s.problem_id: s for s in e.generate(prompts, Sampling(0.0, 64), seeds)} for e in (own, engine)
    )  # fmt: skip
    same, gaps = 0, [0.0]
    for key, sample in ours.items():
        for x, y, a, b in zip(sample.token_ids, theirs[key].token_ids, sample.log_probs, theirs[key].log_probs,
                              strict=False):  # fmt: skip
            if x != y:
                break
            same += 1
            gaps.append(abs(a - b))
    total = sum(len(s.token_ids) for s in ours.values())
    return {"same_frac": same / total, "absdiff_max": max(gaps), "absdiff_mean": statistics.fmean(gaps)}


def change(model: Any, generator: torch.Generator) -> None:
    """An update of the usual size, of every parameter."""
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator, device=p.device, dtype=torch.float32)
            p.add_((noise * 1e-3 * p.float().std()).to(p.dtype))


def throughput(engine: HostedEngine, prompts: list[Prompt], options: argparse.Namespace) -> dict[str, Any]:
    """The engine's `generate` and vLLM's own on the same requests, in turn."""
    from vllm import SamplingParams

    assert isinstance(engine.host, InProcessHost)
    llm, stops = engine.host.backend.llm, list(engine.info.stop_ids)
    sampling = Sampling(1.0, options.max_new_tokens)
    seeds: dict[SampleKey, int] = {
        (p.problem_id, i): derive_seed(0, "gpu", p.problem_id, i) for p in prompts for i in range(options.samples)
    }
    ids = {p.problem_id: list(p.token_ids) for p in prompts}
    inputs = [{"prompt_token_ids": ids[problem]} for problem, _ in seeds]
    params = [
        SamplingParams(n=1, seed=seed, logprobs=0, flat_logprobs=True, detokenize=False, ignore_eos=True,
                       stop_token_ids=stops, **vllm_sampling(sampling))
        for seed in seeds.values()
    ]  # fmt: skip
    speeds: dict[str, list[float]] = {"engine": [], "bare": []}
    for repeat in range(2 * options.repeats + 2):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        if repeat % 2:
            tokens = sum(len(o.outputs[0].token_ids) for o in llm.generate(inputs, params, use_tqdm=False))
        else:
            tokens = sum(len(s.token_ids) for s in engine.generate(prompts, sampling, seeds))
        if repeat >= 2:  # the first turn of each warms up
            speeds["bare" if repeat % 2 else "engine"].append(round(tokens / (time.perf_counter() - start), 1))
    ratios = [a / b for a, b in zip(speeds["engine"], speeds["bare"], strict=True)]
    return speeds | {"ratio_median": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a model folder or hub name")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of trainer and engine")
    parser.add_argument("--kv-budget-gb", type=float, default=8.0)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--syncs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="also write the report there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
