#!/usr/bin/env python3
"""The golden run: twenty rollout batches on a CPU, with one committed log for each instruction set.

    python tests/reliability/golden.py     makes this machine's log anew (and the start model, if there is none)

Where `fingerprint()` is that of the log's `made_with.json` (same processor, Python and libraries), every number must be
the same to its last bit. Anywhere else rounding differs, and soon another token is sampled: there the first rollout
batch is compared, within a tolerance. A new metric or recipe key needs no new log: metrics that the log does not know
are not compared, nor is the hash of the configuration with which the log's chain begins.
"""

import contextlib
import json
import math
import os
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
EDGE = -math.log1p(-3e-4)  # GSPO's clip range at its nearer edge, as a log-ratio
IN_BANDS = {"mismatch/floor_of_band": "mismatch/floor", "lag/seq_gap_of_band": "lag/seq_gap"}
LIMITS = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")  # the libraries' own limits on vectors
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


def processor() -> str:
    """The widest vectors of the processor itself, which MKL and oneDNN use whatever torch was told."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return "AVX512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "other"


def fingerprint() -> dict[str, Any]:
    """What the bytes depend on besides the code."""
    return {
        "cpu": cpu_name(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "machine": platform.machine(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
    }


def known_logs() -> dict[Path, bool]:
    """The committed logs, each with whether this machine must reproduce its bytes."""
    here = fingerprint()
    return {
        path.parent / "metrics.jsonl": json.loads(path.read_text()) == here
        for path in sorted(FOLDER.glob("*/made_with.json"))
    }


def assert_equal(known: list[dict[str, Any]], made: list[dict[str, Any]]) -> None:
    """Asserts that every line of the known log is there, number by number."""
    for one, other in zip(known, made, strict=True):
        for part in ("metrics", "counts"):
            other[part] = {name: value for name, value in other[part].items() if name in one[part]}
        assert one | {"prev": None} == other | {"prev": None}, HELP


def compare(known: list[dict[str, Any]], made: list[dict[str, Any]], steps: int) -> None:
    """Asserts that the first steps' metrics agree within the tolerance.

    A mismatch is a residue of rounding. Divided by a band of 3e-4 it is not small any more, so what is given in bands
    must be exactly its own log's mismatch in nats, and the nats are what two machines are compared by.
    """
    for one, other in zip(known, made, strict=True):
        if one["step"] > steps:
            return
        assert one["metrics"].keys() <= other["metrics"].keys()
        for name, value in one["metrics"].items():
            found = other["metrics"][name]
            if name in IN_BANDS and found is not None:
                nats = other["metrics"][IN_BANDS[name]]
                assert math.isclose(found * EDGE, nats, rel_tol=1e-9), f"{name}: {found}, though the gap is {nats} nats"
                continue
            both = value is not None and found is not None
            close = value is found or (both and math.isclose(value, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE))
            assert close, f"{name} of step {one['step']}: {found}, not {value}"


def main() -> None:
    """Writes the committed files."""
    if not (FOLDER / "start").exists():
        toy.build_start(FOLDER / "start")
    found = fingerprint()
    place = FOLDER / found["capability"].lower()
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(make(Path(folder) / "study"), place / "metrics.jsonl")
    (place / "made_with.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
