"""Several ranks save a run while it goes on: each its share, for any number of ranks, and whole or not at all."""

import errno
import hashlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from test_ranks import FEW, LORA, PPO, QUIET, in_ranks, saved_tensors, trained
from transformers import AutoConfig, AutoModelForCausalLM

from gspo_cli.distributed import Ranks
from gspo_cli.errors import ExitCode
from gspo_cli.models.load import load_policy
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.runlog import fs
from gspo_cli.training import loop
from gspo_cli.training import run as training
from gspo_cli.training.state import checkpoints, shards
from gspo_cli.training.state.checkpoint_folder import verify
from gspo_cli.training.state.contents import read_state

pytestmark = [pytest.mark.reliability, pytest.mark.slow]
WAIT_S = 20.0


def folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:06d}"


def is_share(path: Path) -> bool:
    """Whether it is a file of a checkpoint with weights or moments."""
    return "checkpoints" in path.parts and path.name.startswith(("optimizer", "model-", "model.safetensors"))


def test_each_rank_writes_and_hashes_its_share_while_training_goes_on(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, train=FEW["train"] | {"steps": 2})

    def work(ranks: Ranks) -> None:
        real_batch, real_fsync, real_digest = loop.train_batch, fs.fsync, hashlib.file_digest
        begun, late, hashed = threading.Event(), list[str](), list[int]()

        def train_batch(session: Any, step: int) -> Any:
            if step == 2:
                begun.set()
            return real_batch(session, step)

        def fsync(path: Path) -> None:
            is_first = path.parent.name.startswith((".part-1-", ".tmp-step-000001"))
            if is_first and path.name.startswith("optimizer") and not begun.wait(WAIT_S):
                late.append(path.name)
            real_fsync(path)

        def digest(file: Any, name: str) -> Any:
            hashed.append(os.fstat(file.fileno()).st_size if is_share(Path(file.name)) else 0)
            return real_digest(file, name)

        def at_the_end(*_: object) -> None:
            hashlib.file_digest = real_digest

        loop.train_batch, fs.fsync, hashlib.file_digest = train_batch, fsync, digest  # type: ignore[assignment]
        training.write_run_checksums = at_the_end  # type: ignore[assignment]
        toy.train(recipe, ram, ranks=ranks)
        (ram / f"did-{ranks.rank}").write_text(json.dumps([late, sum(hashed)]))

    assert in_ranks(2, work, ram) == [0, 0], (ram / "said-0").read_text()
    did = [json.loads((ram / f"did-{rank}").read_text()) for rank in range(2)]
    assert [late for late, _ in did] == [[], []]  # else the batch waited for the disk
    files = [p for p in folder(ram / "gspo-s0", 2).rglob("*") if is_share(p)]
    size = 3 * sum(path.stat().st_size for path in files)  # before the first batch and after each
    assert files and all(hashed < 0.7 * size for _, hashed in did), (did, size)


@pytest.mark.parametrize(
    ("before", "after", "algo", "model", "machines"),
    [
        (2, 2, PPO, {}, 1),
        (2, 1, PPO, {}, 1),
        (2, 3, PPO, {}, 1),
        (2, 4, {"name": "gspo"}, {}, 1),
        (1, 2, PPO, {}, 1),
        (2, 1, PPO, LORA, 1),
        (4, 2, {"name": "gspo"}, {}, 2),
    ],
)
def test_what_is_saved_travels_byte_for_byte(
    start: Path, ram: Path, before: int, after: int, algo: dict[str, Any], model: dict[str, Any], machines: int
) -> None:
    """Trained by some ranks, restored by others, and saved again by them before anything changes."""
    divide = "machine" if machines > 1 else "all"
    train = FEW["train"] | {"steps": 1, "divide": divide}
    recipe = toy.recipe(start, **QUIET, algo=algo, model=model, train=train)
    run = trained(recipe, ram / "study", before, machines)
    toy.forget_end(run)
    again = ram / "again" / "checkpoints"

    def save_again(session: Any, states: Any) -> None:
        states.run, states.saved_step = again.parent, None
        (again.parent / "metrics.jsonl").touch()
        states.save(session)
        states.settle(session)

    def work(ranks: Ranks) -> None:
        training.train = save_again  # type: ignore[assignment]
        toy.train(recipe, ram / "study", ranks=ranks)

    again.parent.mkdir()
    codes = in_ranks(after, work, ram / "study") if after > 1 else [toy.in_child(lambda: work(Ranks()), ram / "said")]
    assert codes == [0] * after, "\n".join(p.read_text() for p in ram.glob("**/said*"))
    old, new = folder(run, 1), folder(again.parent, 1)
    assert verify(new).step == 1
    one, other = saved_tensors(old), saved_tensors(new)
    assert one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert {t.dtype for t in one.values()} == {torch.float32}
    states = [read_state(path) for path in (old, new)]
    assert (states[0].weights_sha256 == states[1].weights_sha256) == (before > 1 and after > 1)
    assert states[0] == states[1].model_copy(update={"weights_sha256": states[0].weights_sha256})
    loaded = load_policy(recipe.model, old / "model")[0]
    assert all(bool(p.isfinite().all()) for p in loaded.parameters())


def test_batches_drawn_ahead_are_saved(start: Path, ram: Path) -> None:
    sampler = {"name": "gspo", "old_log_probs": "sampler"}
    run = trained(toy.recipe(start, **QUIET, **FEW, algo=sampler, rollout={"max_lag": 1}), ram, 2)
    assert toy.checkpoints(run) == [0, 1, 2, 3] and toy.events(run, "checkpoint_failed") == []
    assert [path.name for path in (folder(run, 1) / "ahead").iterdir()] == ["step_000002.parquet"]


def test_what_a_model_has_beside_its_weights_is_saved(ram: Path) -> None:
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size", "kv_lora_rank"), 8)
    heads = dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim", "n_routed_experts"), 4)
    counts = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_attention_heads": 2, "num_key_value_heads": 2}
    groups = {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": None, "vocab_size": 61}
    config = AutoConfig.for_model("deepseek_v3", **sizes, **heads, **counts, **groups)
    model, tokenizer = AutoModelForCausalLM.from_config(config), character_tokenizer()
    biases = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    assert biases
    for bias in biases.values():
        bias.copy_(torch.rand(bias.shape))
    for part in (model, tokenizer):
        part.save_pretrained(ram / "start")
    recipe = toy.recipe(ram / "start", **QUIET, train=FEW["train"] | {"steps": 1})
    loaded = load_policy(recipe.model, folder(trained(recipe, ram / "study", 2), 1) / "model")[0].state_dict()
    assert all(torch.equal(loaded[name], bias) for name, bias in biases.items())


def test_adapters_are_copied_where_each_machine_has_one_rank(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, model=LORA, train=FEW["train"] | {"divide": "machine"})

    def look(session: Any, _: Any) -> None:
        saved = checkpoints.collect(session, ram, session.learner.ranks).weights.values()
        own = {shards.own_part(p).data_ptr() for p in session.learner.model.parameters()}
        assert not own & {tensor.data_ptr() for tensor in saved}

    def work(ranks: Ranks) -> None:
        training.train = look  # type: ignore[assignment]
        toy.train(recipe, ram, ranks=ranks)

    assert in_ranks(2, work, ram, machines=2) == [0, 0], (ram / "said-0").read_text()


def fails_at(step: int, rank: int, how: Any) -> Any:
    """Training in which a rank's thread fails while it writes the checkpoint of a step."""

    def work(recipe: Any, study: Path, ranks: Ranks) -> None:
        real = shards.write_tensors

        def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
            if ranks.rank == rank and f".part-{step}-" in str(path) and path.name.startswith("optimizer"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"half")
                how()
            return real(path, tensors)

        shards.write_tensors = write_tensors
        toy.train(recipe, study, ranks=ranks)

    return work


def test_a_rank_killed_while_it_writes_leaves_the_checkpoint_before(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)
    work = fails_at(2, 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    study = ram / "study"
    study.mkdir()
    codes = in_ranks(2, lambda ranks: work(recipe, study, ranks), study)
    assert codes == [ExitCode.ENGINE, -signal.SIGKILL & 0xFF], (study / "said-0").read_text()
    run = study / "gspo-s0"
    assert toy.checkpoints(run) == [0, 1]
    trained(recipe, study, 2)
    assert toy.events(run, "start")[-1]["resumed_from"] == 1 and toy.checkpoints(run) == [0, 1, 2, 3]
    assert not list((run / "checkpoints").glob(".*"))
    whole = trained(recipe, ram / "whole", 2)
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    one, other = saved_tensors(folder(run, 3)), saved_tensors(folder(whole, 3))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def refuse() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refused_write_is_told_and_costs_no_other_checkpoint(start: Path, ram: Path, rank: int) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)
    work = fails_at(1, rank, refuse)
    assert in_ranks(2, lambda ranks: work(recipe, ram, ranks), ram) == [0, 0], (ram / "said-0").read_text()
    run = ram / "gspo-s0"
    (event,) = toy.events(run, "checkpoint_failed")
    assert event["step"] == 1 and "No space left" in event["reason"]
    assert toy.checkpoints(run) == [0, 2, 3] and not list((run / "checkpoints").glob(".*"))


def test_a_last_checkpoint_that_is_refused_ends_with_the_code_of_storage(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)
    work = fails_at(3, 1, refuse)
    codes = in_ranks(2, lambda ranks: work(recipe, ram, ranks), ram)
    assert codes == [ExitCode.STORAGE] * 2, (ram / "said-0").read_text()
    assert toy.checkpoints(ram / "gspo-s0") == [0, 1, 2]


def test_the_small_files_of_a_refused_checkpoint_are_removed(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)

    def work(ranks: Ranks) -> None:
        real = checkpoints.Checkpoints.fill

        def fill(self: Any, session: Any, *others: Any) -> None:
            real(self, session, *others)
            if session.step == 3:
                refuse()

        checkpoints.Checkpoints.fill = fill  # type: ignore[method-assign]
        toy.train(recipe, ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.STORAGE] * 2, (ram / "said-0").read_text()
    assert not list((ram / "gspo-s0" / "checkpoints").glob(".*"))


def test_a_flipped_byte_is_refused_by_all_ranks(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)
    run = trained(recipe, ram, 2)
    toy.forget_end(run)
    toy.flip(folder(run, 3) / "optimizer-00002-of-00002.safetensors")
    toy.flip(next((folder(run, 2) / "model").glob("*.safetensors")))
    trained(recipe, ram, 2)
    assert [e["checkpoint"] for e in toy.events(run, "checkpoint_rejected")] == ["step-000003", "step-000002"]
    assert toy.events(run, "start")[-1]["resumed_from"] == 1
    toy.forget_end(run)
    for step in range(4):
        toy.flip(folder(run, step) / "optimizer-00001-of-00002.safetensors")
    codes = in_ranks(2, lambda ranks: toy.train(recipe, ram, ranks=ranks), ram)
    said = (ram / "said-0").read_text()
    assert codes[0] == ExitCode.STORAGE and "no checkpoint of" in said and "4 were refused" in said


def test_a_signal_lets_the_checkpoint_be_finished_that_is_being_written(start: Path, ram: Path) -> None:
    recipe = toy.recipe(start, **QUIET, **FEW)

    def work(ranks: Ranks) -> None:
        real_batch, real_write, signalled = loop.train_batch, shards.write_tensors, threading.Event()

        def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
            assert ".part-1-" not in str(path) or signalled.wait(WAIT_S)
            return real_write(path, tensors)

        def train_batch(session: Any, step: int) -> Any:
            if step == 2:
                if ranks.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                threading.Timer(0.5, signalled.set).start()
            return real_batch(session, step)

        loop.train_batch, shards.write_tensors = train_batch, write_tensors
        toy.train(recipe, ram, ranks=ranks)

    assert in_ranks(2, work, ram) == [ExitCode.SIGTERM] * 2, (ram / "said-0").read_text()
    run = ram / "gspo-s0"
    names = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert names.index("interrupted") > max(n for n, name in enumerate(names) if name == "checkpoint")
    assert toy.events(run, "interrupted")[0]["step"] == 1 and toy.checkpoints(run) == [0, 1]
    assert checkpoints.list_checkpoints(run / "checkpoints")[-1].name == "step-000001"
