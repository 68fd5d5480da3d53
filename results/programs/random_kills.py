"""Launches of two and three ranks that get a random signal at a random moment, are resumed, and must end like a launch
that got none.

    python results/programs/random_kills.py --trials 200 --seed 0 --at-once 6

Everything is the program's own but for one thing: launcher and ranks are forks of this process, which has the imports
done, so that a trial takes seconds.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

TESTS = Path(__file__).parents[2] / "tests"
sys.path += [str(TESTS), str(TESTS / "reliability")]

from crashes import difference  # noqa: E402
from program import alive  # noqa: E402

from gspo_cli.cli import main  # noqa: E402
from gspo_cli.launch import local, watch  # noqa: E402
from gspo_cli.training import run as _all_imports  # noqa: E402, F401

STEPS = 3
RECIPE = TESTS / "recipes_for_tests" / "smoke.toml"
OPTIONS = [
    "--algo", "gspo", "--steps", str(STEPS), "--set", "checkpoint={every = 1, keep = 9}", "--set",
    "eval={every = 2, bench = ['arithmetic'], limit = 8, samples = 1}",
    "--set", "rollout.samples=8", "--launcher", "torchrun",
]  # fmt: skip
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP)
LIMIT_S = 60.0
"""From the signal to the end of every process."""


def fork(work: Callable[[], object], output: Path) -> int:
    """A child in a process group of its own, with nothing of its parent's open, that does the work and ends."""
    child = os.fork()
    if child:
        return child
    _work(work, output)


def _work(work: Callable[[], object], output: Path) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        os.closerange(3, 1024)
        for number in local.ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:  # as the interpreter does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


class ForkedRank:
    """Stands in for `subprocess.Popen` in the launcher."""

    __class_getitem__ = classmethod(lambda cls, _: cls)

    def __init__(self, command: tuple[str, ...], env: dict[str, str], process_group: int) -> None:
        assert process_group == 0 and command[: len(local.RANK)] == local.RANK
        self.returncode: int | None = None

        def work() -> None:
            os.environ.update(env)
            watch.report_to_launcher()
            main.run()

        self.pid = fork(work, Path(os.environ["SAID"]))
        with Path(os.environ["PIDS"]).open("a") as file:
            file.write(f"{self.pid}\n")

    def poll(self) -> int | None:
        if self.returncode is None:
            child, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if child else None
        return self.returncode

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def launched(folder: Path, *arguments: str) -> int:
    """The launcher's process."""

    def work() -> None:
        os.environ |= {"GSPO_CACHE": str(folder / "cache"), "SAID": str(folder / "said"), "PIDS": str(folder / "pids")}
        local.subprocess = SimpleNamespace(Popen=ForkedRank)  # type: ignore[assignment]
        sys.argv = ["gspo", "train", *arguments]
        main.run()

    (folder / "pids").write_text("")
    return fork(work, folder / "said")


def begun(folder: Path, ranks: int, *more: str) -> int:
    """A new study."""
    return launched(folder, str(RECIPE), *OPTIONS, "--nproc", str(ranks), "--out", str(folder), "--name", "s", *more)


def pids(folder: Path) -> list[int]:
    """The ranks' processes."""
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def waited(process: int, limit_s: float = 240) -> int | None:
    """Its exit code; None if it does not end in time."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        child, status = os.waitpid(process, os.WNOHANG)
        if child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def wait_for_training(folder: Path, launcher: int) -> None:
    """Until the first checkpoint is there."""
    while not (folder / "s" / "gspo-s0" / "checkpoints" / "step-000000").exists() and alive(launcher):
        time.sleep(0.005)


def reference(folder: Path, ranks: int) -> tuple[Path, float, float]:
    """Trains `folder/s` without any signal. Returns the folder, and the seconds before and after the first
    checkpoint."""
    folder.mkdir()
    began = time.monotonic()
    launcher = begun(folder, ranks)
    wait_for_training(folder, launcher)
    trains = time.monotonic()
    assert waited(launcher) == 0, (folder / "said").read_text()
    return folder, trains - began, time.monotonic() - trains


def expected(number: int, target: str) -> set[int]:
    """The launcher's exit codes that docs/reliability.md names."""
    if target == "launcher":  # a stopped launcher goes on once all ranks have saved and ended
        return {-9} if number == signal.SIGKILL else {130} if number == signal.SIGINT else {143}
    return {5} if number in (signal.SIGKILL, signal.SIGSTOP) else {128 + number}


def trial(seed: int, folder: Path, whole: dict[int, tuple[Path, float, float]]) -> dict[str, Any]:
    """One signal: what was done, seen and wrong. `whole`: ranks -> see `reference`."""
    rng = random.Random(seed)
    ranks, number = rng.choice((2, 3)), rng.choice(SIGNALS)
    target = rng.choice(("launcher", *map(str, range(ranks)), "all"))
    if number in (signal.SIGKILL, signal.SIGSTOP) and target == "all":  # nobody is left to notice anything
        target = "launcher"
    folder.mkdir()
    if within := rng.random() < 0.7:  # in training; else it may come in the cold start, too
        shutil.copytree(whole[ranks][0] / "cache", folder / "cache")
    launcher = begun(folder, ranks)
    while len(pids(folder)) < ranks:
        time.sleep(0.005)
    if within:
        wait_for_training(folder, launcher)
    time.sleep(rng.uniform(0, whole[ranks][2 if within else 1]))
    processes = pids(folder)
    hit = {"launcher": [launcher], "all": [launcher, *processes]}.get(target) or [processes[int(target)]]
    beat = folder / "s" / "gspo-s0" / "heartbeat.json"
    try:
        phase = json.loads(beat.read_text())["phase"]
    except (OSError, ValueError):
        phase = "before or after"
    sent = time.monotonic()
    for process in hit:
        if alive(process):
            os.kill(process, number)
    code = None
    while any(map(alive, processes)) or (number != signal.SIGSTOP and alive(launcher)):
        if time.monotonic() - sent > 4 * LIMIT_S:
            break
        time.sleep(0.02)
    seconds = time.monotonic() - sent
    if alive(launcher):
        os.kill(launcher, signal.SIGCONT)
    code = waited(launcher, 20)
    wrong = []
    over = code == 0
    if seconds > LIMIT_S:
        wrong.append("noticed late")
    if not over and code not in expected(number, target):
        wrong.append(f"exit code {code}")
    run = folder / "s" / "gspo-s0"
    log = run / "metrics.jsonl"
    done = sum(b'"kind":"rollout"' in line for line in log.read_bytes().splitlines()) if log.exists() else 0
    for process in processes:
        if alive(process):
            os.kill(process, signal.SIGKILL)
    lost = None
    if (folder / "s" / "study.json").exists():
        again = launched(folder, "--resume", str(folder / "s"), "--launcher", "torchrun", "--nproc", str(ranks))
    else:
        again = begun(folder, ranks)
    if (second := waited(again)) != 0:
        wrong.append(f"resume: exit code {second}")
    elif (why := difference_of(run, whole[ranks][0])) is not None:
        wrong.append(f"not equal: {why}")
    else:
        starts = [e for e in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if e["event"] == "start"]
        lost = done - starts[-1].get("resumed_from", 0) if not over and len(starts) > 1 else 0
        if lost > (1 if number in (signal.SIGKILL, signal.SIGSTOP) else 0):
            wrong.append(f"{lost} rollout batches lost")
    said = (folder / "said").read_text() if wrong else ""
    return {
        "seed": seed, "ranks": ranks, "signal": signal.Signals(number).name, "target": target, "phase": phase,
        "code": code, "seconds": round(seconds, 1), "lost": lost, "wrong": wrong, "said": said[-3000:],
    }  # fmt: skip


def difference_of(run: Path, whole: Path) -> str | None:
    """What differs from the run without signals."""
    return difference(run, whole / "s" / "gspo-s0", [])


def main_program() -> None:
    """All trials; prints a line for each that went wrong, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="gspo-", dir="/dev/shm"))
    whole = {ranks: reference(base / f"whole-{ranks}", ranks) for ranks in (2, 3)}
    print({ranks: [round(part, 1) for part in seconds] for ranks, (_, *seconds) in whole.items()}, flush=True)
    waiting, running, results = list(range(arguments.seed, arguments.seed + arguments.trials)), dict[int, int](), []
    while waiting or running:
        while waiting and len(running) < arguments.at_once:
            seed = waiting.pop(0)
            out = base / f"result-{seed}"

            def work(seed: int = seed, out: Path = out) -> None:
                out.write_text(json.dumps(trial(seed, base / f"trial-{seed}", whole)))

            running[fork(work, base / f"log-{seed}")] = seed
        child, _ = os.wait()
        seed = running.pop(child)
        out = base / f"result-{seed}"
        result = json.loads(out.read_text()) if out.exists() else {"seed": seed, "wrong": ["no result"], "said": ""}
        result["said"] = result["said"] or (base / f"log-{seed}").read_text()[-1500:]
        print(json.dumps({k: v for k, v in result.items() if k != "said" or result["wrong"]}), flush=True)
        results.append(result)
        shutil.rmtree(base / f"trial-{seed}", ignore_errors=True)
    table = Counter((r.get("signal"), "launcher" if r.get("target") == "launcher" else "ranks") for r in results)
    for (name, target), count in sorted(table.items(), key=str):
        some = [r for r in results if r.get("signal") == name and (r["target"] == "launcher") == (target == "launcher")]
        codes = dict(Counter(r["code"] for r in some))
        slowest, bad = max(r["seconds"] for r in some), sum(bool(r["wrong"]) for r in some)
        lost = max(r["lost"] or 0 for r in some)
        print(
            f"{name} to {target}: {count} trials, exit codes {codes}, at most {slowest} s and {lost} batches lost, "
            f"{bad} wrong"
        )
    shutil.rmtree(base)


if __name__ == "__main__":
    main_program()
