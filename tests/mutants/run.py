#!/usr/bin/env python3
"""Plant each mutant in a copy of the package and see whether the test named for it fails.

    python tests/mutants/run.py [WORD ...]     only mutants whose name holds one of the words

A process imports torch, transformers and pytest once, but never the package; each mutant is run in a fork of it, which
imports the package from its own mutated copy. A mutant is killed when its test was collected, ran and failed: an error
while collecting, or a test that never imported the mutated module, is a fault of the list, not a kill. The named tests
must pass on an unmutated copy first, in the same way. The exit code is 0 only if every mutant is killed.

Not covered: platforms without `fork`; mutants that survive other tests than their own (`pytest` runs those).
"""

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from grader_mutants import GRADERS
from hypothesis import settings
from loss_mutants import LOSS
from mutant import Mutant
from reliability_mutants import RELIABILITY
from signal_mutants import SIGNAL
from training_mutants import TRAINING

MUTANTS = (*LOSS, *SIGNAL, *RELIABILITY, *GRADERS, *TRAINING)
TESTS = Path(__file__).resolve().parents[1]
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"  # that hypothesis is there already is the point
NONE = Mutant("no mutant", "__init__.py", "__version__", "__version__", "")


class Outcome(NamedTuple):
    """What pytest said in a fork."""

    code: int
    failed: str
    """The first failure, and its exception."""
    faults: list[str]
    """Why the run does not count."""
    output: str


class Watcher:
    """A pytest plugin: the first failure, and where the package really came from."""

    def __init__(self, mutant: Mutant, folder: Path) -> None:
        self.mutant, self.folder = mutant, folder
        self.failed = ""
        self.faults: list[str] = []

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        """Notes a failing test; one that fails in its fixtures did not get to look."""
        if call.excinfo is not None and not self.failed:
            self.failed = f"{item.name} ({call.excinfo.typename})"
            if call.when != "call":
                self.faults.append(f"{item.name} failed in its {call.when}")

    def pytest_sessionfinish(self) -> None:
        """Checks that the copy was imported, and nothing but the copy."""
        loaded = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "gspo_cli"}
        for name, module in loaded.items():
            places = [module.__file__] if module.__file__ else list(module.__path__)  # a folder without __init__.py
            if not all(Path(place).is_relative_to(self.folder) for place in places):
                self.faults.append(f"{name} came from {places}")
        if self.mutant.module not in loaded and self.mutant is not NONE:
            self.faults.append(f"{self.mutant.module} was never imported")


def in_fork(mutant: Mutant, arguments: list[str]) -> Outcome:
    """One run of pytest on a copy with one mutant, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        mutant.plant(folder)
        result, output = folder / "result.json", folder / "output.txt"
        child = os.fork()
        if child == 0:
            code = 70
            try:
                with output.open("w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                    watcher = Watcher(mutant, folder)
                    sys.path.insert(0, str(folder))
                    os.environ["PYTHONPATH"] = str(folder)
                    code = int(pytest.main(arguments, plugins=[watcher]))
                    result.write_text(json.dumps([watcher.failed, watcher.faults]))
                    sys.stdout.flush()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        failed, faults = json.loads(result.read_text()) if result.exists() else ("", ["the process died"])
        return Outcome(os.waitstatus_to_exitcode(status), failed, faults, output.read_text(errors="replace"))


def pytest_arguments(killers: list[str], only: str = "") -> list[str]:
    """These tests, in this process, quietly, up to the first failure, leaving no files behind."""
    paths = [str(TESTS / killer) for killer in dict.fromkeys(killers)]
    quiet = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-W", IMPORTED, "--rootdir", str(TESTS.parent)]
    return [*paths, "-m", "", "-k", only, *quiet]


def verdict(mutant: Mutant) -> tuple[str, str]:
    """`killed`, `SURVIVED` or `FAULT`, and the test that failed or why it does not count."""
    if fault := mutant.fault():
        return "FAULT", fault
    outcome = in_fork(mutant, pytest_arguments([mutant.killer], mutant.only))
    if outcome.code == pytest.ExitCode.OK and not outcome.faults:
        return "SURVIVED", mutant.killer
    if outcome.code != pytest.ExitCode.TESTS_FAILED or outcome.faults or not outcome.failed:
        return "FAULT", "; ".join(outcome.faults) or f"pytest ended with {outcome.code}: {outcome.output[-600:]}"
    return "killed", outcome.failed


def prepare() -> None:
    """All slow imports but the package's, one thread (a fork has only one), nothing written to caches."""
    assert not any(name.partition(".")[0] == "gspo_cli" for name in sys.modules), "the package must not be loaded here"
    for module in ("qwen3.modeling_qwen3", "qwen3_moe.modeling_qwen3_moe"):
        importlib.import_module(f"transformers.models.{module}")
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    settings.register_profile("mutants", database=None, derandomize=True, deadline=None)
    settings.load_profile("mutants")


def main(words: list[str]) -> int:
    """Runs, prints the table, and says whether all is well."""
    prepare()
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    start = time.perf_counter()
    control = in_fork(NONE, pytest_arguments([m.killer for m in chosen]))
    if control.code != pytest.ExitCode.OK or control.faults:
        print(control.output[-4000:], *control.faults, "the tests fail without any mutant", sep="\n")
        return 1
    print(f"without a mutant all named tests pass ({time.perf_counter() - start:.0f} s)", flush=True)
    width, counts = max(len(m.name) for m in chosen), {"killed": 0, "SURVIVED": 0, "FAULT": 0}
    for mutant in chosen:
        begin = time.perf_counter()
        result, by = verdict(mutant)
        counts[result] += 1
        print(f"{result:8} {mutant.name:{width}} {time.perf_counter() - begin:4.1f} s  {by}", flush=True)
    print(f"{counts['killed']} of {len(chosen)} killed in {time.perf_counter() - start:.0f} s")
    return int(counts["killed"] != len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
