"""Tokens per second of engine `vllm` against a bare `LLM.generate`, side by side in one run.

    python results/programs/vllm_throughput.py MODEL_DIR --vllm-python VLLM_ENV/bin/python

Both sides hold the same model at the same time, each in a process of its own, and take turns; the order is swapped
every time. Ours is timed from the call to the finished samples, with requests and answers travelling between processes;
theirs inside its process, around `LLM.generate` alone. Same prompts, seeds, sampling, precision, threads and cache, so
the samples must be the same to the last token, which is checked. Prefix caches are emptied before each turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from gspo_cli.config import ModelConfig, RolloutConfig, VllmConfig
from gspo_cli.models.load import load_policy, stop_ids
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.prompts import encode
from gspo_cli.rollout.vllm.host import ProcessHost, child_environment, vllm_sampling
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks.arithmetic import Arithmetic
from gspo_cli.types import Sampling


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    model, tokenizer = load_policy(ModelConfig(path=options.model), options.model)
    problems = Arithmetic().problems("train")[: options.prompts]
    prompts = [encode(tokenizer, p) for p in problems]
    seeds: dict[SampleKey, int] = {
        (p.problem_id, i): derive_seed(0, "throughput", p.problem_id, i)
        for p in prompts for i in range(options.samples)
    }  # fmt: skip
    sampling = Sampling(1.0, options.max_new_tokens)
    config = RolloutConfig(engine="vllm", kv_budget_gb=1.0, vllm=VllmConfig(python=options.vllm_python))
    engine = open_engine(config, model, tokenizer)
    stops = sorted(stop_ids(model, tokenizer))
    bare = ProcessHost(
        options.vllm_python, str(Path(__file__).with_name("bare_vllm.py")),
        {"model": options.model, "dtype": "float32", "stop_ids": stops, "kv_bytes": 2**30},
        child_environment(options.threads), 600.0,
    )  # fmt: skip
    place = {p.problem_id: i for i, p in enumerate(prompts)}
    request: dict[str, Any] = {
        "prompts": [list(p.token_ids) for p in prompts],
        "requests": [[place[problem], seed] for (problem, _), seed in seeds.items()],
        "sampling": vllm_sampling(sampling),
    }

    def ours() -> tuple[float, list[list[int]]]:
        engine.sync(model, 0)  # empties the prefix cache, as before every rollout batch
        start = time.perf_counter()
        samples = engine.generate(prompts, sampling, seeds)
        return time.perf_counter() - start, [list(s.token_ids) for s in samples]

    def theirs(grouped: int) -> tuple[float, list[list[int]]]:
        answer = bare.ask("generate", **request, grouped=grouped)
        return answer["seconds"], answer["tokens"]

    sides = {"engine": ours, "bare": lambda: theirs(0), "bare_grouped": lambda: theirs(options.samples)}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(options.repeats + 1):
        drawn: dict[str, list[list[int]]] = {}
        for name in list(sides) if repeat % 2 else reversed(sides):
            seconds, drawn[name] = sides[name]()
            if repeat:  # the first turn warms up
                speeds[name].append(sum(map(len, drawn[name])) / seconds)
        assert drawn["engine"] == drawn["bare"], "the two sides did not sample the same"
    engine.close()
    bare.close()
    report = summary(speeds) | {"tokens": sum(map(len, drawn["engine"])), "settings": vars(options)}
    report |= {"versions": engine.info.versions}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "tokens_per_s"}, indent=1))


def summary(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the ratios turn by turn: what else the machine did then touched both sides."""
    ratios = {
        f"engine_over_{other}": [a / b for a, b in zip(speeds["engine"], speeds[other], strict=True)]
        for other in ("bare", "bare_grouped")
    }
    return {
        "tokens_per_s": speeds,
        "median_tokens_per_s": {name: round(statistics.median(v)) for name, v in speeds.items()},
    } | {
        name: {"median": round(statistics.median(v), 3), "range": [round(min(v), 3), round(max(v), 3)]}
        for name, v in ratios.items()
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a model folder with its tokenizer")
    parser.add_argument("--vllm-python", required=True, help="the interpreter of vLLM's environment")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the raw series there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
