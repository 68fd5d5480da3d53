"""A folder that must not be written and a disk that is full, for a user without root's privileges."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy
from program import tree
from typer.testing import CliRunner

from gspo_cli.cli.main import app
from gspo_cli.errors import ExitCode

SMOKE = Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"
OVERRIDES = (0, 1, 2, 3, 24)  # CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SYS_RESOURCE


def lose_privileges() -> None:
    """Make permissions of files bind this process even if it is root's: no right to override them is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    keep = ~sum(1 << number for number in OVERRIDES) & 0xFFFFFFFF
    data[0] &= keep
    data[1] &= keep
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def trained_as_user(start: Path, study: Path, output: Path, steps: int = 2) -> int:
    """Exit code of a training run in a fork without privileges."""

    def train() -> None:
        lose_privileges()
        toy.train(toy.recipe(start, train={"steps": steps, "minibatches": 2, "lr": 0.01, "warmup": 1}), study)

    return toy.in_child(train, output)


def test_a_read_only_folder_is_refused_with_reason_and_nothing_is_written(start: Path, ram: Path) -> None:
    folder = ram / "given"
    folder.mkdir()
    folder.chmod(0o555)
    try:
        assert trained_as_user(start, folder / "study", ram / "said") == ExitCode.STORAGE
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)
    said = (ram / "said").read_text()
    assert "cannot write" in said and "Permission denied" in said


def test_a_run_that_became_read_only_stays_as_it_was(start: Path, ram: Path) -> None:
    study = ram / "study"
    assert trained_as_user(start, study, ram / "said") == 0
    (run,) = (folder for folder in study.iterdir() if folder.is_dir())
    before, folders = tree(run), [run, *(f for f in run.rglob("*") if f.is_dir())]
    for path in run.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert trained_as_user(start, study, ram / "said") in (0, ExitCode.STORAGE)
        assert tree(run) == before
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("free_kib", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (4, 16, 64)), 256, 1024])
def test_a_disk_that_fills_ends_with_the_code_of_storage_and_goes_on_later(
    start: Path, small_disk: Path, tmp_path: Path, free_kib: int
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((3072 - free_kib) << 10))
    code = trained_as_user(start, small_disk / "study", tmp_path / "said")
    said = (tmp_path / "said").read_text()
    assert code in (0, ExitCode.STORAGE), said
    if code:
        assert "GspoError" in said
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    code, said = trained_as_user(start, small_disk / "study", tmp_path / "said"), (tmp_path / "said").read_text()
    if code:  # it was too full for the first checkpoint: a run never starts over by itself
        assert code == ExitCode.STORAGE and "none was ever completed" in said
        return
    assert trained_as_user(start, tmp_path / "other", tmp_path / "said") == 0
    one, other = (study / "gspo-s0/metrics.jsonl" for study in (small_disk / "study", tmp_path / "other"))
    assert one.read_bytes() == other.read_bytes()


def commanded_as_user(start: Path, out: Path, output: Path, command: str) -> int:
    """Exit code of a command in a fork without privileges; what it says goes to `output`.

    One thread in each command: a fork has none of its parent's OpenMP threads, and torch crashes if it uses them.
    """
    small = ["--set", "task.name='toy:letters'", "--set", "rollout.prompts=2", "--set", "rollout.samples=2", "--set",
             "rollout.max_new_tokens=4", "--set", "eval.bench=[]"]  # fmt: skip
    arguments = {
        "train": ["train", SMOKE, "--model", start, *small, "--out", out, "--name", "x"],
        "rollout": ["rollout", SMOKE, "--model", start, *small, "--out", out],
        "eval": ["eval", "benchmarks", start, "--limit", "1", "--max-tokens", "2", "--set", "model.threads=1",
                 "--out", out],
    }[command]  # fmt: skip

    def work() -> None:
        lose_privileges()
        result = CliRunner().invoke(app, [*map(str, arguments)])
        os.write(1, (result.stdout + result.stderr).encode())
        os._exit(result.exit_code)

    return toy.in_child(work, output)


@pytest.mark.parametrize("command", ["train", "rollout", "eval"])
@pytest.mark.parametrize("fault", ["read-only", "full"])
def test_each_command_says_that_it_cannot_write(
    start: Path, ram: Path, request: pytest.FixtureRequest, command: str, fault: str
) -> None:
    if fault == "full":
        folder = request.getfixturevalue("small_disk")
        (folder / "ballast").write_bytes(bytes(3 << 20))
    else:
        folder = ram / "given"
        folder.mkdir(mode=0o555)
    code = commanded_as_user(start, folder / "out", ram / "said", command)
    said = (ram / "said").read_text()
    folder.chmod(0o755)
    assert code in (ExitCode.USER_ERROR, ExitCode.STORAGE) and "Traceback" not in said, said
    assert [part for part in ("error: ", "why: ", "do: ") if part not in said] == []
    assert not [path for path in folder.rglob("*") if path.is_file() and path.name != "ballast" and path.stat().st_size]
