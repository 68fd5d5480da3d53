"""The six points of gpu.py, each in a process of its own: `python gpu_points.py POINT --device cuda`.

Every function takes the device and whether shapes are small; nothing else differs between a GPU and the rehearsal on a
CPU. After each case it prints what it has found so far as a line of JSON; a case that would begin after `--seconds` is
left out, and named.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_sampling import sampling
from gpu_workload import (
    STOP,
    Cases,
    Report,
    batch_of,
    build,
    digest,
    learner_of,
    minis_of,
    not_deterministic,
    places_of_waits,
    seconds,
)
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.models.device import determinism, prepare_torch
from gspo_cli.models.packing import pack
from gspo_cli.models.precision import compute_in, computing
from gspo_cli.models.sharding import run_forward
from gspo_cli.models.trunk import head_logits, last_hidden, trunk_of
from gspo_cli.moe.routers import find_routing
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.training.step.update import Learner, record_old_policy, scored, update
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Sampling, Score


def numbers(device: str, tiny: bool, cases: Cases) -> None:
    """(1) The device's numbers against the CPU's in float32, TF32 and bfloat16; and the same seed twice."""
    cases.found["determinism"] = determinism()
    groups, response = (2, 6) if tiny else (4, 48)
    for name, moe in (("dense", False), ("moe", True)):
        if not cases.begin(name):
            continue
        # a model that a CPU passes in seconds
        here = build(moe, True, "cpu", num_hidden_layers=4, hidden_size=32 if tiny else 256)
        batch = batch_of(here, groups, 4, 8, response)
        exact_BT, mask_BT = _log_probs(here, batch)
        row: Report = {}
        for kind, matmul, compute in (
            ("float32", "highest", None), ("tf32", "high", None), ("bfloat16", "highest", torch.bfloat16),
        ):  # fmt: skip
            prepare_torch(1 if device == "cpu" else None, matmul)
            there = copy.deepcopy(here).to(device)
            if compute is not None:
                compute_in(there, compute)
            found_BT, _ = _log_probs(there, batch)
            gap_N = (found_BT - exact_BT)[mask_BT]
            row[kind] = {
                "token_max": float(gap_N.abs().max()), "token_rms": float(gap_N.square().mean().sqrt()),
                "relative_max": float((gap_N / exact_BT[mask_BT]).abs().max()),
                "sequence_rms": float(((found_BT - exact_BT).sum(-1) / mask_BT.sum(-1)).square().mean().sqrt()),
                "sampler_to_trainer_rms": _mismatch(there, batch),
            }  # fmt: skip
        prepare_torch(1 if device == "cpu" else None)
        twice: list[tuple[str, str]] = []
        row["not_deterministic"] = not_deterministic(lambda: twice.append(_trained(here, batch, device)))  # noqa: B023
        twice.append(_trained(here, batch, device))
        row["same_seed_same_weights"], row["same_seed_same_tokens"] = (a == b for a, b in zip(*twice, strict=True))
        row["same_seed_same_bytes"] = twice[0] == twice[1]
        row["float32_within_1e-4"] = row["float32"]["relative_max"] < 1e-4
        cases.found[name] = row


@torch.no_grad()
def _log_probs(model: PreTrainedModel, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    learner = learner_of(model)
    parts = [m for mini in minis_of(learner, batch, 1, 10**6) for m in mini.micro_batches]
    assert len(parts) == 1
    return scored(model, parts[0], 1.0).log_probs_BT.double().cpu(), parts[0].mask_BT.cpu()


@torch.no_grad()
def _mismatch(model: PreTrainedModel, batch: RolloutBatch) -> float:
    """RMS difference in nats per token of the sampler's log-probabilities and the trainer's, in the same precision."""
    prompts = [group.prompt.token_ids for group in batch.groups]
    with computing(model):
        drawn = sample(model, prompts, [[0, 1]] * len(prompts), Sampling(1.0, 12), STOP, math.inf)
    rows = [(p, d) for p, group in zip(prompts, drawn, strict=True) for d in group]
    packing = pack([(*p, *d.token_ids) for p, d in rows]).to(model.device)

    def passes(m: PreTrainedModel) -> Tensor:
        return head_logits(m, last_hidden(trunk_of(m), packing.input_ids, packing)).float().log_softmax(-1)

    log_probs_NV, squares, count = run_forward(model, passes).cpu(), 0.0, 0
    for (p, d), index_T in zip(rows, packing.index_BT.cpu(), strict=True):
        for t, (token, log_prob) in enumerate(zip(d.token_ids, d.log_probs, strict=True)):
            squares += (float(log_probs_NV[index_T[len(p) + t - 1], token]) - log_prob) ** 2
            count += 1
    return math.sqrt(squares / count)


def _trained(model: PreTrainedModel, batch: RolloutBatch, device: str) -> tuple[str, str]:
    """What two updates make of the weights, and what is drawn before them, with its log-probabilities."""
    there = copy.deepcopy(model).to(device)
    learner = learner_of(there)
    prompts = [group.prompt.token_ids for group in batch.groups]
    drawn = sample(there, prompts, [[7, 8]] * len(prompts), Sampling(1.0, 8), STOP, math.inf)
    minis = minis_of(learner, batch, 2, 64)
    record_old_policy(learner, minis)
    for i, mini in enumerate(minis):
        update(learner, mini, 1e-3, first=i == 0)
    return digest(there), str([(d.token_ids, d.log_probs) for group in drawn for d in group])


def step(device: str, tiny: bool, cases: Cases) -> None:
    """(3) A training step in bfloat16 passes: share of the measured matrix peak, and memory."""
    peak = matrix_peak(device, 256 if tiny else 8192)
    cases.found |= {"matrix_peak_tflops": round(peak / 1e12, 3), "runs": []}
    lengths = ((2, 16),) if tiny else ((2048, 512), (8192, 1024))
    for name, moe in (("dense", False), ("moe", True)):
        model = build(moe, tiny, device)
        compute_in(model, torch.bfloat16)
        active = active_parameters(model)
        for tokens, response in lengths:
            if not cases.begin(f"{name}, {tokens} tokens"):
                continue
            if tiny:
                tokens = 64
            learner = learner_of(model)
            batch = batch_of(model, max(1, tokens // (4 * response)), 4, 16, response)
            trained = sum(len(g.prompt.token_ids) + sum(len(s.token_ids) for s in g.samples) for g in batch.groups)

            def one(learner: Learner = learner, batch: RolloutBatch = batch, tokens: int = tokens) -> None:
                for mini in minis_of(learner, batch, 1, 2 * tokens):
                    update(learner, mini, 1e-6, first=True).result()

            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            times = seconds(one, device, 1 if tiny else 3)
            took = statistics.median(times)
            row = {"model": name, "tokens": trained, "seconds": times, "tokens_per_s": round(trained / took, 1)}
            row |= {"parameters": sum(p.numel() for p in model.parameters()), "active": active}
            row["share_of_peak"] = round(6 * active * trained / took / peak, 4)
            if device == "cuda":
                row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
                row["waits"] = places_of_waits(one, device)
            cases.found["runs"].append(row)
            del learner
        del model
        if device == "cuda":
            torch.cuda.empty_cache()


def matrix_peak(device: str, size: int) -> float:
    """Operations per second of the best of several square bfloat16 products."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: a @ b, device, 5))


def active_parameters(model: PreTrainedModel) -> int:
    """Parameters in the products of one token, the tied head included."""
    routing = find_routing(model)
    experts = {id(p) for block in routing.experts for p in block.parameters()} if routing else set()
    share = routing.top_k / routing.num_experts if routing else 1.0
    return int(sum(p.numel() * (share if id(p) in experts else 1) for p in model.parameters()))


def rollout(device: str, tiny: bool, cases: Cases) -> None:
    """(4) A rollout batch here and in TRL on the same model: sampling, old log-probabilities, four updates."""
    prompts, samples, new = (4, 4, 6) if tiny else (8, 8, 128)
    model = build(False, tiny, device, torch.float32)
    if not tiny:
        compute_in(model, torch.bfloat16)
    learner = learner_of(model)
    g = torch.Generator().manual_seed(3)
    top = min(50_000, int(model.config.vocab_size))
    texts = [tuple(torch.randint(5, top, (16,), generator=g).tolist()) for _ in range(prompts)]

    def ours() -> None:
        with computing(model):
            drawn = sample(model, texts, [list(range(samples))] * prompts, Sampling(1.0, new), STOP, math.inf)
        made = []
        for i, (ids, group) in enumerate(zip(texts, drawn, strict=True)):
            its = tuple(
                Sample(str(i), j, j, tuple(d.token_ids), tuple(d.log_probs), "length", 0) for j, d in enumerate(group)
            )
            scores = tuple(Score(float(sum(s.token_ids) % 2), "") for s in its)
            made.append(Group(Problem(str(i), "", ""), Prompt(str(i), ids), its, ("",) * samples, scores))
        minis = minis_of(learner, RolloutBatch(1, tuple(made), new), 4, 16_384)
        record_old_policy(learner, minis)
        for i, mini in enumerate(minis):
            if mini.micro_batches:
                update(learner, mini, 1e-6, first=i == 0).result()

    found = cases.found
    found |= {"ours_s": seconds(ours, device, 1 if tiny else 3), "prompts": prompts, "samples": samples}
    found["new_tokens"] = new
    if not cases.begin("TRL"):
        return
    try:
        found["trl"], found["trl_s"] = trl_batches(device, tiny, prompts, samples, new)
    except ImportError as error:
        found["trl"] = f"not measured: {error}"
        return
    found["ratio"] = round(statistics.median(found["ours_s"]) / statistics.median(found["trl_s"]), 3)


def trl_batches(device: str, tiny: bool, prompts: int, samples: int, new: int) -> tuple[str, list[float]]:
    """TRL's version, and the seconds of its rollout batches on the same shapes, from one batch's rewards to the next's;
    all but the first."""
    import trl
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gspo_cli.models.tiny import byte_tokenizer

    model = build(False, tiny, device)
    model.set_attn_implementation("sdpa")
    batches, moments = (3 if tiny else 5), list[float]()

    def parity(completions: list[str], **_: Any) -> list[float]:
        moments.append(time.perf_counter())
        return [float(len(text) % 2) for text in completions]

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=prompts * samples // 4, steps_per_generation=4,
            num_generations=samples, max_completion_length=new, max_steps=4 * batches, learning_rate=1e-6,
            importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, beta=0.0, bf16=not tiny,
            use_cpu=device == "cpu", report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1000,
            gradient_checkpointing=False, temperature=1.0, top_p=1.0, top_k=0, loss_type="grpo",
            dataloader_pin_memory=device == "cuda",
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": f"{i:016d}"} for i in range(prompts * batches)])
        trainer = GRPOTrainer(model, parity, config, train_dataset=rows, processing_class=byte_tokenizer())
        trainer.train()
    return trl.__version__, [b - a for a, b in pairwise(moments[1:])]


def learning(device: str, tiny: bool, cases: Cases) -> None:
    """(5) The quickstart in float32 and in bfloat16 passes, and a deep mixture's churn, by the program itself.

    A run that is late is stopped, and what it has logged is kept.
    """
    batches = {"float32": 20, "bfloat16": 20, "deep_moe": 8}
    deep = "model.tiny={kind='qwen3_moe', hidden=64, layers=48, experts=32, top_k=4}"
    runs = {
        "float32": [], "bfloat16": ["model.compute=bfloat16"],
        "deep_moe": [deep.replace("48", "3") if tiny else deep, "model.compute=bfloat16", "cold_start.steps=100"],
    }  # fmt: skip
    few: tuple[str, ...] = ("cold_start.steps=2", "rollout.prompts=2", "rollout.samples=4", "train.minibatches=2")
    often = "task.rewards=[{name='format', pattern='[ -B].*'}]"  # a reward that differs, so that there are updates
    few = (*few, "rollout.max_new_tokens=8", often) if tiny else ()
    with tempfile.TemporaryDirectory() as folder:
        for position, (name, more) in enumerate(runs.items()):
            if not cases.begin(name):
                continue
            limit = max(5.0, cases.left / (len(runs) - position))
            out = Path(folder) / name
            command = [sys.executable, "-m", "gspo_cli", "train", "quickstart", "--algo", "gspo", "--seeds", "0"]
            command += ["--steps", "2" if tiny else str(batches[name]), "--out", str(out)]
            for value in (f"model.device={device}", "eval.bench=[]", *more, *few):
                command += ["--set", value]
            start = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
                try:
                    said = running.communicate(timeout=limit)[1]
                except subprocess.TimeoutExpired:
                    running.kill()
                    said = running.communicate()[1] + "\nstopped: no time left"
            row: Report = {"seconds": round(time.monotonic() - start, 1)}
            for log in out.rglob("metrics.jsonl"):
                row |= logged(log)
            cases.found[name] = row | ({"error": said[-1500:]} if running.returncode else {})


def logged(log: Path) -> Report:
    """The values of a run's log, batch by batch or update by update."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {
        key: [line["metrics"].get(key) for line in lines if line["kind"] == kind]
        for kind, key in (
            ("rollout", "reward/mean"), ("rollout", "mismatch/token_floor"), ("rollout", "mismatch/floor"),
            ("step", "moe/slot_churn_step"), ("step", "moe/token_any_layer_frac_step"),
        )
    }  # fmt: skip


def sharding(device: str, tiny: bool, cases: Cases) -> None:
    """(6) FSDP2 on one rank, with NCCL on a GPU: the same log-probabilities and gradients as without it."""
    import torch.distributed as dist

    from gspo_cli.models.admission import paths_of, use_paths
    from gspo_cli.models.sharding import full_tensor, shard

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=0, world_size=1)
    try:
        plain = build(False, tiny, device)
        batch = batch_of(plain, 2, 4, 8, 6 if tiny else 256)
        with torch.device("meta"):
            skeleton = type(plain)(plain.config).eval()
        use_paths(skeleton, paths_of(plain))
        shard(skeleton, copy.deepcopy(plain).cpu(), torch.device(device), torch.float32, 1)
        values, norms = [], []
        for model in (plain, skeleton):
            (mini,) = minis_of(learner_of(model), batch, 1, 10**6)
            log_probs_BT = scored(model, mini.micro_batches[0], 1.0).log_probs_BT
            log_probs_BT.sum().backward()
            values.append(log_probs_BT.detach())
            norms.append(sum(float(full_tensor(p.grad).double().square().sum()) for p in model.parameters()
                             if p.grad is not None))  # fmt: skip
        cases.found |= {
            "backend": dist.get_backend(), "token_max": float((values[0] - values[1]).abs().max()),
            "gradient_norms": [math.sqrt(n) for n in norms],
        }  # fmt: skip
    finally:
        dist.destroy_process_group()


POINTS = {f.__name__: f for f in (numbers, sampling, step, rollout, learning, sharding)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("point", choices=POINTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after these, no further case begins")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU here; --tiny --device cpu rehearses")
    prepare_torch(1 if options.device == "cpu" else None)
    cases = Cases(options.seconds)
    cases.found["device"] = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    if options.device == "cuda":
        cases.found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    POINTS[options.point](options.device, options.tiny, cases)
    cases.show()


if __name__ == "__main__":
    main()
