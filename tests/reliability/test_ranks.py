"""Several processes train one run as one process does, save it as one, and stop together."""

import json
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from safetensors.torch import load_file

from gspo_cli.config import Recipe
from gspo_cli.distributed import SINGLE_PROCESS, Ranks, interleave, join, leave
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmarks.embedded import TaskGrader
from gspo_cli.training import run as training
from gspo_cli.training.state.shards import load_pieces
from gspo_cli.training.step.metrics import all_rows

QUIET = {"task": {"name": "toy:quiet_letters"}}
FEW = {
    "train": {"steps": 3, "minibatches": 2, "lr": 0.002, "warmup": 1, "micro_batch_tokens": 9},
    "checkpoint": {"every": 1, "keep": 9},
}
PPO = {"name": "ppo", "critic_lr": 0.002}
LORA = {"lora": {"rank": 2, "alpha": 8, "experts": True}}
NOISE = ("mismatch/", "kl/", "loss", "moe/slot_churn_weighted", "weight/within", "ratio/", "value/explained_var")
"""Differences of nearly equal numbers: they are compared in absolute terms."""


ABORTED = -signal.SIGABRT & 0xFF


def in_ranks(size: int, work: Callable[[Ranks], object], folder: Path, machines: int = 1) -> list[int]:
    """Exit codes of the work done by forks that know of each other; what they say goes to `folder/said-RANK`.

    Repeated once, and loudly, where glibc aborted one of them ("double free or corruption"): seen once in some 400
    launches of forks here, never in 180 made to provoke it, so its cause is not known.
    """
    before = folder.with_name(f"{folder.name}-before")
    shutil.copytree(folder, before)
    codes = fork_ranks(size, work, folder, machines)
    if ABORTED in codes:
        said = "\n".join((folder / f"said-{rank}").read_text() for rank in range(size))
        sys.__stderr__.write(f"\nTRIED AGAIN: a rank was aborted, {codes}\n{said}\n")  # type: ignore[union-attr]
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        codes = fork_ranks(size, work, folder, machines)
    shutil.rmtree(before)
    return codes


def fork_ranks(
    size: int, work: Callable[[Ranks], object], folder: Path, machines: int = 1, deadline_s: float = 60
) -> list[int]:
    """One try of `in_ranks`. `machines` = on how many they believe to be."""
    local = size // machines
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank % local), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(local),
            MASTER_ADDR="localhost", MASTER_PORT=str(port),
        )  # fmt: skip
        ranks = join(timeout_s=deadline_s)
        try:
            work(ranks)
        finally:
            leave(ranks)

    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os._exit(toy.in_child(lambda rank=rank: run(rank), folder / f"said-{rank}") & 0xFF)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def trained(recipe: Any, study: Path, size: int, machines: int = 1) -> Path:
    """The run's folder after a training by that many ranks."""
    if size == 1:
        return toy.train(recipe, study)
    study.mkdir(exist_ok=True)
    codes = in_ranks(size, lambda ranks: toy.train(recipe, study, ranks=ranks), study, machines)
    assert codes == [0] * size, "\n".join((study / f"said-{rank}").read_text() for rank in range(size))
    return study / f"{recipe.algo.name}-s0"


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the last checkpoint, with the critic and all moments."""
    folder = sorted((run / "checkpoints").glob("step-*"))[-1]
    return saved_tensors(folder)


def saved_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Whole, however many ranks saved them."""
    files = (checkpoint / "model").glob("*.safetensors")
    found = [(name, tensor) for file in files for name, tensor in load_file(file).items()]
    for kind in ("optimizer", "critic") if list(checkpoint.glob("critic*")) else ("optimizer",):
        for name, pieces in load_pieces(checkpoint, kind).items():
            parts = [saved[...] for _, saved in pieces]
            found.append((f"{kind} {name}", torch.cat(parts) if parts[0].ndim else parts[0]))
    assert len(dict(found)) == len(found)
    return dict(found)


def assert_equal(one: Path, many: Path) -> None:
    """Equal counts, and equal numbers as far as another order of sums allows."""
    logs = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, many)]
    for a, b in zip(*logs, strict=True):
        assert a["counts"] == b["counts"] and a["metrics"].keys() == b["metrics"].keys()
        for name, value in a["metrics"].items():
            other = b["metrics"][name]
            if name != "compute/flops" and value != other:  # a prompt shared by ranks is computed on each
                close = 1e-3 if name.startswith(NOISE) else 1e-6
                assert math.isclose(value, other, rel_tol=2e-3, abs_tol=close), (name, value, other)
    ours, theirs = weights(one), weights(many)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "algo", "model"),
    [
        (2, {"name": "gspo"}, {}),
        pytest.param(4, {"name": "gspo"}, {}, marks=pytest.mark.slow),
        pytest.param(2, {"name": "grpo", "replay": "r2", "kl": {"coef": 0.1}}, {}, marks=pytest.mark.slow),
        pytest.param(3, {"name": "sapo", "dynamic_sampling": True}, {}, marks=pytest.mark.slow),
        pytest.param(2, PPO, {}, marks=pytest.mark.slow),
        pytest.param(3, PPO | {"kl": {"coef": 0.1}}, {}, marks=pytest.mark.slow),
        pytest.param(2, {"name": "gspo", "kl": {"coef": 0.1}}, LORA, marks=pytest.mark.slow),
        pytest.param(3, PPO, LORA, marks=pytest.mark.slow),
    ],
)
def test_batches_equal_those_of_one_process(
    start: Path, ram: Path, size: int, algo: dict[str, Any], model: dict[str, Any]
) -> None:
    steps = 10 if size == 4 else 5
    plain = {"rollout": {"store": 0}, "checkpoint": {"every": 0}}  # after the last batch only
    recipe = toy.recipe(start, **QUIET, **plain, algo=algo, model=model, train=FEW["train"] | {"steps": steps})
    assert_equal(trained(recipe, ram / "one", 1), trained(recipe, ram / "many", size))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "model", "machines"), [({"name": "gspo", "kl": {"coef": 0.1}}, {}, 2), (PPO, LORA, 2), (PPO, {}, 4)]
)
def test_weights_divided_within_machines_train_as_one_process(
    start: Path, ram: Path, algo: dict[str, Any], model: dict[str, Any], machines: int
) -> None:
    """Two machines of two ranks, or four of one: rows are held once a machine."""
    recipe = toy.recipe(start, **QUIET, algo=algo, model=model, train=FEW["train"] | {"steps": 6})
    many = recipe.model_copy(update={"train": recipe.train.model_copy(update={"divide": "machine"})})
    study, shapes = ram / "many", ram / "shapes"
    study.mkdir()
    shapes.mkdir()

    def work(ranks: Ranks) -> None:
        from gspo_cli.training import loop

        real = loop.train

        def train(session: Any, checkpoints: Any) -> None:
            weight = next(session.learner.model.parameters())
            found = [list(weight.device_mesh.shape), str(weight.placements), list(weight.to_local().shape)]
            (shapes / str(ranks.rank)).write_text(json.dumps([*found, list(weight.shape)]))
            real(session, checkpoints)

        training.train = train  # type: ignore[assignment]
        toy.train(many, study, ranks=ranks)

    assert in_ranks(4, work, study, machines) == [0] * 4, (study / "said-0").read_text()
    for rank in range(4):
        mesh, placements, held, whole = json.loads((shapes / str(rank)).read_text())
        assert mesh == [machines, 4 // machines] and placements == "(Replicate(), Shard(dim=0))"
        assert abs(held[0] - whole[0] * machines / 4) < 1
    assert_equal(trained(recipe, ram / "one", 1), study / f"{algo['name']}-s0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "algo", "model"),
    [
        (1, {"name": "gspo"}, {}),
        pytest.param(4, {"name": "gspo"}, {}, marks=pytest.mark.slow),
        pytest.param(3, PPO, {}, marks=pytest.mark.slow),
        (1, PPO, LORA),
        pytest.param(4, PPO, LORA, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_two_ranks_goes_on_with_another_number(
    start: Path, ram: Path, after: int, algo: dict[str, Any], model: dict[str, Any]
) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW, algo=algo, model=model)
    whole = trained(recipe, ram / "whole", 1)
    study = ram / "study"
    study.mkdir()

    def stopped(ranks: Ranks) -> None:
        from gspo_cli.training import loop

        real = loop.train_batch

        def train_batch(session: Any, step: int) -> Any:
            while step == 2:  # until the checkpoint has been written, beside this thread
                if (session.log.folder / "checkpoints" / "step-000001").exists():
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.01)
            return real(session, step)

        loop.train_batch = train_batch
        toy.train(recipe, study, ranks=ranks)

    assert 0 not in in_ranks(2, stopped, study)
    run = trained(recipe, study, after)
    assert [e["resumed_from"] for e in toy.events(run, "start") if "resumed_from" in e] == [1]
    shares = [path.name for path in (run / "checkpoints" / "step-000001").glob("*-of-00002.safetensors")]
    assert len(shares) == (4 if algo is PPO else 2)
    assert_equal(whole, run)


@pytest.mark.parametrize(
    "model",
    [pytest.param({"compute": "bfloat16"}, marks=pytest.mark.slow), {"compute": "float16", "float32_head": True}],
)
def test_half_passes_train_weights_in_float32(start: Path, ram: Path, model: dict[str, Any]) -> None:
    recipe = toy.recipe(start, **QUIET, model=model, train=FEW["train"] | {"steps": 2})
    run = trained(recipe, ram / "many", 2)
    if "float32_head" in model:  # all ranks skip the steps that one process skips
        alone = toy.events(trained(recipe, ram / "one", 1), "overflow")
        scales, wanted = ([(e["step"], e["loss_scale"]) for e in x] for x in (toy.events(run, "overflow"), alone))
        assert scales == wanted and wanted
    lines = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["mismatch/token_floor"] < 0.05  # the engine samples in half precision too
    assert any(line.get("update/applied") for line in lines)
    assert {t.dtype for t in weights(run).values()} == {torch.float32}


@pytest.mark.reliability
def test_a_value_that_is_not_finite_on_one_rank_stops_all_of_them(start: Path, ram: Path) -> None:
    def work(ranks: Ranks) -> None:
        from gspo_cli.training.step import update

        real = update.objective

        def objective(*args: Any) -> Any:
            output, numerator = real(*args)
            return output, numerator * (float("nan") if ranks.rank == 1 else 1.0)

        update.objective = objective
        toy.train(toy.recipe(start, **QUIET, **FEW), ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.GUARD] * 2
    (event,) = toy.events(ram / "gspo-s0", "nonfinite")
    assert (event["step"], event["mini_batch"]) == (1, 0)
    states = [torch.isfinite(t).all() for t in weights(ram / "gspo-s0").values()]
    assert all(states)


def with_grace(start: Path, grace_s: float | None) -> Recipe:
    return toy.recipe(start, **QUIET, **FEW | {"checkpoint": FEW["checkpoint"] | {"grace_s": grace_s}})


@pytest.fixture(scope="module")
def uninterrupted(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[float | None], Path]:
    """Trains with two ranks that get no signal, once for each grace."""
    return cache(lambda grace_s: trained(with_grace(start, grace_s), tmp_path_factory.mktemp("whole"), 2))


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("owner", "name", "call", "grace_s", "done"),
    [
        pytest.param("loop", "train_batch", 2, None, 1, marks=pytest.mark.slow),  # sampling is abandoned
        pytest.param("rollout_queue", "collect", 2, None, 1, marks=pytest.mark.slow),
        ("loop", "update", 3, None, 2),  # the updates are finished
        # unless there is no time: before the first one the batch is undone
        pytest.param("loop", "record_old_policy", 2, 0.001, 1, marks=pytest.mark.slow),
        # after it, the last checkpoint is what is left
        pytest.param("loop", "update", 3, 0.001, None, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_rank_stops_all_after_the_same_batch(
    start: Path, ram: Path, uninterrupted: Callable[[float | None], Path], owner: str, name: str, call: int,
    grace_s: float | None, done: int | None,
) -> None:  # fmt: skip
    recipe = with_grace(start, grace_s)

    def work(ranks: Ranks) -> None:
        from gspo_cli.training import loop, rollout_queue

        module, calls = {"loop": loop, "rollout_queue": rollout_queue}[owner], list[int]()
        real = getattr(module, name)

        def signalled(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == call and ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # of a scheduler and of the launcher
            return real(*args, **kwargs)

        setattr(module, name, signalled)
        toy.train(recipe, ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.SIGTERM] * 2, (ram / "said-0").read_text()
    run = ram / "gspo-s0"
    (event,) = toy.events(run, "interrupted")
    assert event["step"] == (done or 2) and event.get("unsaved", False) == (done is None)
    assert toy.checkpoints(run) == list(range((done or 1) + 1))
    trained(recipe, ram, 2)
    assert (run / "metrics.jsonl").read_bytes() == (uninterrupted(grace_s) / "metrics.jsonl").read_bytes()


def test_a_signal_that_comes_after_the_ranks_have_agreed_waits_until_they_agree_again(start: Path, ram: Path) -> None:
    """Obeyed by one rank alone, it would leave the others waiting for ever."""

    def work(ranks: Ranks) -> None:
        from gspo_cli.training.session import Signals

        real, calls = Signals.agreed, list[int]()

        def agreed(self: Signals) -> signal.Signals | None:
            answer = real(self)
            calls.append(1)
            if len(calls) == 2 and ranks.rank == 1:  # after batch 1
                os.kill(os.getpid(), signal.SIGTERM)
            return answer

        Signals.agreed = agreed  # type: ignore[method-assign]
        toy.train(toy.recipe(start, **QUIET, **FEW), ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.SIGTERM] * 2
    assert toy.events(ram / "gspo-s0", "interrupted")[0]["step"] == 1


def test_a_reward_that_fails_on_one_rank_is_everyones_error(start: Path, ram: Path) -> None:
    def work(ranks: Ranks) -> None:
        def reward(*_: Any) -> Any:
            if ranks.rank == 1:
                raise GspoError("the judge is gone", "it was told to go", "call it back", ExitCode.ENGINE)
            return toy.Score(0.0, "letters")

        toy.QuietLetters.reward = reward  # type: ignore[method-assign]
        toy.train(toy.recipe(start, **QUIET, **FEW), ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.ENGINE] * 2
    assert "the judge is gone" in (ram / "said-0").read_text()


def test_each_answer_of_an_evaluation_is_graded_by_one_rank(
    start: Path, ram: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {"bench": ["arithmetic"], "limit": 5, "samples": 3, "max_new_tokens": 4}
    recipe = toy.recipe(start, **QUIET, train=FEW["train"] | {"steps": 1}, eval=some)
    real = TaskGrader.grade

    def grade(self: TaskGrader, answers: Any) -> Any:
        with (ram / f"graded-{os.environ.get('RANK')}").open("a") as file:
            file.writelines(json.dumps([problem.id, text]) + "\n" for problem, text in answers)
        return real(self, answers)

    def graded(name: str) -> list[str]:
        return (ram / f"graded-{name}").read_text().splitlines()

    monkeypatch.setattr(TaskGrader, "grade", grade)
    one, many = trained(recipe, ram / "one", 1), trained(recipe, ram / "many", 2)
    whole, shares = graded("None"), [graded("0"), graded("1")]
    assert len(whole) == 15 and interleave(shares) == whole
    assert [len(share) for share in shares] == [8, 7]
    assert_equal(one, many)
    lines = [(run / "metrics.jsonl").read_text().splitlines()[-1] for run in (one, many)]
    assert lines[0].partition('"eval"')[1] and json.loads(lines[0])["metrics"] == json.loads(lines[1])["metrics"]


@pytest.mark.reliability
def test_a_rank_that_dies_ends_the_others_at_once(start: Path, ram: Path) -> None:
    def work(ranks: Ranks) -> None:
        from gspo_cli.training import loop

        if ranks.rank == 1:
            loop.train_batch = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        toy.train(toy.recipe(start, **QUIET, **FEW), ram, ranks=ranks)

    began = time.monotonic()
    codes = in_ranks(2, work, ram)
    assert codes[0] == ExitCode.ENGINE and codes[1] != 0 and time.monotonic() - began < 50
    assert "lost another rank of this run" in (ram / "said-0").read_text()
    assert json.loads((ram / "gspo-s0" / "events.jsonl").read_text().splitlines()[-1])["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        "filler",
        "denominator",
        "gradient",
        *(pytest.param(b, marks=pytest.mark.slow) for b in ("advantages", "machine")),
    ],
)
def test_what_would_go_wrong_is_seen(start: Path, ram: Path, broken: str) -> None:
    """Negative controls of the comparison with one process."""
    recipe = toy.recipe(start, **QUIET, **FEW, algo=PPO if broken == "advantages" else {"name": "gspo"})
    size = {"filler": 3, "machine": 4}.get(broken, 2)  # 4 rows are 2, 1 and 1

    def work(ranks: Ranks) -> None:
        from gspo_cli.models import sharding
        from gspo_cli.training.step import batches, critic, update

        many = recipe
        if broken == "filler":  # every pass counts
            batches.MicroBatch.filler = property(lambda _: False, lambda *_: None)  # type: ignore[assignment]
        elif broken == "denominator":  # of this rank's rows alone
            real = update.global_denominator
            update.global_denominator = lambda *args: real(*args) / ranks.size
        elif broken == "advantages":  # whitened over this rank's rows alone
            critic.all_rows = lambda rows, kind, _: all_rows(rows, kind, SINGLE_PROCESS)
        elif broken == "machine":  # gradients of this machine's rows alone
            sharding.FSDPModule.set_gradient_divide_factor = sum_within_machines  # type: ignore[method-assign]
            many = recipe.model_copy(update={"train": recipe.train.model_copy(update={"divide": "machine"})})
        else:  # gradients of this rank's rows alone
            sharding.FSDPModule.set_gradient_divide_factor = lambda *_: None  # type: ignore[method-assign]
        toy.train(many, ram / "many", ranks=ranks)

    (ram / "many").mkdir()
    codes = in_ranks(size, work, ram / "many", machines=2 if broken == "machine" else 1)
    assert codes == [0] * size or broken in ("filler", "denominator", "gradient")
    one = trained(recipe, ram / "one", 1)
    with pytest.raises((AssertionError, ValueError, FileNotFoundError)):
        assert_equal(one, ram / "many" / one.name)


def sum_within_machines(module: Any, _factor: float) -> None:
    """In place of `set_gradient_divide_factor`."""
    module._get_fsdp_state()._fsdp_param_group.gradient_divide_factor = 1.0
    module.set_requires_all_reduce(False, recurse=False)
