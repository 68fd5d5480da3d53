"""A whole run in a tenth of a second: the real loop, checkpoints and logs on a very small model, in a forked process
that can be killed at any change of a file."""

import functools
import json
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gspo_cli.config import Recipe, TinyModel
from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.events import ignore
from gspo_cli.models.device import prepare_torch
from gspo_cli.models.tiny import build_tiny
from gspo_cli.runlog import fs, lock, provenance
from gspo_cli.training import run as training
from gspo_cli.training.state import checkpoint_folder
from gspo_cli.training.state.checkpoint_folder import Damaged, verify
from gspo_cli.training.state.resume import finish, has_begun, is_complete
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.training.study.plans import StudyPlan
from gspo_cli.types import Problem, Score

provenance.version = functools.cache(provenance.version)  # a tenth of a toy run
CHANGES = ("write", "fsync", "replace", "rename", "truncate", "ftruncate", "unlink", "rmdir", "mkdir")
"""The calls of `os` that change what is on disk, or make it last."""


class Letters:
    """A task with five problems, so that two rollout batches are an epoch; it pays for the letters of a response."""

    def problems(self, _split: str) -> list[Problem]:
        """Always the same."""
        return [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(5)]

    def reward(self, _problem: Problem, text: str) -> Score:
        """Almost every group has a spread. It draws from the global generators, as a task of a user's may."""
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return Score(float(sum(map(ord, text)) % 17) + noise, "letters")


def letters(_config: Any = None) -> Letters:
    """What a recipe names."""
    return Letters()


class LoudLetters(Letters):
    """The same with rewards whose gradients no float16 can hold."""

    def reward(self, _problem: Problem, text: str) -> Score:
        """Depends on the text alone."""
        return Score(1e6 * float(sum(map(ord, text)) % 17), "letters")


def loud_letters(_config: Any = None) -> LoudLetters:
    """What a recipe names."""
    return LoudLetters()


class QuietLetters(Letters):
    """The same with a plain reward."""

    def reward(self, _problem: Problem, text: str) -> Score:
        """Depends on the text alone."""
        return Score(float(sum(map(ord, text)) % 17), "letters")


def quiet_letters(_config: Any = None) -> QuietLetters:
    """What a recipe names."""
    return QuietLetters()


def build_start(folder: Path) -> Path:
    """A start model whose routers and logits are far from even."""
    model, tokenizer = build_tiny(TinyModel(hidden=8, layers=1, experts=4, top_k=2), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(start: Path, **tables: dict[str, Any]) -> Recipe:
    """Small enough for hundreds of runs, and with every part that has a state."""
    table: dict[str, Any] = {
        "name": "toy",
        "model": {"path": str(start), "threads": 1, "device": "cpu"},
        "task": {"name": "toy:letters"},
        "rollout": {"prompts": 2, "samples": 4, "max_new_tokens": 4, "store": 1},
        "train": {"steps": 2, "minibatches": 2, "lr": 0.01, "warmup": 1},
        "algo": {"name": "gspo"},
        "eval": {"bench": []},
        "checkpoint": {"every": 1, "keep_optimizer": True},
    }
    for name, values in tables.items():
        table[name] = table.get(name, {}) | values
    return Recipe.model_validate(table)


def train(
    recipe: Recipe, study: Path, changes: dict[str, Any] | None = None, allowed: tuple[str, ...] = (),
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:  # fmt: skip
    """What `gspo train` does with a recipe of one arm; goes on where there is something to go on with."""
    prepare_torch(1)
    arm = recipe.algo.name
    (run,) = plan_runs(recipe, [arm], [recipe.seed])
    start, folder = Path(str(recipe.model.path)), study / run.name
    begun, complete = ranks.broadcast(lambda: [has_begun(folder), is_complete(folder)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "SOURCE", study)  # not a source tree: git need not be asked
        if not begun:
            return training.execute(run, start, study, StudyPlan(recipe, [arm], [recipe.seed], ""), [], ignore, ranks)
        if complete and not changes:
            finish(folder)
            return folder
        return training.resume(folder, lambda _: start, changes or {}, list(allowed), [], ignore, ranks)


def in_memory() -> Iterator[Path]:
    """A folder in memory where there is one: forcing hundreds of files to a disk takes minutes."""
    base = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="gspo-", dir=base if os.access(base, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


def in_child(work: Callable[[], object], output: Path) -> int:
    """Exit code of the work done in a fork (negative for a signal); what it says goes to `output`."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except BaseException as error:
        os.write(2, traceback.format_exc().encode())
        code = int(getattr(error, "code", 1))
    finally:
        os._exit(code)


class Disk:
    """Stands in for `os` where files are changed: counts each change, and kills the process at one of them."""

    def __init__(self, kill_at: int | None = None, torn: bool = False) -> None:
        self.kill_at, self.torn = kill_at, torn
        self.done: list[tuple[str, str]] = []
        """Each change: the call, and the path or the file's path."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGES:
            return real

        def change(*args: Any, **kwargs: Any) -> Any:
            where = args[0] if not isinstance(args[0], int) else os.readlink(f"/proc/self/fd/{args[0]}")
            self.done.append((name, str(where)))
            if len(self.done) - 1 == self.kill_at:
                self.tear(name, args, str(where))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return change

    def tear(self, name: str, args: tuple[Any, ...], where: str) -> None:
        """Half of a write gets through; half of a file that was about to be forced to the disk is there."""
        if self.torn and name == "write":
            os.write(args[0], args[1][: len(args[1]) // 2])
        if self.torn and name == "fsync" and os.path.isfile(where):
            os.truncate(where, os.path.getsize(where) // 2)

    def can_tear(self, index: int) -> bool:
        """Whether a change can be left half done: a write, or the first forcing of a file that has no name yet."""
        name, where = self.done[index]
        return name == "write" or (name == "fsync" and ".tmp-" in where and os.path.splitext(where)[1] != "")

    def install(self) -> None:
        """From now on, in this process."""
        fs.os = checkpoint_folder.os = self  # type: ignore[assignment]
        lock.INTERVAL_S = 3600.0  # the first sign of life is a change like any other; more would come by the clock


def checkpoints(run: Path) -> list[int]:
    """Steps of the checkpoints that verify."""
    found = []
    for path in checkpoint_folder.list_checkpoints(run / "checkpoints"):
        try:
            found.append(verify(path).step)
        except Damaged:
            continue
    return found


def forget_end(run: Path) -> None:
    """Leaves the run's events as a kill would: without its end."""
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"event":"end"' not in line))


def flip(path: Path) -> None:
    """Turns one bit of a file; a second call turns it back."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    """The run's events of one name."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["event"] == name]
