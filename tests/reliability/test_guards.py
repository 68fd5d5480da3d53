"""Numbers that are not finite, batches without signal, rewards that fail, disks and memories that are full."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from program import strict_lines
from safetensors import SafetensorError
from safetensors.torch import load_file
from test_exact_resume import cut_after
from torch import Tensor
from torch.amp import GradScaler

from gspo_cli.config import Recipe
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.runlog import fs
from gspo_cli.training import loop, setup
from gspo_cli.training.guards import Guards, is_spike
from gspo_cli.training.state import checkpoint_folder, checkpoints
from gspo_cli.training.step import loss_scale, update
from gspo_cli.training.step.update import Learner
from gspo_cli.types import Score

Update = Callable[..., Any]


def error_of(recipe: Recipe, study: Path, match: str | None = None) -> GspoError:
    """What training ends with."""
    with pytest.raises(GspoError, match=match) as caught:
        toy.train(recipe, study)
    return caught.value


def state(learner: Learner) -> list[Tensor]:
    """Weights and everything the optimizers hold."""
    optimizers = [learner.optimizer] + ([learner.critic.optimizer] if learner.critic else [])
    moments = [value.clone() for o in optimizers for s in o.state.values() for value in s.values()]
    return [p.detach().clone() for p in learner.model.parameters()] + moments


def spoil_gradient(parameter: Tensor, bad: float) -> None:
    """Of the next backward pass."""
    handle = parameter.register_hook(lambda grad: (handle.remove(), torch.full_like(grad, bad))[1])


def in_gradient(learner: Learner, _: pytest.MonkeyPatch, bad: float) -> None:
    spoil_gradient(next(learner.model.parameters()), bad)


def in_log_probs(_: Learner, patch: pytest.MonkeyPatch, bad: float) -> None:
    real = update.token_scores

    def scores(*args: Any) -> Any:
        found = real(*args)
        return found._replace(log_probs_BT=found.log_probs_BT + bad)

    patch.setattr(update, "token_scores", scores)


def in_loss(_: Learner, patch: pytest.MonkeyPatch, bad: float) -> None:
    real = update.objective
    patch.setattr(
        update, "objective", lambda *args: (lambda output, numerator: (output, numerator * bad))(*real(*args))
    )


def in_advantages(_: Learner, patch: pytest.MonkeyPatch, bad: float) -> None:
    real = update.objective

    def objective(learner: Learner, micro: Any, *rest: Any) -> Any:
        micro.advantages = torch.full_like(micro.advantages, bad)
        return real(learner, micro, *rest)

    patch.setattr(update, "objective", objective)


def spoiled(patch: pytest.MonkeyPatch, where: Callable[..., None], bad: float, calls: set[int]) -> list[bool]:
    """Plants a bad number in these updates; says of each whether it left the state as it was."""
    real, unchanged = loop.update, list[bool]()

    def spied(learner: Learner, *args: Any, **kwargs: Any) -> Any:
        if len(unchanged) not in calls:
            unchanged.append(False)
            return real(learner, *args, **kwargs)
        before = state(learner)
        with pytest.MonkeyPatch.context() as inner:
            where(learner, inner, bad)
            done = real(learner, *args, **kwargs)
        unchanged.append(all(torch.equal(a, b) for a, b in zip(before, state(learner), strict=True)))
        return done

    patch.setattr(loop, "update", spied)
    return unchanged


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [in_gradient, in_log_probs, in_loss, in_advantages])
def test_a_non_finite_number_never_updates_and_never_vanishes(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch, where: Callable[..., None], bad: float
) -> None:
    unchanged = spoiled(monkeypatch, where, bad, {2})
    assert error_of(toy.recipe(start), ram / "study").code is ExitCode.GUARD
    assert unchanged == [False, False, True, False]
    run = ram / "study" / "gspo-s0"
    (event,) = toy.events(run, "nonfinite")
    assert (event["step"], event["mini_batch"], len(event["prompts"])) == (2, 0, 2)
    third = [line for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "update"][2]
    assert third["metrics"]["update/applied"] == 0 and {"loss", "grad/norm"} & third["nonfinite"].keys()
    assert toy.events(run, "end")[-1]["exit"] == 4


def test_the_limit_holds_across_a_resume(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy.recipe(start, train={"steps": 4}, guards={"nonfinite_limit": 3}, checkpoint={"every": 1, "keep": 5})
    with pytest.MonkeyPatch.context() as patch:
        spoiled(patch, in_gradient, float("nan"), {0, 3})
        toy.train(recipe, ram / "study")
    run = ram / "study" / "gspo-s0"
    assert len(toy.events(run, "nonfinite")) == 2
    cut_after(run, 2)
    spoiled(monkeypatch, in_gradient, float("nan"), {1})
    assert "3 of at most 3" in error_of(recipe, ram / "study", "not finite").why


def test_a_float16_run_that_overflows_finds_its_scale(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = {"task": {"name": "toy:loud_letters"}, "algo": {"name": "dr_grpo"}, "train": {"steps": 12}}
    recipe = toy.recipe(start, **loud, model={"compute": "float16"}, rollout={"store": 0})
    run = toy.train(recipe, ram / "scaled")
    lines = [line["metrics"] for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "update"]
    skipped = [line for line in lines if line["update/overflow_frac"]]
    assert all(line["update/applied"] == 0 and "grad/norm" not in line for line in skipped)
    assert [event["loss_scale"] for event in toy.events(run, "overflow")] == [x["grad/loss_scale"] for x in skipped]
    assert skipped[0]["grad/loss_scale"] == 2**16 and lines[-1]["update/applied"] == 1
    assert lines[-1]["grad/loss_scale"] < 1  # without scaling the gradient would be infinite
    made = sum(line["update/applied"] for line in lines)
    assert strict_lines(run / "metrics.jsonl")[-1]["metrics"]["compute/updates"] == made < len(lines) - 16
    state = load_file(run / "checkpoints/step-000012/optimizer.safetensors")
    assert max(float(count) for name, count in state.items() if name.endswith("|step")) == made

    monkeypatch.setattr(setup, "loss_scaler", lambda _: GradScaler(enabled=False))
    error_of(recipe, ram / "unscaled", "not finite")


def test_an_overflow_that_no_scale_helps_is_refused(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "LEAST", 2.0**16)
    spoiled(monkeypatch, in_gradient, float("inf"), {0})
    error_of(toy.recipe(start, model={"compute": "float16"}), ram / "study", "not finite")


def test_a_critic_that_is_not_finite_counts_too(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_critic(learner: Learner, _: pytest.MonkeyPatch, bad: float) -> None:
        assert learner.critic is not None
        spoil_gradient(learner.critic.model.head.weight, bad)

    spoiled(monkeypatch, in_critic, float("inf"), {1})
    error_of(toy.recipe(start, algo={"name": "ppo"}), ram / "study", "not finite")


def test_a_state_that_is_not_finite_is_never_saved(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.update

    def spoil(learner: Learner, *args: Any, **kwargs: Any) -> Any:
        done = real(learner, *args, **kwargs)
        next(iter(learner.optimizer.state.values()))["exp_avg_sq"].fill_(float("nan"))
        return done

    monkeypatch.setattr(loop, "update", spoil)
    recipe = toy.recipe(start, train={"steps": 1, "minibatches": 1})
    assert error_of(recipe, ram / "study", "is not finite after rollout batch 1").code is ExitCode.GUARD
    assert toy.checkpoints(ram / "study" / "gspo-s0") == [0]


def test_equal_rewards_change_nothing_and_end_the_run(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Letters, "reward", lambda *_: Score(1.0, ""))
    recipe = toy.recipe(start, train={"steps": 20}, guards={"no_signal_batches": 3}, checkpoint={"every": 1, "keep": 9})
    assert error_of(recipe, ram / "study", "3 rollout batches in a row gave no update").code is ExitCode.GUARD
    run = ram / "study" / "gspo-s0"
    weights = [(run / "checkpoints" / f"step-{k:06d}/model/model.safetensors").read_bytes() for k in (0, 2)]
    assert weights[0] == weights[1]
    assert [e["in_a_row"] for e in toy.events(run, "no_signal")] == [1, 2, 3]
    assert all(not line["nonfinite"] for line in strict_lines(run / "metrics.jsonl"))


def test_all_truncated_and_masked_is_no_update(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, rollout={"max_new_tokens": 1}, algo={"name": "gspo", "truncation": "mask"})
    run = toy.train(recipe, ram / "study")
    lines = strict_lines(run / "metrics.jsonl")
    truncated = [line["metrics"]["length/truncated_frac"] for line in lines if line["kind"] == "rollout"]
    updates = [line["metrics"]["update/applied"] for line in lines if line["kind"] == "update"]
    assert all(not line["nonfinite"] for line in lines)
    assert updates.count(0) >= sum(share == 1 for share in truncated)


def test_an_infinite_reward_ends_the_run_by_name(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Letters, "reward", lambda *_: Score(float("inf"), "odd"))
    error_of(toy.recipe(start), ram / "infinite", "the reward of task Letters gave inf")


@pytest.mark.parametrize("value", [None, float("nan"), "raises"])
def test_a_reward_that_fails_is_left_out_and_counted(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    real, calls = toy.Letters.reward, list[int]()

    def reward(self: toy.Letters, problem: Any, text: str) -> Score:
        calls.append(1)
        if len(calls) % 8 != 3:
            return real(self, problem, text)
        if value == "raises":
            raise RuntimeError("the grader broke")
        return Score(value, "odd")

    monkeypatch.setattr(toy.Letters, "reward", reward)
    run = toy.train(toy.recipe(start, guards={"unscored_frac": 0.2}), ram / "some")
    first = strict_lines(run / "metrics.jsonl")[0]
    assert first["counts"]["reward/mean"] == 7 and not first["nonfinite"]
    error = error_of(toy.recipe(start), ram / "more", "1 of 8 responses of rollout batch 1 could not be scored")
    assert error.code is ExitCode.ENGINE
    assert value != "raises" or "the grader broke" in error.why


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), SafetensorError("I/O error: File too large")]
)
def test_a_full_disk_lets_training_go_on_and_is_told_at_the_end(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, calls = checkpoints.save_file, list[int]()

    def full(*args: Any) -> None:
        calls.append(1)
        if len(calls) > 2:  # two files a checkpoint: the first one is saved
            raise error
        real(*args)

    monkeypatch.setattr(checkpoints, "save_file", full)
    assert error_of(toy.recipe(start), ram / "study").code is ExitCode.STORAGE
    run = ram / "study" / "gspo-s0"
    assert [e["step"] for e in toy.events(run, "checkpoint_failed")] == [1, 2]
    assert strict_lines(run / "metrics.jsonl")[-1]["step"] == 2
    assert toy.checkpoints(run) == [0] and not list((run / "checkpoints").glob(".*"))
    monkeypatch.undo()
    toy.train(toy.recipe(start), ram / "study")
    assert toy.checkpoints(run) == [1, 2]


def test_three_missed_saves_end_the_run(start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checkpoint_folder, "require_room", lambda _: (_ for _ in ()).throw(OSError(errno.EDQUOT, "quota"))
    )
    recipe = toy.recipe(start, train={"steps": 9})
    assert error_of(recipe, ram / "study", "3 checkpoints of").code is ExitCode.STORAGE
    assert strict_lines(ram / "study" / "gspo-s0" / "metrics.jsonl")[-1]["step"] == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_log_line_that_cannot_be_written_ends_the_run_at_once(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = fs.append_lines

    def full(path: Path, lines: list[str]) -> int:
        if path.name == "metrics.jsonl":
            raise fs.storage_error(path, OSError(number, "full"))
        return real(path, lines)

    monkeypatch.setattr("gspo_cli.runlog.log.append_lines", full)
    assert error_of(toy.recipe(start), ram / "study").code is ExitCode.STORAGE


@pytest.mark.parametrize(
    ("error", "known"),
    [(torch.OutOfMemoryError("CUDA out of memory"), True), (MemoryError(), True),
     (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True), (RuntimeError("other"), False)],
)  # fmt: skip
def test_exhausted_memory_names_the_setting(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, known: bool
) -> None:
    def out(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "update", out)
    with pytest.raises(GspoError if known else RuntimeError) as caught:
        toy.train(toy.recipe(start), ram / "study")
    if isinstance(caught.value, GspoError):
        assert "train.micro_batch_tokens" in caught.value.hint


def test_a_spike_is_seen_against_the_last_norms() -> None:
    guards = Guards()
    for norm in range(20):
        assert not is_spike(guards.norms, 1e9, 6.0)
        guards.norms.append(1.0 + 0.01 * norm)
    assert is_spike(guards.norms, 1.6, 6.0) and not is_spike(guards.norms, 1.3, 6.0)
