"""The commands of README.md and docs/, run in order, each page in a folder of its own where a small study lies ready.

A block is run, or a comment before it, `<!-- not run: REASON -->`, says why not. `shortened_gspo.py` makes the commands
small; what they say of their options and files is untouched.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks, modules
from program import tree
from shell import commands

pytestmark = pytest.mark.slow
RUN = {page: [b for b in blocks(page, "bash") if b.why_not is None] for page in PAGES}
ANSWERS = [
    {"id": "1", "response": "The answer is \\boxed{204}.", "gold": "204"},
    {"id": "2", "response": "no idea", "gold": "25"},
]
TRL = [{"step": s, "reward": 0.1 * s, "completions/mean_length": 9.0, "num_tokens": 50.0 * s} for s in (1, 2, 3)]
VERL = [{"step": s, "data": {"critic/score/mean": 0.1 * s, "response_length/mean": 8.0}} for s in (1, 2, 3)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose `gspo` is the shortened one."""
    folder = tmp_path_factory.mktemp("bin")
    warm, meeting = Path(__file__).with_name("warm_gspo.py"), folder / "s"
    script = folder / "gspo"
    script.write_text(f'#!/bin/bash\nexec "{sys.executable}" -S "{warm}" ask "{meeting}" "$@"\n')
    script.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    server = subprocess.Popen(
        [sys.executable, warm, "serve", meeting], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    yield folder
    server.kill()
    server.wait()
    server.stdout.close()


@pytest.fixture
def desk(tmp_path: Path, small_study: Path) -> Path:
    """A reader's folder: a study, stored answers, logs of other trainers."""
    shutil.copytree(small_study / "results" / "small", tmp_path / "results" / "my-study")
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ANSWERS))
    (tmp_path / "out" / "checkpoint-500").mkdir(parents=True)
    state = {"global_step": 3, "log_history": TRL}
    (tmp_path / "out" / "checkpoint-500" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in VERL))
    return tmp_path


def run(block: Block, desk: Path, program: Path) -> None:
    """Runs a block as a reader pastes it, stopping at the first command that fails."""
    ran = desk / "ran.jsonl"
    ran.unlink(missing_ok=True)
    stand_ins = {
        "STUDY": "results/my-study",
        "STUDY/RUN": "my-study/gspo-s0",
        "MODEL": "results/my-study/gspo-s0/model",
    }
    environment = os.environ | {
        "PATH": f"{program}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "DOCS_RAN": str(ran), "NO_COLOR": "1",
        "DOCS_STAND_INS": json.dumps(stand_ins),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text], cwd=desk, env=environment, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr[-4000:]
    num_ran = len(ran.read_text().splitlines()) if ran.exists() else 0
    assert num_ran >= len([*commands(block.text)]), "a command of the block was not reached"


@pytest.mark.parametrize("page", [p for p in PAGES if RUN[p]], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_in_order(page: Path, desk: Path, program: Path) -> None:
    if page == ROOT / "README.md":
        shutil.rmtree(desk / "results")  # a new user has none
    for name, text in modules(page).items():
        (desk / name).write_text(text)
    for block in RUN[page]:
        run(block, desk, program)


def test_a_command_that_fails_is_noticed(desk: Path, program: Path) -> None:
    before = tree(desk)
    for text in ("gspo report plots no-such-study\n", "gspo runs ls | false\n", "false || gspo doctor --wrong\n"):
        with pytest.raises(AssertionError):
            run(Block(ROOT / "README.md", 1, "bash", text, None), desk, program)
    (desk / "ran.jsonl").unlink()
    assert tree(desk) == before
