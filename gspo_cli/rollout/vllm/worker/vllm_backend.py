"""vLLM's offline engine, token ids in and out. Needs vLLM 0.32 and nothing of this package.

Sampled log-probabilities are those of the distribution drawn from (`processed_logprobs`). What vLLM would take from the
model's generation config is switched off, and every sampling field is given with every request.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

REPORT_S = 0.5  # between two reports of progress
LOWEST_TEMPERATURE = 0.01  # vLLM raises anything between 0 and this without a word to the caller


class SyncExtension:
    """Becomes part of vLLM's worker, because only names can be called across its processes."""

    def gspo_reload(self, weights: Iterable[tuple[str, torch.Tensor]] | None, path: str | None, repack: bool) -> None:
        """Loads new weights, from an iterator within the process or from a safetensors file.

        `repack` works around two faults of vLLM's reload on CPUs, each of which leaves another model behind without a
        word. Experts are packed for their kernel on the first load only: without a kernel every load is a first one.
        And a language-model head that is tied to the embedding keeps its packed copy of the old one. On a GPU nothing
        is packed, and captured graphs hold the kernel's addresses.
        """
        model = self.get_model()  # type: ignore[attr-defined]
        if repack and expert_methods(model) and not drop_kernels(model):
            raise RuntimeError("no expert kernel was reset, so the experts would stay unpacked")
        self.reload_weights(weights_iterator=weights or from_file(str(path)))  # type: ignore[attr-defined]
        if repack:
            pack_heads(model)


def expert_methods(model: torch.nn.Module) -> list[Any]:
    """How vLLM computes each layer of experts."""
    return [m.quant_method for m in model.modules() if hasattr(getattr(m, "quant_method", None), "moe_kernel")]


def drop_kernels(model: torch.nn.Module) -> int:
    """Before a load on a CPU: the experts' kernels, and how many there were."""
    kept = [method for method in expert_methods(model) if method.moe_kernel is not None]
    for method in kept:
        method.moe_kernel = None
    return len(kept)


def pack_heads(model: torch.nn.Module) -> None:
    """After a load on a CPU: what keeps the plain weight beside the packed one, embedding and head."""
    module: Any
    for module in model.modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def name_shared_memory(group: str) -> None:
    """Gives the memory that the workers of an engine share on a CPU a name of its own.

    vLLM names it after the address that they meet at, which is the same for every engine that it did not start itself:
    two of them would clash, and one that was killed leaves its memory behind and lets no other start.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    usual = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(
        lambda communicator: f"gspo-{group}{usual(communicator).lstrip('/')}"
    )


def from_file(path: str) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


class Backend:
    """One vLLM engine with the methods that a host offers."""

    def __init__(
        self, model: str, revision: str | None, dtype: str, stop_ids: list[int], kv_bytes: int, routes: bool,
        tensor_parallel: int, external: bool, code_revision: str | None,
    ) -> None:  # fmt: skip
        """`external` = `torchrun` has started the other workers of this engine, or other engines beside it; each asks
        for the same, and none speaks for the others."""
        self.stop_ids, self.routes = stop_ids, routes
        self.report: Callable[..., None] = lambda *_: None
        self.on_cpu = current_platform.is_cpu()
        self.asleep = False
        self.released = 0
        """Bytes that falling asleep has given back."""
        if not self.on_cpu and tensor_parallel == 1:
            expand_segments()
        if external and self.on_cpu:
            name_shared_memory(os.environ["MASTER_PORT"])
        # a prompt that does not fit into a step is cut, and its seeded generator set back: not possible on a CPU
        self.llm = LLM(
            model, revision=revision, dtype=dtype, seed=0, skip_tokenizer_init=True, generation_config="vllm",
            logprobs_mode="processed_logprobs", worker_extension_cls=f"{__name__}.{SyncExtension.__name__}",
            max_model_len=-1, kv_cache_memory_bytes=kv_bytes, enable_prefix_caching=True,
            enforce_eager=self.on_cpu, enable_chunked_prefill=not self.on_cpu, enable_sleep_mode=not self.on_cpu,
            trust_remote_code=code_revision is not None, code_revision=code_revision,
            tensor_parallel_size=tensor_parallel,
            distributed_executor_backend="external_launcher" if external else None,
            enable_return_routed_experts=routes, gpu_memory_utilization=0.9 if self.on_cpu else _free_share(),
        )  # fmt: skip
        if external and self.on_cpu:  # all have opened it by now; without its name it goes with the last of them
            for left in Path("/dev/shm").glob(f"gspo-{os.environ['MASTER_PORT']}-*"):
                left.unlink(missing_ok=True)
        config = self.llm.llm_engine.vllm_config
        self.positions = config.model_config.max_model_len
        self.llm.update_weight_version("0")
        self.facts = {
            "versions": {
                "vllm": vllm.__version__, "torch": torch.__version__,
                "model_runner": "V2" if config.use_v2_model_runner else "V1",
            },
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "positions": self.positions,
        }  # fmt: skip

    def generate(
        self, prompts: list[list[int]], requests: list[list[int]], sampling: dict[str, Any], deadline_s: float,
        stop: bool = True,
    ) -> dict[str, Any]:  # fmt: skip
        """One sample for each (prompt index, seed) of `requests`: [request, version, finish, token ids, log-probs].

        One request a sample: with several samples a request vLLM makes up the seeds itself. The prefix cache shares
        the prompt all the same. `stop` = whether a stop token ends a sample.
        Errors: ValueError for a prompt that does not fit or a temperature that vLLM would change; TimeoutError.
        """
        longest = max(map(len, prompts)) + sampling["max_tokens"]
        if longest > self.positions:
            raise ValueError(
                f"{longest} positions are asked for and {self.positions} fit: more rollout.kv_budget_gb, or a smaller "
                "rollout.max_new_tokens"
            )
        if 0 < sampling["temperature"] < LOWEST_TEMPERATURE:
            raise ValueError(f"vLLM raises temperatures below {LOWEST_TEMPERATURE}; 0 is greedy")
        params = [
            SamplingParams(
                n=1, seed=seed, logprobs=0, flat_logprobs=True, detokenize=False, ignore_eos=True,
                stop_token_ids=self.stop_ids if stop else [], **sampling,
            )
            for _, seed in requests
        ]  # fmt: skip
        inputs = [{"prompt_token_ids": prompts[prompt]} for prompt, _ in requests]
        finished = self._run(inputs, params, deadline_s, longest=sampling["max_tokens"])
        return {"samples": [self._sample(index, done.outputs[0]) for index, done in enumerate(finished)]}

    def _sample(self, index: int, out: Any) -> list[Any]:
        spans = out.weight_versions or []
        version = int(spans[0].version) if len(spans) == 1 else -1  # weights that changed on the way are no version
        token_ids = list(out.token_ids)
        stopped = out.finish_reason == "stop" and token_ids[-1] in self.stop_ids
        finish = "stop" if stopped else "length" if out.finish_reason == "length" else "abort"
        log_probs = [out.logprobs.logprobs[start] for start in out.logprobs.start_indices]
        sample = [index, version, finish, token_ids, log_probs]
        return [*sample, out.routed_experts] if self.routes else sample

    def score(self, sequences: list[list[int]], deadline_s: float) -> dict[str, Any]:
        """Log-probabilities at temperature 1 of every token of each sequence but its first."""
        params = SamplingParams(
            n=1, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False
        )
        done = self._run([{"prompt_token_ids": s} for s in sequences], [params] * len(sequences), deadline_s)
        return {
            "log_probs": [
                [scores[token].logprob for token, scores in zip(s[1:], out.prompt_logprobs[1:], strict=True)]
                for s, out in zip(sequences, done, strict=True)
            ]
        }

    def _run(
        self, inputs: list[dict[str, Any]], params: list[SamplingParams], deadline_s: float, longest: int = 0
    ) -> list[Any]:
        """`LLM.generate` with a look at the clock between two steps: the outputs in the order of the inputs.

        `longest` = most tokens of an output, for reports of progress; 0 = none.
        """
        until = time.monotonic() + deadline_s
        names = self.llm.enqueue(inputs, params, use_tqdm=False)
        outputs: list[Any] = []
        drawn: dict[str, int] = {}  # tokens of each request
        reported = time.monotonic()
        while self.llm.llm_engine.has_unfinished_requests():
            if time.monotonic() > until:
                self.llm.llm_engine.abort_request(names, internal=True)
                raise TimeoutError(f"{len(names) - len(outputs)} of {len(names)} requests unfinished")
            stepped = self.llm.llm_engine.step()
            outputs += [out for out in stepped if out.finished]
            drawn.update({out.request_id: len(out.outputs[0].token_ids) for out in stepped if longest})
            if longest and time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                tokens, done = sum(drawn.values()), sum(drawn[out.request_id] for out in outputs)
                share = (len(outputs) + (tokens - done) / longest) / len(names)
                self.report(len(outputs), len(names), tokens, share)
        if len(outputs) != len(names):
            raise RuntimeError(f"{len(outputs)} answers to {len(names)} requests")
        return sorted(outputs, key=lambda out: int(out.request_id))  # numbered as they were queued

    def load(
        self, version: int, repack: bool, path: str | None = None,
        weights: Iterable[tuple[str, torch.Tensor]] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """New weights, then no cached key or value of the old ones, then their version.

        Errors: ValueError where the trainer leaves too little memory to wake up.
        """
        if self.asleep:
            free = free_memory()
            if free < self.released:
                held, kept = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
                raise ValueError(
                    f"waking up takes {self.released / 1e9:.1f} GB and {free / 1e9:.1f} are free: the trainer holds "
                    f"{held / 1e9:.1f} GB of tensors, and {(kept - held) / 1e9:.1f} between them that it cannot give "
                    "back; lower rollout.kv_budget_gb or train.micro_batch_tokens"
                )
            self.facts["wake_room_gb"] = (free - self.released) / 1e9
            self.llm.wake_up(["weights"])
        arguments = {"weights": weights, "path": path, "repack": repack and self.on_cpu}
        self.llm.collective_rpc("gspo_reload", kwargs=arguments)
        if self.asleep:
            self.llm.wake_up(["kv_cache"])
            self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache, which belongs to the old weights")
        self.llm.update_weight_version(str(version))
        return {}

    def rest(self) -> dict[str, Any]:
        """Gives the accelerator's memory to the trainer until the next load, which brings the weights anyway."""
        if not self.on_cpu:
            free = free_memory()
            self.llm.sleep(level=2)
            self.released, self.asleep = free_memory() - free, True
        return {}


def expand_segments() -> None:
    """From now on torch can give back to the driver what lies between the trainer's tensors, page by page, unless the
    user has set the allocator up. vLLM 0.32 leaves its own pool out of it; with several GPUs an engine its all-reduce
    would end the process (vllm#42609), so it is not called there."""
    from vllm.device_allocator.alloc_conf import current_alloc_conf, set_alloc_conf

    if not current_alloc_conf():
        set_alloc_conf("expandable_segments:True")


def free_memory() -> int:
    """Bytes of the GPU that are free once torch has given back what it can."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def _free_share() -> float:
    """The share of the GPU that is free: vLLM refuses to start where less is, whatever it is told to use."""
    free, total = torch.cuda.mem_get_info()
    return 0.95 * free / total
