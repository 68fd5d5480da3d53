"""The real vLLM in a process of its own, against the engine that samples from the trainer's model itself.

`pytest -m vllm` runs these with the interpreter that GSPO_VLLM_PYTHON names (docs/vllm.md makes its environment).
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from program import Gspo, ok, strict_lines
from transformers import PreTrainedModel
from vllm_models import PROMPTS, PYTHON, SEEDS, TOLERANCE, gaps, greedy, moved, saved

from gspo_cli.config import ModelConfig, RolloutConfig, TinyModel, VllmConfig
from gspo_cli.errors import GspoError
from gspo_cli.models.load import load_policy
from gspo_cli.rollout.engine import generate_checked
from gspo_cli.rollout.engines import open_engine
from gspo_cli.rollout.vllm.engine import HostedEngine
from gspo_cli.rollout.vllm.host import HostRefused
from gspo_cli.types import Sampling

pytestmark = pytest.mark.vllm
SHAPES = {
    "moe": TinyModel(head_dim=32),
    "moe with untied head": TinyModel(head_dim=32, experts=4, top_k=1),
    "dense": TinyModel(kind="qwen3", head_dim=32),
}


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, its weights far from uniform."""
    shape = request.param
    return saved(SHAPES[shape], tmp_path_factory.mktemp("start"), tied=shape != "moe with untied head")


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(SHAPES["moe"], tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def engine(moe: Path) -> Iterator[HostedEngine]:
    """One engine for the tests that leave its weights as they are."""
    with opened(moe)[0] as engine:
        yield engine


def opened(folder: Path, deadline_s: float = 120.0, **vllm: str) -> tuple[closing[HostedEngine], PreTrainedModel]:
    """The engine, and the trainer's model that it follows."""
    model, tokenizer = load_policy(ModelConfig(path=str(folder)), folder)
    config = RolloutConfig(
        engine="vllm", deadline_s=deadline_s, kv_budget_gb=0.25, vllm=VllmConfig(python=PYTHON, **vllm)
    )
    engine = open_engine(config, model, tokenizer)
    assert isinstance(engine, HostedEngine)
    return closing(engine), model


def test_greedy_equals_the_trainer_through_twenty_syncs(folder: Path) -> None:
    """Same tokens, and log-probabilities within 1e-4, before any sync and after 1, 2 and 20 with changing weights."""
    context, model = opened(folder)
    with context as engine:
        firsts = []
        for version in range(21):
            if version:
                moved(model, seed=version)
                report = engine.sync(model, version)
                assert report is not None and report.version == version and report.absdiff_max <= TOLERANCE
                assert report.tensors == len(list(model.parameters()))
            if version in (0, 1, 2, 20):
                tokens, log_probs = greedy(engine, model, PROMPTS, version)
                print(f"{version} syncs: tokens equal {tokens}, log-probs within {log_probs:.1e}")
                assert tokens and log_probs <= TOLERANCE
                firsts.append(engine.generate(PROMPTS, Sampling(0.0, 24), dict.fromkeys([("p7", 0)], 0))[0].token_ids)
        assert len(set(firsts)) > 1  # the weights did change what is said


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_samples_bear_the_log_probs_they_were_drawn_with(engine: HostedEngine, temperature: float) -> None:
    drawn = generate_checked(engine, PROMPTS, Sampling(temperature, 24), SEEDS, 0)
    largest = max(gaps(engine.weights, PROMPTS, list(drawn.values()), temperature))
    print(f"T = {temperature}: {largest:.1e}")
    assert largest <= TOLERANCE
    assert max(gaps(engine.weights, PROMPTS, list(drawn.values()), 0.8)) > 0.01  # so the temperature is in them


def test_a_sample_depends_on_its_seed_alone(engine: HostedEngine) -> None:
    sampling = Sampling(1.0, 24)
    drawn = {(s.problem_id, s.index): s for s in engine.generate(PROMPTS, sampling, SEEDS)}
    backwards = dict(reversed(SEEDS.items()))
    again = {(s.problem_id, s.index): s for s in engine.generate(PROMPTS[::-1], sampling, backwards)}
    [alone] = engine.generate(PROMPTS[1:2], sampling, {("p7", 2): SEEDS["p7", 2]})
    assert {k: s.token_ids for k, s in again.items()} == {k: s.token_ids for k, s in drawn.items()}
    assert alone.token_ids == drawn["p7", 2].token_ids
    assert len({s.token_ids for s in drawn.values() if s.problem_id == "p7"}) > 1


def test_every_stop_token_ends_a_response_and_belongs_to_it(moe: Path, tmp_path: Path) -> None:
    model, tokenizer = load_policy(ModelConfig(path=str(moe)), moe)
    likely = int(torch.tensor(greedy_ids(model)).mode().values)
    model.generation_config.eos_token_id = [1, likely]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with opened(tmp_path)[0] as engine:
        assert engine.info.stop_ids == tuple(sorted({1, likely}))
        samples = engine.generate(PROMPTS, Sampling(1.0, 64), SEEDS)
    stopped = [s for s in samples if s.finish == "stop"]
    assert any(s.token_ids[-1] == likely for s in stopped)
    assert all(s.token_ids[-1] in (1, likely) and not {1, likely} & set(s.token_ids[:-1]) for s in stopped)
    assert all(len(s.token_ids) == 64 for s in samples if s.finish == "length")


def greedy_ids(model: PreTrainedModel) -> list[int]:
    """What the model says often: its likeliest next token after each of its tokens."""
    ids_BT = torch.arange(3, model.config.vocab_size)[:, None]
    with torch.no_grad():
        return model(ids_BT).logits[:, -1].argmax(-1).tolist()


def test_in_half_precision_the_engine_follows_within_its_own_noise(moe: Path) -> None:
    try:
        context, model = opened(moe, dtype="bfloat16")
        with context as engine:
            assert engine.info.dtype == "bfloat16" and engine.probe is not None
            assert engine.probe.gap(engine.host, model, engine.probe.texts[0]).largest > TOLERANCE
            for version in (1, 2):
                assert engine.sync(moved(model, seed=version), version) is not None
    except GspoError as lost:
        if "SIGILL" not in lost.why:
            raise
        pytest.skip("vLLM's bfloat16 kernels use an instruction that this processor refuses (SIGILL)")


def test_a_request_that_does_not_fit_is_refused_with_the_reason(engine: HostedEngine) -> None:
    sampling = {"temperature": 1.0, "max_tokens": 10**7, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    with pytest.raises(HostRefused, match=r"rollout\.kv_budget_gb"):
        engine.host.ask("generate", prompts=[[4]], requests=[[0, 0]], sampling=sampling, deadline_s=9)
    with pytest.raises(HostRefused, match="0 is greedy"):
        hot = sampling | {"temperature": 1e-3, "max_tokens": 4}
        engine.host.ask("generate", prompts=[[4]], requests=[[0, 0]], sampling=hot, deadline_s=9)


def test_the_commands_take_it(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    """Training, a rollout batch and a benchmark, from the command line to the files."""
    engine = ["--set", "rollout.engine=vllm", "--set", f"rollout.vllm.python={PYTHON}"]
    shape = ["--set", "model.tiny.hidden=32", "--set", "model.tiny.head_dim=32"]
    recipe = [smoke, *shape, "--set", "eval.bench=[]", *engine]
    ok(gspo_here("train", *recipe, "--out", tmp_path, "--name", "study"))
    run = tmp_path / "study" / "gspo-s0"
    lines = [line["metrics"] for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "rollout"]
    assert len(lines) == 2
    for metrics in lines:
        assert metrics["mismatch/sync_absdiff_max"] <= TOLERANCE and metrics["mismatch/floor"] <= TOLERANCE
        assert metrics["mismatch/floor_of_band"] == pytest.approx(metrics["mismatch/floor"] / 3.0005e-4, rel=1e-3)
    assert json.loads((run / "run.json").read_text())["engine"]["versions"]["vllm"].startswith("0.32")
    done = gspo_here("rollout", *recipe, "--out", tmp_path / "batch")
    assert done.code == 0 and list((tmp_path / "batch").glob("*.parquet")), done.err
    done = gspo_here("eval", "benchmarks", run, "--samples", "1", "--json", *engine)
    assert done.code == 0 and json.loads(done.out)["engine"]["name"] == "vllm", done.err
