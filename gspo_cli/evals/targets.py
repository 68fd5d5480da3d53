"""Which model folders are evaluated, where the results go, and with what defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gspo_cli.config import ModelConfig, RolloutConfig, Table, merge
from gspo_cli.errors import GspoError
from gspo_cli.recipe import Layer, parse_set, user_errors
from gspo_cli.runlog.folder import newest_run

DEADLINE_S = 24 * 3600.0
"""For one portion of answers: long responses take longer than a training batch may."""


class Machine(Table):
    """What of a recipe an evaluation uses: where the model lies and what samples from it."""

    model: ModelConfig
    rollout: RolloutConfig = RolloutConfig()


@dataclass(frozen=True, slots=True)
class Target:
    """One model to evaluate."""

    name: str
    folder: Path
    """Results of benchmark b go to `folder / b`, of a run's step N to `folder / b / step-N`."""
    step: str | None
    """`step-000060` of a run's checkpoint; None for a bare model."""
    machine: Machine
    seed: int
    """The run's own, so that an evaluation repeats the one that ended its training; 0 for a bare model."""

    def results(self, benchmark: str) -> Path:
        """The folder of one evaluation."""
        return self.folder / benchmark / self.step if self.step else self.folder / benchmark


def find_targets(
    name: str | None, out: Path, all_checkpoints: bool, engine: str | None, sets: Iterable[str]
) -> list[Target]:
    """The last checkpoint of a run (default: the newest run), all of them, or a model folder or hub name.

    Errors: GspoError for a run without checkpoints, a study, or `--set` keys that do not fit.
    """
    layers = [Layer("--engine", {"rollout": {"engine": engine}} if engine else {}), *map(parse_set, sets)]
    run = newest_run(out) if name is None else Path(name)
    if not (run / "run.json").is_file():
        return [_bare(str(name), out, all_checkpoints, layers)]
    config, record = _read(run / "config.json"), _read(run / "run.json")
    own = {"model": config.get("model", {}), "rollout": config.get("rollout", {})}
    own["model"] = {k: v for k, v in own["model"].items() if k in ("dtype", "device", "threads")}
    own["rollout"] = own["rollout"] | {"deadline_s": DEADLINE_S}
    folders = checkpoints(run)
    return [
        Target(
            str(folder), run / "eval", folder.parent.name,
            _machine(own, [Layer(str(run / "config.json"), own), *layers], folder), int(record.get("seed", 0)),
        )
        for folder in (folders if all_checkpoints else folders[-1:])
    ]  # fmt: skip


def checkpoints(run: Path) -> list[Path]:
    """The model folders of a run's checkpoints, in the order of their steps.

    Errors: GspoError when the run has none (it did not get that far).
    """
    found = [p for p in run.glob("checkpoints/step-*/model") if p.parent.name.removeprefix("step-").isdecimal()]
    if not found:
        raise GspoError(
            f"{run} has no saved model", "a run saves its weights when it ends", "let it finish, or name a model folder"
        )
    return sorted(found, key=lambda p: int(p.parent.name.removeprefix("step-")))


def _bare(name: str, out: Path, all_checkpoints: bool, layers: list[Layer]) -> Target:
    if next(Path(name).glob("*/run.json"), None):
        raise GspoError(f"{name} is a study", "an evaluation takes one run of it", "name one of the folders in it")
    if all_checkpoints:
        raise GspoError(f"{name} is no run", "only a run has checkpoints", "leave out --all-checkpoints, or name a run")
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    own = {"rollout": {"deadline_s": DEADLINE_S}}
    return Target(
        name, out / f"eval-{plain}", None, _machine(own, [Layer("the defaults", own), *layers], Path(name)), 0
    )


def _machine(own: dict[str, Any], layers: list[Layer], path: Path) -> Machine:
    table = own
    for layer in layers[1:]:
        table = merge(table, layer.table)
    try:
        return Machine.model_validate(merge(table, {"model": {"path": str(path), "tiny": None}}))
    except ValidationError as error:
        raise user_errors(error, layers, Machine)[0] from error


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GspoError(f"cannot read {path}", str(error), "name a model folder instead") from error
    if not isinstance(value, dict):
        raise GspoError(f"cannot read {path}", "it is not an object", "name a model folder instead")
    return value
