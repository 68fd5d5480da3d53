"""The examples of docs/other-trainers.md: in TRL against TRL's own loss, in verl's place against verl's formula.

B = responses, T = token positions
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from pages import ROOT, blocks, modules
from torch import Tensor

from gspo_cli.algorithms import gspo, loss_from_tensors
from gspo_cli.runlog.import_logs import CALLBACK, translate_metrics
from gspo_cli.runlog.schema import METRICS

EXAMPLES = modules(ROOT / "docs" / "other-trainers.md")


def test_the_audited_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gspo_here: Any) -> None:
    page = ROOT / "docs" / "other-trainers.md"
    (script,) = (block.text for block in blocks(page, "sh") if block.text.startswith("# run_gspo.sh\n"))
    (shown,) = (block.text for block in blocks(page, "text") if block.text.startswith("run_gspo.sh: "))
    (tmp_path / "run_gspo.sh").write_text(script)
    monkeypatch.chdir(tmp_path)
    done = gspo_here("audit", "run_gspo.sh")
    assert done.code == 3
    assert shown.split() == done.out.split()[: len(shown.split())]


def run_with_trl(script: str, example: str, folder: Path) -> dict[str, Any]:
    """What a script beside this file prints, run where TRL is installed, on an example of the page."""
    python = os.environ.get("GSPO_TRL_PYTHON") or (sys.executable if importlib.util.find_spec("trl") else None)
    if python is None:
        pytest.skip("TRL is not installed; GSPO_TRL_PYTHON names an interpreter that has it")
    (folder / example).write_text(EXAMPLES[example])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [python, Path(__file__).with_name(script), folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_callback_in_trl(tmp_path: Path) -> None:
    found = run_with_trl("trl_callback.py", "gspo_callback.py", tmp_path)
    for name in ("grpo", "gspo"):
        one = found[name]
        assert {key: one["added"][key] for key in one["expected"]} == pytest.approx(one["expected"], rel=1e-4), name
        assert one["loss"][0] == one["loss"][1]
        assert 0.2 < one["expected"]["update/skipped_rows_frac"] < 0.5
        share = one["expected"]["clip/seq_frac" if name == "gspo" else "clip/token_frac"]
        assert 0.05 < share < 0.95
    # without a reward nothing has an advantage, and nothing is clipped
    assert found["log"]["update/skipped_rows_frac"] == 1 and found["log"]["clip/seq_frac"] == 0
    lines = translate_metrics("trl", found["log"])
    assert lines["step"]["clip/seq_frac"] == 0 and lines["rollout"]["reward/mean"] == 0


@pytest.mark.slow
def test_in_trl(tmp_path: Path) -> None:
    found = run_with_trl("trl_example.py", "gspo_in_trl.py", tmp_path)
    assert set(found) == {"grpo", "gspo"}
    for name, one in found.items():
        assert one["loss"][0] == pytest.approx(one["loss"][1], abs=1e-6), name
        assert one["gradient"] < 1e-5, name
        assert 0.05 < one["clipped"] < 0.95, name


def test_the_names_of_the_callback_are_those_of_a_step() -> None:
    for prefix in CALLBACK:
        assert any(name.startswith(prefix) and "step" in entry.lines for name, entry in METRICS.items()), prefix
    found = translate_metrics("trl", {"clip/seq_frac": 0.1, "clip_ratio/region_mean": 0.2, "entropy": 1.0})
    assert found == {"step": {"clip/seq_frac": 0.1}, "rollout": {"trl/clip_ratio/region_mean": 0.2, "trl/entropy": 1.0}}


@pytest.fixture
def verl_loss(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """What the example registers, with a registry in verl's place."""
    registry: dict[str, Any] = {}

    def register_policy_loss(name: str) -> Callable[[Any], Any]:
        return lambda function: registry.setdefault(name, function)

    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.core_algos"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(
        sys.modules["verl.trainer.ppo.core_algos"], "register_policy_loss", register_policy_loss, raising=False
    )
    exec(compile(EXAMPLES["gspo_in_verl.py"], "gspo_in_verl.py", "exec"), {})
    return registry["gspo_cli"]


def batch(num: int = 8, length: int = 6) -> dict[str, Tensor]:
    """A mini-batch as verl lays it out: masks as integers, whatever in the padding, one advantage a response."""
    draw = torch.Generator().manual_seed(3)
    lengths_B = torch.randint(1, length + 1, (num,), generator=draw)
    mask_BT = torch.arange(length) < lengths_B[:, None]
    old_BT = -torch.rand(num, length, generator=draw).double() - 0.5
    now_BT = old_BT + 1e-3 * torch.randn(num, length, generator=draw).double()
    now_BT[~mask_BT] = float("nan")
    advantages_BT = torch.randn(num, 1, generator=draw).double().expand(num, length)
    return {"old_log_prob": old_BT, "log_prob": now_BT, "advantages": advantages_BT, "response_mask": mask_BT.long()}


def of_rows(tensors: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """A micro-batch."""
    return {name: tensor[rows] for name, tensor in tensors.items()}


def expected(tensors: dict[str, Tensor]) -> float:
    """-1/N sum_i min(s_i A_i, clip(s_i) A_i), a response at a time."""
    terms, mask_BT = [], tensors["response_mask"].bool()
    for now_T, old_T, advantage, keep_T in zip(
        tensors["log_prob"], tensors["old_log_prob"], tensors["advantages"][:, 0], mask_BT, strict=True
    ):
        # the example computes in single precision, as verl stores log-probabilities
        s = float((now_T[keep_T].float() - old_T[keep_T].float()).mean().exp())
        a = float(advantage)
        terms.append(min(s * a, min(max(s, 1 - 3e-4), 1 + 4e-4) * a))
    return -sum(terms) / len(terms)


def test_in_verl_the_loss_is_gspo(verl_loss: Callable[..., tuple[Tensor, dict[str, Any]]]) -> None:
    tensors = batch()
    log_prob = tensors["log_prob"].clone().requires_grad_()
    loss, metrics = verl_loss(**tensors | {"log_prob": log_prob}, loss_agg_mode="token-mean", config=None)
    assert float(loss.detach()) == pytest.approx(expected(tensors), abs=1e-6)
    assert set(metrics) == {"actor/pg_clipfrac", "actor/ppo_kl"}
    assert 0 < metrics["actor/pg_clipfrac"] < 1 and all(isinstance(v, float) for v in metrics.values())

    loss.backward()
    mask_BT = tensors["response_mask"].bool()
    plain = loss_from_tensors(
        gspo, tensors["log_prob"].float(), tensors["old_log_prob"].float(), tensors["advantages"][:, 0], mask_BT,
        gspo.Params(),
    )  # fmt: skip
    assert plain.clipped_BT is not None
    assert metrics["actor/pg_clipfrac"] == pytest.approx(float((plain.clipped_BT & mask_BT).sum() / mask_BT.sum()))
    assert log_prob.grad is not None
    torch.testing.assert_close(log_prob.grad, -(plain.gradient_weight_BT / plain.denominator).double())


def test_in_verl_the_cut_changes_nothing(verl_loss: Callable[..., tuple[Tensor, dict[str, Any]]]) -> None:
    tensors = batch()
    whole = float(verl_loss(**tensors)[0])
    config = SimpleNamespace(global_batch_info={"dp_size": 2, "batch_num_tokens": 99, "global_batch_size": 8})
    uneven = [of_rows(tensors, slice(0, 3)), of_rows(tensors, slice(3, 8))]
    on_two_workers = [float(verl_loss(**part, config=config)[0]) for part in uneven]
    assert sum(on_two_workers) / 2 == pytest.approx(whole, rel=1e-6)
