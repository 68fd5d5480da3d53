"""`gspo report batch --precision`: its numbers against models that were rounded beforehand, and what it concludes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from batch_files import TEMPERATURE, Stored
from program import Gspo, check_refused

from gspo_cli.instruments.batch.data import StoredBatch, read_batch
from gspo_cli.instruments.batch.policy import Policy, load_sampling_policy
from gspo_cli.instruments.batch.precision import measure_precisions, verdict

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def batch(stored: Stored) -> StoredBatch:
    return read_batch(stored.file)


@pytest.fixture(scope="module")
def policy(stored: Stored, batch: StoredBatch) -> Policy:
    return load_sampling_policy(str(stored.start), batch)


@pytest.fixture(scope="module")
def found(policy: Policy, batch: StoredBatch) -> Found:
    return measure_precisions(policy, batch)


def plain(stored: Stored, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Of a model whose weights were rounded: each token's log-probability, the most probable token, and by response."""
    model = copy.deepcopy(stored.start_model)
    for p in model.parameters():
        p.data = p.data.to(dtype)
    scores, best = [], []
    with torch.no_grad():
        for prompt, ids in ((g.prompt.token_ids, s.token_ids) for g in stored.batch.groups for s in g.samples):
            logits_TV = model(torch.tensor([prompt + ids]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            log_probs_TV = torch.log_softmax(logits_TV / TEMPERATURE, -1)
            scores.append(log_probs_TV.gather(1, torch.tensor(ids)[:, None])[:, 0].double())
            best.append(logits_TV.argmax(-1))
    return torch.cat(scores), torch.cat(best), scores


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_precision_is_a_model_of_rounded_weights(stored: Stored, found: Found, name: str) -> None:
    ours, best, by_response = plain(stored, getattr(torch, name))
    exact, exact_best, exact_by_response = plain(stored, torch.float32)
    moved, row = ours - exact, found[name]
    means = torch.stack([(a - b).mean() for a, b in zip(by_response, exact_by_response, strict=True)])
    # padded rows instead of single ones round in another order, and then a token may have other experts
    assert row["float32"]["token_std"] == pytest.approx(float(moved.std()), rel=0.15)
    assert row["float32"]["response_std"] == pytest.approx(float(means.std()), rel=0.15)
    assert row["float32"]["token_outside_frac"] == pytest.approx(
        float(((moved.exp() - 1).abs() > 0.2).double().mean()), abs=0.01
    )
    assert row["best_changed_frac"] == pytest.approx(float((best != exact_best).double().mean()), abs=0.02)


def test_float32_is_the_reference_and_float16_is_finer_than_bfloat16(found: Found) -> None:
    exact = found["float32"]
    assert set(exact["float32"].values()) == {0.0} and exact["best_changed_frac"] == exact["slots_changed_frac"] == 0
    coarse, fine = (found[name]["float32"]["token_std"] for name in ("bfloat16", "float16"))
    assert 0 < 3 * fine < coarse
    assert found["bfloat16"]["slots_changed_frac"] > found["float16"]["slots_changed_frac"] >= 0
    # the stored log-probabilities are the model's plus noise of 0.01 nat (`batch_files`)
    assert exact["engine"]["token_std"] == pytest.approx(0.01, rel=0.15)


def test_held_experts_and_a_float32_head_leave_less(found: Found) -> None:
    for name in ("bfloat16", "float16"):
        whole = found[name]["float32"]["token_std"]
        assert found[f"{name}, float32's experts"]["float32"]["token_std"] < whole
        assert found[f"{name}, float32 head"]["float32"]["token_std"] != whole


def row(engine: float, alone: float) -> dict[str, Any]:
    return {"engine": {"token_std": engine}, "float32": {"token_std": alone}}


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ((1e-6, 0.02), "nearest to float32 (1e-06). That is rounding in float32; bfloat16 alone makes 0.01."),
        ((0.011, 1e-4), "nearest to bfloat16 (0.0001). Precision can explain that: bfloat16 alone makes 0.01."),
        ((0.15, 0.16), "That is 15 times what bfloat16 alone makes (0.01): something else differs"),
    ],
)  # fmt: skip
def test_the_verdict(engine: tuple[float, float], said: str) -> None:
    assert said in verdict({"float32": row(engine[0], 0.0), "bfloat16": row(engine[1], 0.01)})


def test_the_command_prints_and_keeps_it(gspo_here: Gspo, stored: Stored, tmp_path: Path) -> None:
    file = stored.rewrite(tmp_path)
    done = gspo_here("report", "batch", file, "--model", stored.start, "--precision")
    kept = json.loads((tmp_path / "batch-report" / "precision.json").read_text())
    assert done.code == 0 and done.out.endswith(kept["verdict"] + "\n") and "bfloat16, float32's experts" in done.out
    assert not (tmp_path / "batch-report" / "batch.json").exists()


def test_what_it_cannot_be_asked_with(gspo_here: Gspo, stored: Stored) -> None:
    asked = (stored.file, "--model", stored.start, "--precision", "--against", stored.later)
    check_refused(gspo_here("report", "batch", *asked), "--precision with --against")
