"""What a command is given either has an effect or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Gspo, check_refused

from gspo_cli.config import TaskConfig
from gspo_cli.evals.targets import find_targets
from gspo_cli.tasks import Demonstrated, make_task

LR = ("--set", "arms.gspo.lr=1e-3", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "--algo", "gspo", "--set", "algo.lr=1e-5", *LR), "no arm takes it"),
        (("train", "--algo", "gspo", "--sweep", "algo.lr=1e-5,1e-4", *LR), "no arm takes it"),
        (("train", "--model", "m", "--set", "model.tiny.hidden=32", "--dry-run"), "both decide the model"),
        (("rollout", "quickstart", "--model", "m", "--set", "model.tiny.hidden=32"), "both decide the model"),
        (("rollout", "quickstart", "--show-prompt", "--seed", "5"), "--show-prompt with --seed"),
        (("report", "fidelity", "--set", "noise.tail=student_t"), "--noise and --set noise.tail"),
        (("report", "fidelity", "--pool", "a", "--pool", "b", "--seeds", "7"), "--pool with --seeds"),
        (("report", "fidelity", "quickstart", "--pool", "a"), "--pool with RECIPE"),
        (("eval", "benchmarks", "--answers", "a.jsonl", "--limit", "2"), "--answers with --limit"),
        (("eval", "benchmarks", "--answers", "a.jsonl", "--set", "x=1"), "--answers with --set"),
        *(
            (("eval", "benchmarks", "m", "--bench", "arithmetic", "--set", given), "has no part in an evaluation")
            for given in ("rollout.stop=['1']", "rollout.temperature=0.1", "rollout.samples=7", "model.tiny.hidden=32",
                          "rollout={max_lag=3}", "model.path=nope")
        ),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(gspo_here: Gspo, arguments: tuple[str, ...], said: str) -> None:
    check_refused(gspo_here(*arguments), said)


def test_a_template_is_around_the_questions_of_demonstrations_too() -> None:
    task = make_task(TaskConfig(template="Sum {question}"))
    assert isinstance(task, Demonstrated)
    pairs = task.demonstrations(0, 20)
    assert all(prompt.startswith("Sum ") and not text.startswith("Sum") for prompt, text in pairs)
    assert pairs == [(f"Sum {prompt}", text) for prompt, text in make_task(TaskConfig()).demonstrations(0, 20)]  # type: ignore[attr-defined]
    assert task.problems("train")[0].prompt.startswith("Sum ")


def test_an_evaluation_of_a_run_writes_prompts_as_the_run_did(tmp_path: Path) -> None:
    run = tmp_path / "s" / "gspo-s0"
    (run / "checkpoints" / "step-000001" / "model").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"seed": 3}))
    task = {"system": "Add.", "chat_template_kwargs": {"enable_thinking": False}, "template": "Sum {question}"}
    (run / "config.json").write_text(json.dumps({"model": {}, "rollout": {"stop": ["a"]}, "task": task}))
    (target,) = find_targets(str(run), tmp_path, False, None, [])
    assert (target.prompting.system, target.prompting.chat_template_kwargs) == ("Add.", {"enable_thinking": False})
    assert target.prompting.template is None  # a benchmark has a wording of its own
