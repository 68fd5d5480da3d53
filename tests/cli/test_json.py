"""`--json`: every command has it, prints objects alone on stdout, and errors as one object on stderr."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from program import GSPO, Gspo, objects
from test_architecture import COMMANDS

from gspo_cli.cli.main import run_with_json_errors


@pytest.fixture(scope="module")
def place(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two runs, in which every command finds something."""
    folder = tmp_path_factory.mktemp("json")
    shutil.copytree(trained, folder / "results" / "s")
    (folder / "answers.jsonl").write_text('{"id": "1", "response": "\\\\boxed{7}", "gold": "7"}\n')
    return folder


RUN = "results/s/grpo-s0"
LINES = {
    "train": "train quickstart --dry-run",
    "cold-start": "cold-start SMOKE --set cold_start.steps=2 --out start",
    "rollout": "rollout SMOKE --out batch",
    "doctor": "doctor",
    "eval benchmarks": f"eval benchmarks {RUN} --samples 1 --limit 2",
    "eval list": "eval list",
    "eval grade": "eval grade answers.jsonl --grader aime",
    "recipes ls": "recipes ls",
    "recipes show": "recipes show quickstart",
    "recipes copy": "recipes copy gsm8k mine.toml",
    "recipes validate": "recipes validate quickstart",
    "recipes schema": "recipes schema",
    "recipes new": "recipes new a-new-one",
    "report plots": "report plots results/s",
    "report clip": "report clip results/s",
    "report fidelity": "report fidelity SMOKE --algo grpo,gspo"
    " --updates 0,1 --noise 0 --seeds 0 --batches 1 --reference 2 --out fidelity",
    "report compare": "report compare results/s --metric reward/mean:last10",
    "report map": "report map results/s --axis train.lr",
    "report claims": "report claims results/s",
    "report html": "report html results/s",
    "report batch": f"report batch {RUN}/rollouts/step_000001.parquet --model START --out figures",
    "report explain": "report explain",
    "runs export": "runs export results/s",
    "runs ls": "runs ls",
    "runs doctor": f"runs doctor {RUN}",
    "runs samples": f"runs samples {RUN}",
    "runs show": f"runs show {RUN}",
    "runs diff": f"runs diff {RUN} {RUN}",
    "runs path": "runs path s",
    "runs verify": "runs verify results/s",
}
"""A command line that does something in `place`."""
SLOW = ("cold-start", "doctor", "report batch", "report fidelity", "report html", "report map", "report plots")
ELSEWHERE = {
    "audit": "tests/audit",
    "runs prune": "tests/runlog/test_prune.py",
    "eval elo": "tests/evals/benchmarks/test_elo.py",
    "runs import": "tests/runlog",
    "report serve": "tests/report/test_serve.py",
}
"""Commands whose input takes more to make; they are run with --json in tests of their own."""


def test_every_command_is_run_with_it() -> None:
    assert COMMANDS.keys() == LINES.keys() | ELSEWHERE.keys()
    for name, where in ELSEWHERE.items():
        place = Path(__file__).parent.parent.parent / where
        texts = [f.read_text() for f in ([place] if place.is_file() else place.rglob("test_*.py"))]
        assert any("--json" in text and name.split()[-1] in text for text in texts), name


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in LINES])
def test_stdout_holds_objects_alone(
    gspo_here: Gspo, smoke: Path, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(place)
    there = {"SMOKE": str(smoke), "START": json.loads((place / RUN / "run.json").read_text())["start_model"]}
    done = gspo_here(*[there.get(word, word) for word in LINES[name].split()], "--json")
    found = objects(done.out)
    assert done.code in (0, 3), done.err  # 3: refused to compare one arm, something is missing here
    assert found or name == "runs diff"


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train", "--stepp", "3"], ["train", "quikstart"], ["rollout", "--seed", "x"], ["recipes", "show"]],
    ids=" ".join,
)
def test_an_error_is_one_object_on_stderr(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_with_json_errors([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (said,) = objects(err)
    assert said["exit"] == 2 and all(said[part].strip() for part in ("error", "why", "do"))


def test_so_it_is_of_the_program_itself(gspo_forked: Gspo) -> None:
    done = gspo_forked("train", "--stepp", "3", "--json")
    assert (done.code, done.out) == (2, "") and json.loads(done.err)["do"] == "see `gspo train -h`"


# Completion


def test_bash_is_offered_the_names_that_go_on() -> None:
    words = {"COMP_WORDS": "gspo train --algo grpo,gspo_", "COMP_CWORD": "3", "_GSPO_COMPLETE": "complete_bash"}
    done = subprocess.run([GSPO], env=os.environ | words, capture_output=True, text=True)
    assert done.stdout.split() == ["grpo,gspo_token"]
