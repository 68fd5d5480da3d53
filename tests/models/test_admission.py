"""Admission: what is right is used, what is wrong is seen, and a slower path or a refusal takes its place."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_walk import build, kinds, walk
from program import Gspo, ok
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from gspo_cli.cli.doctor import _check_model
from gspo_cli.errors import GspoError
from gspo_cli.models import admission, attention, decoding, trunk
from gspo_cli.models.admission import admit, position_limit
from gspo_cli.models.log_probs import token_scores

LIMIT = 1e-4
FAST = ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "mamba"]
NAMED = ["gemma2", "gemma3_text", "mistral", "phi3", "granite", "granitemoe", "cohere2", "olmo2", "olmo3", "qwen2_moe",
         "deepseek_v3", "gpt_neox", "gpt2", "qwen3_next", "gpt_oss", "lfm2", "opt"]  # fmt: skip
"""Families that must be right, on whatever path."""


@pytest.mark.parametrize("kind", FAST)
def test_a_family_is_right_on_every_path(kind: str) -> None:
    row = walk(kind)
    assert row.paths is not None, row.refused
    assert max(row.nats.values()) < LIMIT, row


@pytest.mark.slow
def test_every_family_is_right_or_refused() -> None:
    rows = {kind: walk(kind) for kind in kinds()}
    accepted = {kind: row for kind, row in rows.items() if row.paths is not None}
    assert len(rows) >= 100 and len(accepted) >= 90
    assert {kind: row.nats for kind, row in accepted.items() if max(row.nats.values()) >= LIMIT} == {}
    assert [kind for kind in NAMED if kind not in accepted] == []
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    said = {kind: line[2].strip() for line in lines[1:] for kind in line[-1].split(", ")}
    assert {kind: row.experts for kind, row in rows.items() if said.get(kind) != row.experts} == {}


def test_the_trial_leaves_the_model_as_it_was() -> None:
    model = build("gemma3_text")
    before = copy.deepcopy(model.state_dict())
    config = {k: v for k, v in model.config.to_dict().items() if "attn" not in k}
    windows = [layer.self_attn.sliding_window for layer in model.model.layers]
    admit(model, "it")
    assert {k: v for k, v in model.config.to_dict().items() if "attn" not in k} == config
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == windows
    assert len(model.model.layers) == 4 and before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("kind", "dtype"), [("bert", torch.float32), ("xlm", torch.bfloat16)])
def test_an_encoder_that_looks_ahead_is_refused_by_name(kind: str, dtype: torch.dtype) -> None:
    with pytest.raises(GspoError, match=r"(?s)some-encoder: its log-prob.*plain forward pass"):
        admit(build(kind).to(dtype), "some-encoder")


def drop_head_bias(patch: pytest.MonkeyPatch, model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.bias.normal_()
    patch.setattr(admission, "head_logits", lambda _, hidden: torch.nn.functional.linear(hidden, head.weight))


def ignore_window(patch: pytest.MonkeyPatch, _: PreTrainedModel) -> None:
    real = attention.attend
    patch.setattr(attention, "attend", lambda *args: real(*args[:6], None, *args[7:]))
    patch.setattr(attention, "attention_mask", lambda *_, **__: None)


def one_mask_for_all_layers(patch: pytest.MonkeyPatch, _: PreTrainedModel) -> None:
    real = attention.attend
    patch.setattr(attention, "attend", lambda *args: real(*args[:6], 6, *args[7:]))


def wrong_scale(patch: pytest.MonkeyPatch, _: PreTrainedModel) -> None:
    real = attention.attend
    patch.setattr(attention, "attend", lambda q, k, v, m, scale, *rest: real(q, k, v, m, 0.9 * (scale or 0.35), *rest))


def positions_off_by_one(patch: pytest.MonkeyPatch, _: PreTrainedModel) -> None:
    real = decoding.CachedRows._forward

    def shifted(self: Any, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        return real(self, ids, mask, positions + (ids.shape[1] == 1))

    patch.setattr(decoding.CachedRows, "_forward", shifted)


def dropout_on(patch: pytest.MonkeyPatch, _: PreTrainedModel) -> None:
    real = trunk.last_hidden
    patch.setattr(admission, "last_hidden", lambda *args: torch.nn.functional.dropout(real(*args), 0.1, training=True))


Break = Callable[[pytest.MonkeyPatch, PreTrainedModel], None]


@pytest.mark.parametrize(
    ("kind", "fault", "spared"),
    [
        ("phi", drop_head_bias, None), ("mistral", ignore_window, None), ("gemma2", one_mask_for_all_layers, None),
        ("llama", wrong_scale, "eager"), ("llama", positions_off_by_one, "own"), ("llama", dropout_on, None),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, kind: str, fault: Break, spared: str | None) -> None:
    """`spared`: the simpler path that the fault leaves right; None where all are wrong or another path may be."""
    model = build(kind)
    healthy = copy.deepcopy(model)
    fault(monkeypatch, model)
    try:
        paths = admit(model, kind)
    except GspoError:
        return
    monkeypatch.undo()
    fast = admit(healthy, kind)
    assert (paths.attention, paths.packed, paths.cache) != (fast.attention, fast.packed, fast.cache)
    assert spared is None or spared in (paths.attention, paths.cache)


def with_vocabulary(kind: str, size: int) -> PreTrainedModel:
    """One whose head is longer than the trial's."""
    model = build(kind)
    model.resize_token_embeddings(size)
    return model


def test_the_head_of_a_large_vocabulary_is_short_in_the_trial_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_vocabulary("phi", 2 * admission.VOCABULARY)
    head, real = model.get_output_embeddings(), admission.head_logits
    whole, sizes = dict(head.named_parameters()), set()

    def watched(model: PreTrainedModel, hidden: Tensor) -> Tensor:
        logits = real(model, hidden)
        sizes.add(logits.shape[-1])
        return logits

    monkeypatch.setattr(admission, "head_logits", watched)
    admit(model, "it")
    assert sizes == {admission.VOCABULARY}
    assert all(parameter is whole[name] for name, parameter in head.named_parameters())
    drop_head_bias(monkeypatch, model)
    with pytest.raises(GspoError, match="log-probabilities"):
        admit(model, "it")
    assert all(parameter is whole[name] for name, parameter in head.named_parameters())


@pytest.mark.parametrize("kind", ["gemma2", "qwen2_moe", "gpt2", "opt"])
def test_half_precision_takes_the_paths_of_float32(kind: str) -> None:
    model = with_vocabulary(kind, 2 * admission.VOCABULARY)
    half = copy.deepcopy(model).bfloat16()
    before = dict(half.named_parameters())
    exact, found = admit(model, "it"), admit(half, "it")
    assert (found.attention, found.packed, found.cache) == (exact.attention, exact.packed, exact.cache)
    assert found.nats < LIMIT and found.rounding > 0 and exact.rounding == 0
    assert all(parameter is before[name] for name, parameter in half.named_parameters())


def test_a_fault_below_the_rounding_of_half_precision_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_scale(monkeypatch, build("llama"))
    assert admit(build("llama").bfloat16(), "it").attention == "eager"


def test_functional_dropout_stays_off_under_recompute() -> None:
    model = build("opt")
    model.model.decoder.dropout = 0.1
    for layer in model.model.decoder.layers:
        layer.dropout = 0.1
    admit(model, "it")
    ids_BT = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(3))
    mask_BT = torch.arange(9)[None] > torch.zeros(2, 1)
    plain = token_scores(model, ids_BT, mask_BT, 1.0).log_probs_BT
    trunk.enable_recompute(model)
    for _ in range(2):
        torch.testing.assert_close(token_scores(model, ids_BT, mask_BT, 1.0).log_probs_BT, plain, rtol=0, atol=1e-6)


def test_limits_of_positions() -> None:
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}
    for kind, changes, limit in (
        ("llama", {"max_position_embeddings": 128}, 128),
        ("llama", {"max_position_embeddings": 128, "rope_parameters": dynamic}, 32),  # frequencies depend on length
        ("mpt", {"max_seq_len": 128}, 128),
        ("deepseek_v32", {"index_topk": 20}, 20),
    ):
        assert position_limit(AutoConfig.for_model(kind, **changes)) == limit


@pytest.mark.slow
def test_paths_are_recorded_and_rows_beyond_the_positions_refused(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    done = ok(gspo_here("train", smoke, "--out", tmp_path, "--name", "s", "--steps", "1"))
    assert "model: this tool's attention, training on packed rows, sampling on a shared cache" in done.err
    record = json.loads(next(tmp_path.glob("s/*/run.json")).read_text())
    assert record["paths"]["packed"] and record["paths"]["nats"] < LIMIT and record["problems_left_out"] == 0
    check = _check_model(record["start_model"])
    assert check.verdict == "ok" and "packed rows" in check.found and "up to 4096 tokens" in check.found

    data = tmp_path / "long.jsonl"
    rows = [{"question": "1+2+3=", "answer": "6"}] * 40 + [{"question": "1+" * 3000 + "1=", "answer": "3001"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ["--model", record["start_model"], "--set", "task.name=math", "--set", f"task.path={data}", "--set",
            "eval.bench=[]", "--set", 'task.columns={prompt="question",answer="answer"}', "--set", "rollout.samples=4",
            "--out", tmp_path, "--steps", "1"]  # fmt: skip
    refused = gspo_here("train", smoke, *keys, "--name", "refused")
    assert refused.code == 2 and "too long" in refused.err and "4096 positions" in refused.err
    dropped = ok(gspo_here("train", smoke, *keys, "--name", "dropped", "--set", "task.too_long=drop"))
    assert "1 problems are left out" in dropped.err
