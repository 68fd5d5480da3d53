"""The worked examples of docs/extending.md run as they stand there."""

import json
import re
from pathlib import Path

import pytest
from program import Gspo, check_refused, ok, strict_lines

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's Python blocks written to the files that their first lines name."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        first = re.match(r"# (\S+\.py)\n", block)
        assert first is not None, block
        with (tmp_path / first.group(1)).open("a") as file:
            file.write(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SETTINGS = (
    "model.threads=1", "model.tiny.hidden=16", "rollout.prompts=8", "cold_start.steps=5", "rollout.max_new_tokens=12",
    "eval.bench=[]",
)  # fmt: skip
QUICK = [*(word for setting in SETTINGS for word in ("--set", setting)), "--steps", "2"]


def test_task_and_reward(modules: Path, gspo: Gspo) -> None:
    ok(gspo("train", "quickstart", "--set", "task.name=my_tasks:Reverse", *QUICK, "--name", "task"))
    run = (modules / "results" / "task" / "gspo-s0" / "run.json").read_text()
    assert '"my_tasks:Reverse"' in run and '"file": "my_tasks.py"' in run
    for function in ("reward", "trl_reward", "length_reward"):
        ok(gspo("train", "--set", f"task.reward=my_rewards:{function}", *QUICK, "--name", function))


def test_algorithm(modules: Path, gspo: Gspo) -> None:
    ok(gspo("train", "--algo", "grpo,my_algorithm:", *QUICK, "--name", "algo"))
    assert (modules / "results" / "algo" / "my_algorithm-s0" / "metrics.jsonl").exists()


def test_a_plugin_without_the_contract_is_refused(modules: Path, gspo: Gspo) -> None:
    check_refused(gspo("train", "--algo", "my_tasks:", *QUICK, "--name", "bad"), "'Params'")
    assert not (modules / "results").exists()


def test_benchmark(modules: Path, gspo: Gspo) -> None:
    bench = ["--set", 'eval.bench=["arithmetic", "my_bench:BACKWARDS"]', "--set", "eval.limit=3"]
    ok(gspo("train", *QUICK, *bench, "--name", "bench"))
    lines = strict_lines(modules / "results" / "bench" / "gspo-s0" / "metrics.jsonl")
    assert any("backwards/avg@4" in line["metrics"] for line in lines)
    ok(gspo("eval", "benchmarks", "--bench", "my_bench:BACKWARDS", "--json"))
    summary = next((modules / "results" / "bench").rglob("summary.json")).read_text()
    about = json.loads(summary)
    assert about["benchmark"] == "backwards" and "my_bench.py" in summary and about["num_problems"] == 16


def test_what_is_no_benchmark_is_refused(modules: Path, gspo: Gspo) -> None:
    for name in ("my_bench:load", "my_bench:ARITHMETIC", "my_bench"):
        check_refused(gspo("eval", "benchmarks", "--bench", name))
    assert not (modules / "results").exists()


def test_engine(modules: Path, gspo: Gspo, smoke: Path) -> None:
    engine = ["--set", "rollout.engine=my_engine:Plain", "--set", "eval.bench=[]"]
    ok(gspo("train", smoke, *engine, "--name", "plain"))
    run = modules / "results" / "plain" / "gspo-s0"
    record = json.loads((run / "run.json").read_text())
    assert record["engine"]["name"] == "plain"
    assert record["plugins"]["my_engine:Plain"]["file"] == "my_engine.py"
    rollouts = [line for line in strict_lines(run / "metrics.jsonl") if line["kind"] == "rollout"]
    assert len(rollouts) == 2
    floors = [line["metrics"].get("mismatch/floor") for line in rollouts]  # absent from a batch without any signal
    assert max(floor for floor in floors if floor is not None) < 1e-5
