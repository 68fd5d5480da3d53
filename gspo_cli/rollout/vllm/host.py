"""Where engine `vllm` runs: on a CPU in a child process with its own interpreter, on a GPU in this process."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from gspo_cli.config import RolloutConfig
from gspo_cli.distributed import SINGLE_PROCESS, Ranks, free_port
from gspo_cli.errors import GspoError
from gspo_cli.events import SamplingProgress
from gspo_cli.models.remote_code import allowed_code
from gspo_cli.rollout.engine import Progress, check_spread, find_python
from gspo_cli.rollout.vllm.weights import named_weights, write_weights
from gspo_cli.types import Sampling


class HostLost(Exception):
    """The host died or did not answer in time; the message says which, and the last it said."""


class HostRefused(Exception):
    """The host lives and answered with an error: the same request would get it again."""


class Host(Protocol):
    """Answers requests; its methods are those of `worker/vllm_backend.py`."""

    facts: dict[str, Any]
    """`versions` and `dtype` of what it runs."""
    replaceable: bool
    """Whether another can be opened after it is lost."""

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request, answered or an error: HostLost, HostRefused."""

    def load(self, weights: PreTrainedModel, version: int) -> int:
        """Hands over the weights, and says how many tensors there were. Errors as `ask`."""

    def close(self) -> None:
        """Ends it, hung or not."""

    def give_up(self) -> None:
        """Ends it after an error: nothing may be sampled from what it holds."""


def vllm_sampling(sampling: Sampling) -> dict[str, Any]:
    """Every field that vLLM would otherwise take from somewhere else, under its own names."""
    fields = asdict(sampling)
    return {"max_tokens": fields.pop("max_new_tokens")} | fields


PROGRAMS = Path(__file__).parent / "worker"
PROGRESS_LINE = b'{"progress":'
REPACK = True
"""Works around the faults of vLLM's reload on CPUs (`worker/vllm_backend.py`); off only to show that the check sees
them."""


class ProcessHost:
    """The host program `program` run by `python`, in the environment `env`."""

    replaceable = True

    def __init__(
        self, python: str, program: str | Path, options: dict[str, Any], env: dict[str, str], deadline_s: float,
        progress: Progress = lambda _: None,
    ) -> None:  # fmt: skip
        self.deadline_s, self.progress = deadline_s, progress
        self.weights_file = os.memfd_create("gspo-weights") if hasattr(os, "memfd_create") else -1
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        requests_read, self.requests = os.pipe()
        self.answers, answers_write = os.pipe()
        settings = {"requests": requests_read, "answers": answers_write, "parent": os.getpid(), "options": options}
        passed = [requests_read, answers_write] + [f for f in [self.weights_file] if f >= 0]
        self.process = subprocess.Popen(
            [python, PROGRAMS / "child.py", PROGRAMS / program, json.dumps(settings)], env=env, pass_fds=passed,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        for inherited in (requests_read, answers_write):
            os.close(inherited)
        os.set_blocking(self.requests, False)
        try:
            self.facts = self._exchange(b"")  # the first line comes unasked, when the model is loaded
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """See `Host.ask`."""
        return self._exchange(json.dumps({"do": do, **request}).encode() + b"\n")

    def load(self, weights: PreTrainedModel, version: int) -> int:
        """See `Host.load`: the weights go through a file in memory that the child inherited."""
        tensors = write_weights(weights, getattr(torch, str(self.facts["dtype"])), self.weights_file)
        self.ask("load", version=version, path=f"/proc/self/fd/{self.weights_file}", repack=REPACK)
        return tensors

    def close(self) -> None:
        """Kills the process group and waits for the child: it has nothing to save."""
        if self.log.closed:
            return
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        for file in (self.requests, self.answers, self.weights_file):
            if file >= 0:
                os.close(file)

    give_up = close

    def _exchange(self, line: bytes) -> dict[str, Any]:
        """Sends a line and reads one, both before the deadline: a hung child reads no more than it writes.

        Lines that report progress may come before the answer.
        """
        until = time.monotonic() + self.deadline_s
        received = bytearray()
        while not received.endswith(b"\n"):
            left = until - time.monotonic()
            sending = [self.requests] if line else []
            readable, writable, _ = select.select([self.answers], sending, [], max(0.0, left))
            if not readable and not writable:
                raise HostLost(f"no answer within {self.deadline_s:g} s{self._last_words()}")
            try:
                if writable:
                    line = line[os.write(self.requests, line) :]
                part = os.read(self.answers, 1 << 20) if readable else None
            except BrokenPipeError:
                part = b""
            if part == b"":
                code = self.process.wait()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise HostLost(f"the engine's process ended ({how}){self._last_words()}")
            received += part or b""
            while received.startswith(PROGRESS_LINE) and (end := received.find(b"\n")) >= 0:
                self.progress(SamplingProgress(*json.loads(received[:end])["progress"]))
                del received[: end + 1]
        answer: dict[str, Any] = json.loads(received)
        if "error" in answer:
            late = answer["error"].startswith(TimeoutError.__name__)  # it looked at its clock before we did
            raise HostLost(answer["error"]) if late else HostRefused(answer["error"])
        return answer

    def _last_words(self) -> str:
        """The last line that it printed, if any."""
        self.log.seek(0)
        lines = self.log.read()[-4000:].decode(errors="replace").split("\n")
        said = [text.strip() for text in lines if text.strip()]
        return f"; it said last: {said[-1]}" if said else ""


QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""vLLM's core in the process that calls it: calls by name reach it, and nothing is pickled."""
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""What `torchrun` tells a rank: an engine in a process of its own belongs to another group."""


def vllm_host(
    config: RolloutConfig, model: PreTrainedModel, stop_ids: frozenset[int], routes: bool,
    ranks: Ranks = SINGLE_PROCESS, progress: Progress = lambda _: None,
) -> Callable[[], Host]:  # fmt: skip
    """What opens the host for the model's device; nothing starts yet. All ranks call it. Errors: as `check_spread`."""
    spread = config.vllm.tensor_parallel
    check_spread(config, ranks.size)
    options = {
        "model": model.name_or_path,
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": config.vllm.dtype or str(model.dtype).removeprefix("torch."),
        "stop_ids": sorted(stop_ids),
        "kv_bytes": int(config.kv_budget_gb * 2**30),
        "routes": routes,
        "tensor_parallel": spread,
        "external": ranks.size > 1 if model.device.type == "cuda" else spread > 1,
        "code_revision": allowed_code(),
    }
    if model.device.type == "cuda":
        return lambda: InProcessHost(options, progress)
    python = find_python(config.vllm.python)
    env = child_environment(torch.get_num_threads())
    if spread > 1:  # the children of `spread` neighbours are a group of their own
        port = ranks.all_gather(free_port)[ranks.rank - ranks.rank % spread]
        place = str(ranks.rank % spread)
        env |= {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": str(spread), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port)}  # fmt: skip
    return lambda: ProcessHost(python, "vllm_backend.py", options, env, config.deadline_s, progress)


def child_environment(threads: int) -> dict[str, str]:
    """The child's variables: they must stand before its interpreter starts."""
    others = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *LAUNCHER)
    ours = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    return ours | QUIET | IN_PROCESS | bound


class InProcessHost:
    """vLLM in this process, sharing the GPU with the trainer by sleep and wake. Not yet run on a GPU."""

    replaceable = False  # what a failed engine leaves on the GPU cannot be told from what the trainer needs

    def __init__(self, options: dict[str, Any], progress: Progress = lambda _: None) -> None:
        os.environ.update(QUIET | IN_PROCESS)
        try:
            from gspo_cli.rollout.vllm.worker.vllm_backend import Backend
        except ImportError as error:
            raise GspoError("engine vllm is not installed", str(error), "pip install 'gspo[vllm]'") from error
        self.backend = Backend(**options)
        self.backend.report = lambda *counts: progress(SamplingProgress(*counts))
        self.facts = self.backend.facts

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """See `Host.ask`."""
        try:
            answer: dict[str, Any] = getattr(self.backend, do)(**request)
        except TimeoutError as error:
            raise HostLost(str(error)) from error
        except ValueError as error:
            raise HostRefused(str(error)) from error
        return answer

    def load(self, weights: PreTrainedModel, version: int) -> int:
        """See `Host.load`: tensors are copied from the trainer's memory one by one."""
        named = named_weights(weights, getattr(torch, str(self.facts["dtype"])))
        self.ask("load", version=version, repack=False, weights=named)
        return sum(1 for _ in weights.named_parameters())

    def close(self) -> None:
        """vLLM frees its memory with the process."""

    give_up = close
