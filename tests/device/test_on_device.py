"""A whole run on the pretended device: nothing mixes devices, and the host seldom waits.

Once per token in sampling, twice per update, whatever the size of the batch; and a planted fault is seen.
Then which GPU is used, every command that runs a model, and what torch's attention needs on a GPU.
"""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from batch_files import measured, store
from pretend_device import DEVICE, MixedDevices, PretendDevice, Transfer
from program import Gspo, ok, strict_lines
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import AlgoConfig, ModelConfig, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.instruments.batch.report import summary
from gspo_cli.models.attention import attend
from gspo_cli.models.device import pick_device
from gspo_cli.models.fixed import FixedStep
from gspo_cli.models.load import load_policy
from gspo_cli.moe.routers import find_routing
from gspo_cli.rollout.builtin import sampler
from gspo_cli.training.session import Stopwatch
from gspo_cli.training.state.tensors import generator_tensors
from gspo_cli.training.step import metrics
from gspo_cli.training.step.batches import Batching, make_mini_batches, rewards_and_groups
from gspo_cli.training.step.update import Learner, record_old_policy, update
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Sampling, Score

FULL: dict[str, Any] = {"name": "gspo", "replay": "r2", "kl": {"coef": 0.05}, "correction": {"kind": "tis"}}
PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "routes of the engine": {"algo": {"name": "gspo", "replay": "r3"}},
    "critic": {"algo": {"name": "ppo"}},
    "adapters": {"model": {"lora": {"rank": 2}}, "algo": {"name": "gspo", "kl": {"coef": 0.05}}},
    "dynamic sampling": {"algo": {"name": "dapo", "dynamic_sampling": True}},
    "recomputation": {"train": {"recompute": True}},
    "bfloat16": {"model": {"compute": "bfloat16"}, "algo": {"name": "gspo", "kl": {"coef": 0.05}}},
    "evaluation": {"eval": {"bench": ["arithmetic"], "every": 1, "samples": 1, "limit": 2, "max_new_tokens": 3}},
}


def recipe(start: Path, device: str, parts: dict[str, dict[str, Any]], steps: int = 1) -> Recipe:
    tables: dict[str, dict[str, Any]] = {
        "task": {"name": "toy:quiet_letters"}, "model": {"device": device}, "train": {"steps": steps},
    }  # fmt: skip
    for name, values in parts.items():
        tables[name] = tables.get(name, {}) | values
    return toy.recipe(start, **tables)


def rewards(run: Path) -> list[float]:
    """The mean reward of each rollout batch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"]["reward/mean"] for line in lines if line["kind"] == "rollout"]


def test_a_run_with_replay_reference_and_correction_stopped_and_resumed(start: Path, ram: Path) -> None:
    here = toy.train(recipe(start, "cpu", {"algo": FULL}, steps=2), ram / "cpu")
    with PretendDevice() as device:
        run = toy.train(recipe(start, "cuda", {"algo": FULL}), ram / "cuda")
        more = {"train": {"steps": 2}}
        run = toy.train(recipe(start, "cuda", {"algo": FULL}), ram / "cuda", more, allowed=("train.steps",))
    assert rewards(run) == pytest.approx(rewards(here)) and len(rewards(run)) == 2
    assert toy.checkpoints(run)[-1] == 2 and toy.events(run, "start")[-1]["resumed_from"] == 1
    assert not [t for t in device.transfers if t.waits and "record_old_policy" in t.within]
    perf = [line for line in strict_lines(run / "perf.jsonl") if line["kind"] == "rollout"]
    assert [(line["gpu_peak_gb"], line["gpu_peak_frac"]) for line in perf] == [(2.0, 0.75)] * 2


def test_a_phase_begins_and_ends_with_the_device_at_rest() -> None:
    clock = Stopwatch()
    with PretendDevice() as device, clock("update_s"), clock("inner_s"):
        assert [t.what for t in device.transfers] == ["synchronize"] * 2
    assert [t.what for t in device.transfers] == ["synchronize"] * 4 and clock.seconds["update_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_run(name: str, start: Path, ram: Path) -> None:
    with PretendDevice():
        run = toy.train(recipe(start, "cuda", PARTS[name]), ram / "cuda")
    assert len(rewards(run)) == 1 and toy.checkpoints(run)[-1] == 1


@pytest.mark.slow
def test_report_batch(tmp_path: Path) -> None:
    stored = store(tmp_path)
    here = summary(measured(stored, stored.file, against=True))
    with PretendDevice():
        there = summary(measured(stored, stored.file, against=True))
    for key in ("objective", "gradient_norm"):
        assert there["algorithms"]["gspo"][key] == pytest.approx(here["algorithms"]["gspo"][key], rel=1e-3)


def test_the_known_fault_is_seen(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_read", lambda tensors: torch.stack(tensors).tolist() if tensors else [])
    with PretendDevice(), pytest.raises(MixedDevices, match="stack"):
        toy.train(recipe(start, "cuda", {}), ram / "cuda")


@pytest.fixture(scope="module")
def model(start: Path) -> PreTrainedModel:
    """The toy's start model, on the CPU."""
    return load_policy(ModelConfig(path=str(start), device="cpu"), start)[0]


def crossed_in_sampling(
    model: PreTrainedModel, responses: int, tokens: int, routes: bool = False, fixed: bool = False
) -> list[Transfer]:
    """What crosses while responses of full length are sampled."""
    with PretendDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        routing = find_routing(there) if routes else None
        seeds, sampling = [list(range(responses)), list(range(responses))], Sampling(1.0, tokens)
        with device.counting() as crossed:
            step = FixedStep(there) if fixed else None
            sampler.sample(there, [(5, 6, 7), (8, 9)], seeds, sampling, frozenset({-1}), math.inf, routing, step=step)
    return crossed


def waits(crossed: list[Transfer]) -> list[Transfer]:
    """The times the host waits."""
    return [t for t in crossed if t.waits]


@pytest.mark.parametrize(("routes", "fixed"), [(False, False), (True, False), (False, True)])
def test_sampling_waits_once_and_copies_twice_per_token(model: PreTrainedModel, routes: bool, fixed: bool) -> None:
    """To the device goes what a token is drawn with and what it is continued with, also where rows part."""
    # the log-probabilities; the prompts' expert choices, and the responses' for each 64 tokens
    more = 1 + 2 * routes
    for responses, tokens in ((2, 6), (7, 12)):
        crossed = crossed_in_sampling(model, responses, tokens, routes, fixed)
        assert len(waits(crossed)) == tokens + more
        assert len([t for t in crossed if not t.waits and "_decode" in t.within]) == 2 * tokens - 1


def stored_batch(groups: int) -> RolloutBatch:
    """Responses of four tokens whose rewards differ."""
    made = []
    for g in range(groups):
        samples = tuple(Sample(str(g), i, 0, (5 + i, 6, 7, 8), (-1.0,) * 4, "length", 0) for i in range(4))
        scores = tuple(Score(float(i % 2), "") for i in range(4))
        made.append(Group(Problem(str(g), "", ""), Prompt(str(g), (9, 10 + g)), samples, ("",) * 4, scores))
    return RolloutBatch(1, tuple(made), max_new_tokens=4)


def waits_of_update(model: PreTrainedModel, groups: int, budget: int, algo: dict[str, Any]) -> list[Transfer]:
    """The times the host waits from the batch to the logged metrics of its second update."""
    with PretendDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        algorithm = ALGORITHMS[algo["name"]]
        learner = Learner(
            there, torch.optim.AdamW(there.parameters(), fused=True), algorithm, algorithm.Params(),
            AlgoConfig(**algo), 1.0, 1.0, routing=find_routing(there), reference=copy.deepcopy(there),
        )  # fmt: skip
        batch = stored_batch(groups)
        advantages_B = algorithm.advantage(*rewards_and_groups(batch), learner.params)
        with device.counting() as crossed:
            whole_groups = algorithm.WHOLE_GROUPS
            batching = Batching(2, budget, keep_rows_without_advantage=True, whole_groups=whole_groups, packed=True)
            minis = make_mini_batches(batch, advantages_B, batching, DEVICE)
            record_old_policy(learner, minis)
            for i, mini in enumerate(minis):
                update(learner, mini, 1e-3, first=i == 0).result()
    return waits(crossed)


CORRECTED = ({"name": "grpo", "correction": {"kind": "seq_mask"}}, {"name": "ipo", "correction": {"kind": "opsm"}})
PLAIN = [{"name": name} for name in ("gspo", "dppo_kl", "vespo", "aspo", "gepo")]


@pytest.mark.parametrize(
    "algo", [CORRECTED[0], *(pytest.param(a, marks=pytest.mark.slow) for a in (CORRECTED[1], *PLAIN))]
)
def test_an_update_waits_twice_whatever_the_size_of_the_batch(model: PreTrainedModel, algo: dict[str, Any]) -> None:
    for groups, budget in ((2, 1000), (6, 20)):
        places = [t.place.split()[-1] for t in waits_of_update(model, groups, budget, algo)]
        assert places == ["step", "_read"] * 2


@pytest.mark.parametrize(("name", "current"), [("auto", []), ("cuda", []), ("cuda:0", [0]), ("cpu", [])])
def test_a_named_gpu_becomes_the_current_one(name: str, current: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else memory would be read of the first, and pinned for it."""
    found = list[int | None]()
    with PretendDevice(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "set_device", lambda device: found.append(device.index))
        assert pick_device(name).type == ("cpu" if name == "cpu" else "cuda")
    assert found == current


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with PretendDevice(), pytest.raises(GspoError) as refused:
        pick_device("cuda:1")
    assert "invalid device ordinal" in refused.value.why


@pytest.mark.parametrize("used", [False, True])
def test_a_run_on_the_cpu_does_not_start_cuda_for_a_checkpoint(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take memory of the GPU, and the memory shown would be the GPU's."""
    asked = list[int]()

    def state(index: int) -> torch.Tensor:
        asked.append(index)
        return torch.zeros(16, dtype=torch.uint8)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "get_rng_state", state)
    assert {"cuda0", "cuda1"} <= set(generator_tensors()) if used else "cuda0" not in generator_tensors()
    assert asked == ([0, 1] if used else [])


RECIPE = """
extends = "{smoke}"
name = "on-device"
[model]
device = "cuda"
compute = "bfloat16"
float32_matmul = "high"
[cold_start]
steps = 2
[task]
template = "{{question}}"
rewards = [{{ name = "task" }}, {{ name = "length", weight = 0.5, tokens = [1, 6] }}]
[rollout]
prompts = 2
samples = 4
max_new_tokens = 6
stop = ["+"]
[eval]
bench = []
"""


@pytest.mark.slow
def test_commands_that_run_a_model(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    file, study = tmp_path / "on-device.toml", tmp_path / "study"
    file.write_text(RECIPE.format(smoke=smoke))
    with PretendDevice():
        done = ok(gspo_here("train", file, "--algo", "gspo", "--steps", "1", "--seeds", "0", "--out", study))
        run = next(study.rglob("run.json")).parent
        for command in (
            ("eval", "benchmarks", run, "--bench", "arithmetic", "--limit", "2", "--samples", "1"),
            ("rollout", run, "--out", tmp_path / "batch"),
            ("report", "fidelity", file, "--algo", "grpo,gspo", "--updates", "1", "--noise", "0.5", "--seeds", "0",
             "--batches", "1", "--reference", "2", "--out", tmp_path / "fidelity"),
            ("doctor", "--model", next(run.glob("checkpoints/*/model"))),
        ):  # fmt: skip
            done = gspo_here(*command)
            assert done.code == 0, (command, done.err)
    record = json.loads((run / "run.json").read_text())
    assert record["determinism"]["float32_matmul"] == "high"
    (summary,) = run.glob("eval/**/summary.json")
    assert "bfloat16" in summary.read_text()


CUDA = torch.device("cuda")
BAND = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]


def heads(number: int, dtype: torch.dtype, seed: int) -> Tensor:
    """[2, heads, 6, 8]."""
    return torch.randn(2, number, 6, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "mask", "window", "repeated"),
    [
        (torch.float32, None, None, True), (torch.bfloat16, None, None, False),
        (torch.bfloat16, BAND, None, True), (torch.bfloat16, None, 3, True),
    ],
)  # fmt: skip
def test_grouped_heads_are_repeated_for_kernels(
    dtype: torch.dtype, mask: Tensor | None, window: int | None, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flash kernel takes grouped heads, but neither float32 nor a mask; the other takes both, but not those."""
    seen, plain = list[int](), F.scaled_dot_product_attention

    def spied(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(key.shape[1])
        return plain(query, key, *args, **kwargs)

    inputs = [heads(4, dtype, 0), heads(2, dtype, 1), heads(2, dtype, 2)]
    expected = attend(*inputs, mask, None, True, window, None, None)
    monkeypatch.setattr(F, "scaled_dot_product_attention", spied)
    with PretendDevice():
        there = None if mask is None else mask.to(CUDA)
        found = attend(*(x.to(CUDA) for x in inputs), there, None, True, window, None, None)
    assert seen == [4 if repeated else 2]
    torch.testing.assert_close(found, expected)


class Flags(TorchDispatchMode):
    """Which operations run while those without a deterministic kernel fail, and while they warn."""

    def __init__(self) -> None:
        super().__init__()
        self.fail, self.warn = set[str](), set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        (self.warn if warns else self.fail).add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def warn_only() -> Iterator[None]:
    """As on a machine with a GPU."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.usefixtures("warn_only")
def test_attention_alone_runs_without_the_permission_to_only_warn() -> None:
    """With it, torch's kernels for attention's backward pass are not deterministic; without it, `cumsum` fails."""
    with PretendDevice(), Flags() as flags:
        query, key, value = (heads(4, torch.float32, i).to(CUDA).requires_grad_() for i in range(3))
        out = attend(2 * query, key, value, None, None, True, None, None, None)
        out.square().cumsum(-1).sum().backward()
    assert query.grad is not None and torch.is_deterministic_algorithms_warn_only_enabled()
    assert {name for name in flags.fail if "scaled_dot_product" not in name} <= {"empty_like", "detach"}, flags.fail
    assert any(name.endswith("backward") for name in flags.fail) and {"cumsum", "mul"} <= flags.warn
    assert not any("scaled_dot_product" in name for name in flags.warn)
