"""What a user tries first and what it once answered badly: words in place of names, keys as options, pipes, read-only
folders."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import GSPO, Gspo, check_refused, ok

from gspo_cli.cli.main import run_arguments


@pytest.fixture
def study(trained: Path, tmp_path: Path) -> Path:
    """A copy of two runs, to be written to."""
    return Path(shutil.copytree(trained, tmp_path / "demo"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --lr 1e-5", "write --set train.lr=1e-5"),
        ("rollout --max-new-tokens=64", "write --set rollout.max_new_tokens=64"),
        ("train --stepps 3", "--steps"),
        ("trian", "Did you mean 'train'?"),
    ],
)
def test_a_recipe_key_as_an_option_is_answered_with_set_and_a_slip_with_the_nearest_name(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gspo", *words.split()])
    with pytest.raises(SystemExit) as end:
        run_arguments()
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_a_dry_run_refuses_the_name_that_the_run_would_refuse(study: Path, smoke: Path, gspo_here: Gspo) -> None:
    words = ("train", smoke, "--algo", "grpo,gspo", "--out", study.parent, "--name", "demo", "--dry-run")
    check_refused(gspo_here(*words), "already holds a run")
    assert gspo_here(*words, "--overwrite").code == 0


def test_a_read_only_study_is_compared(study: Path, gspo_here: Gspo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("gspo_cli.runlog.fs.os.replace", refuse)
    done = gspo_here("report", "compare", study)
    assert done.code == 0 and "gspo against grpo" in done.out
    assert "was not stored" in done.err and not (study / "compare.json").exists()


def test_a_try_of_one_arm_does_not_hide_what_training_logged(study: Path, gspo_here: Gspo) -> None:
    words = ("report", "compare", study, "--metric", "arithmetic/avg@1", "--json")
    before = json.loads(gspo_here(*words).out)
    ok(gspo_here("eval", "benchmarks", study / "grpo-s0", "--limit", "2", "--samples", "1", "--overwrite"))
    after = json.loads(gspo_here(*words).out)
    assert after == before and after["verdict"] != "refused"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([str(GSPO), "report", "explain"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.stderr == "" and done.returncode == 1
