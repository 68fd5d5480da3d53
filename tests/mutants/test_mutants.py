"""Every deliberate error in the list is noticed by the test named for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from run import MUTANTS

HERE = Path(__file__).parent


def test_every_mutant_fits_the_source() -> None:
    assert [fault for mutant in MUTANTS if (fault := mutant.fault())] == []


@pytest.mark.slow
def test_every_mutant_is_killed() -> None:
    # a process of its own, because the package must not be loaded before it is mutated
    done = subprocess.run([sys.executable, str(HERE / "run.py")], capture_output=True, text=True, timeout=1800)
    score = re.search(r"(\d+) of (\d+) killed", done.stdout)
    assert done.returncode == 0 and score, done.stdout[-8000:] + done.stderr[-2000:]
    assert score[1] == score[2] and int(score[2]) >= 35
