#!/usr/bin/env python3
"""The golden run: twenty rollout batches on a CPU whose log is committed.

    python tests/reliability/golden.py     makes the start model (if it is not there) and the log anew

Exact, byte for byte, where `fingerprint()` is that of `made_with.json`: same processor, Python and libraries. Anywhere
else rounding differs, and soon another token is sampled: there the first rollout batch is compared, with a tolerance.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
import toy
import transformers

from gspo_cli.config import Recipe
from gspo_cli.runlog.provenance import cpu_name

FOLDER = Path(__file__).parents[1] / "golden"
TOLERANCE = 1e-4
HELP = "a change that moves numbers says so in the changelog, and makes the log anew: tests/reliability/golden.py"


def recipe() -> Recipe:
    """GSPO with routing replay and a KL penalty, four updates of which three are off policy."""
    return toy.recipe(
        Path("./start"),  # relative: it is part of the configuration, whose hash the log begins with
        task={"name": "toy:quiet_letters"},
        rollout={"prompts": 4, "samples": 4, "max_new_tokens": 6, "store": 0},
        train={"steps": 20, "minibatches": 2, "lr": 0.003},
        algo={"name": "gspo", "replay": "r2", "kl": {"coef": 0.01}},
        checkpoint={"every": 0},
    )


def make(study: Path) -> Path:
    """Trains it and gives its log."""
    with contextlib.chdir(FOLDER):
        return toy.train(recipe(), study) / "metrics.jsonl"


def fingerprint() -> dict[str, Any]:
    """What the bytes depend on besides the code."""
    return {
        "cpu": cpu_name(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
    }


def steps_to_compare() -> int:
    """How far two machines can be held against each other."""
    same = fingerprint() == json.loads((FOLDER / "made_with.json").read_text())
    return 20 if same else 1


def compare(known: list[dict[str, Any]], made: list[dict[str, Any]], steps: int) -> None:
    """Asserts that the first steps' metrics agree within the tolerance."""
    for one, other in zip(known, made, strict=True):
        if one["step"] > steps:
            return
        assert one["metrics"].keys() == other["metrics"].keys()
        for name, value in one["metrics"].items():
            found = other["metrics"][name]
            both = value is not None and found is not None
            close = value is found or (both and math.isclose(value, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE))
            assert close, f"{name} of step {one['step']}: {found}, not {value}"


def main() -> None:
    """Writes the committed files."""
    if not (FOLDER / "start").exists():
        toy.build_start(FOLDER / "start")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(make(Path(folder) / "study"), FOLDER / "metrics.jsonl")
    (FOLDER / "made_with.json").write_text(json.dumps(fingerprint(), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
