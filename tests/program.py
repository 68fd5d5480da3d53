"""The program, installed or forked, and the log lines it writes, as the tests use them."""

import importlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, NoReturn

import pytest

from gspo_cli.cli.main import run
from gspo_cli.errors import GspoError

GSPO = Path(sysconfig.get_path("scripts")) / "gspo"
"""The installed console script."""
LIMIT_S = 120
"""After which a program that does not end is killed."""


class Done(NamedTuple):
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Gspo = Callable[..., Done]


class Spawned:
    """The installed program as a process in a group of its own, with signals as a terminal gives them."""

    def __init__(self, *args: str | Path, **env: str) -> None:
        prepare = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", prepare, str(GSPO), *map(str, args)], env=os.environ | env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        """To it and the processes it started, as a terminal does."""
        os.killpg(self.process.pid, number)

    def wait(self) -> Done:
        """Its end; the code is negative for a signal."""
        with self.process as process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Done(process.returncode, out, err)


class Forked:
    """The program in a fork of this process, which spares it five seconds of imports. For the rest it is a process like
    any other: signals, output, exit code and group of its own, ended at once by SIGKILL.

    Not shown by it: what is decided while the package is imported.
    """

    def __init__(self, *args: str | Path, **env: str) -> None:
        self.out, self.err = os.memfd_create("stdout"), os.memfd_create("stderr")
        self.pid = os.fork()
        if not self.pid:
            self._run([*map(str, args)], env)

    def _run(self, arguments: list[str], env: dict[str, str]) -> NoReturn:
        code = 1
        try:
            os.setsid()
            signal.alarm(LIMIT_S)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdout, sys.stderr = _in_place_of(1, self.out), _in_place_of(2, self.err)
            warnings.simplefilter("ignore")  # pytest has made them errors
            os.environ.update(env)
            sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
            sys.argv = ["gspo", *arguments]
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def send(self, number: signal.Signals) -> None:
        """As `Spawned.send`."""
        os.killpg(self.pid, number)

    def wait(self) -> Done:
        """As `Spawned.wait`."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return Done(code, *map(_all_of, (self.out, self.err)))


def _in_place_of(number: int, file: int) -> IO[str]:
    """Standard output or error that goes to a file."""
    os.dup2(file, number)
    return open(number, "w", encoding="utf-8", closefd=False)


def _all_of(file: int) -> str:
    with open(file, encoding="utf-8") as text:
        text.seek(0)
        return text.read()


def ok(done: Done) -> Done:
    """A command that must have ended well; else the test fails with what it said."""
    assert done.code == 0, done.err
    return done


def alive(pid: int) -> bool:
    """Whether a process runs or is stopped; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], *processes: subprocess.Popen[Any], limit_s: float = 240) -> None:
    """Until the condition holds, while the processes run."""
    end = time.monotonic() + limit_s
    while not condition():
        assert all(process.poll() is None for process in processes) and time.monotonic() < end
        time.sleep(0.02)


def check_refused(done: Done, *words: str) -> None:
    """Exit code 2; the three parts, in their order and each with text, on stderr alone; `words` stand in them."""
    assert done.code == 2, done.out + done.err
    assert done.out == "" and "Traceback" not in done.err and "unexpected" not in done.err
    starts = [
        line[:7]
        for line in done.err.splitlines()
        if line.startswith(("error: ", "why:   ", "do:    ")) and len(line) > 10
    ]
    assert starts == ["error: ", "why:   ", "do:    "], done.err
    for word in words:
        assert word in done.err, done.err


def refusal(call: Callable[..., object], *args: Any, **keys: Any) -> str:
    """What a call is refused with: a GspoError that has all its three parts."""
    with pytest.raises(GspoError) as caught:
        call(*args, **keys)
    assert caught.value.message.strip() and caught.value.why.strip() and caught.value.hint.strip()
    return str(caught.value)


def strict_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, all of them whole; NaN and Infinity are no JSON."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), f"{path} ends in the middle of a line"
    return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def save_tiny(folder: Path, **shape: Any) -> Path:
    """A small random model with its tokenizer, as a folder."""
    from gspo_cli.config import TinyModel
    from gspo_cli.models.tiny import build_tiny

    for part in build_tiny(TinyModel(**({"kind": "qwen3", "hidden": 16, "layers": 1} | shape)), seed=1):
        part.save_pretrained(folder)
    return folder


def objects(text: str) -> list[dict[str, Any]]:
    """What `--json` printed: an object a line, and nothing else."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) for one in found)
    return found


def results_program(name: str) -> ModuleType:
    """A script of results/programs as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "results" / "programs")
        return importlib.import_module(name)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")
