"""How far a sampling is: from the first token on, for every engine, and never too much."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path

import pytest
from program import Gspo
from transformers import PreTrainedModel

from gspo_cli.cli.views import training as activity
from gspo_cli.cli.views.evaluation import EvalView
from gspo_cli.cli.views.training import Activity, Drawing, batch_times
from gspo_cli.events import EvaluationProgress, SamplingProgress
from gspo_cli.rollout.builtin import engine as builtin
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.rollout.vllm.host import ProcessHost
from gspo_cli.types import Prompt, Sampling

PROMPTS = [Prompt("a", (4, 5, 6)), Prompt("b", (7, 8))]
SEEDS: dict[SampleKey, int] = {(p, i): 10 * i + ord(p) for p in "ab" for i in range(4)}


@pytest.mark.parametrize("budget", [1.0, 1e-9], ids=["all at once", "one by one"])
def test_the_built_in_engine_reports_every_token(
    tiny_moe: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    monkeypatch.setattr(builtin, "PROGRESS_S", 0.0)
    seen: list[SamplingProgress] = []
    engine = TransformersEngine(tiny_moe, frozenset({1}), budget, 600.0, progress=seen.append)
    samples = engine.generate(PROMPTS, Sampling(1.0, 12), SEEDS)
    tokens = sum(len(sample.token_ids) for sample in samples)
    assert seen[-1] == SamplingProgress(8, 8, tokens, 1.0)
    assert [p.tokens for p in seen] == sorted({p.tokens for p in seen}) and len(seen) >= 12
    assert all(a.share <= b.share and a.done <= b.done for a, b in itertools.pairwise(seen))
    assert any(sample.finish == "length" for sample in samples)
    silent = TransformersEngine(tiny_moe, frozenset({1}), budget, 600.0).generate(PROMPTS, Sampling(1.0, 12), SEEDS)
    assert silent == samples


def test_a_host_reports_before_it_answers() -> None:
    seen: list[SamplingProgress] = []
    options = {"stop_ids": [1], "vocabulary": 6, "fault": None, "call": 1, "every": False}
    program = Path(__file__).parent / "faulty_backend.py"
    host = ProcessHost(sys.executable, program, options, dict(os.environ), 60.0, seen.append)
    try:
        answer = host.ask(
            "generate", prompts=[[4]], requests=[[0, 1], [0, 2]], sampling={"max_tokens": 5}, deadline_s=9.0
        )
    finally:
        host.close()
    counts = [len(sample[3]) for sample in answer["samples"]]
    assert seen == [SamplingProgress(1, 2, counts[0], 0.5), SamplingProgress(2, 2, sum(counts), 1.0)]


def test_the_time_left_follows_from_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: now[0])
    drawing = Drawing()
    assert drawing.text() == ""
    now[0] += 20
    drawing.update(SamplingProgress(12, 64, 9600, 0.2))
    assert drawing.text() == "12/64 responses, 480 tok/s, at most 1:20 left"  # 20 s for a fifth
    now[0] += 10
    drawing.update(SamplingProgress(0, 64, 100, 0.01))  # another request
    now[0] += 1
    assert drawing.text() == "0/64 responses, 100 tok/s, at most 1:39 left"

    doing = Activity()
    doing.enter("rollout")
    now[0] += 42
    assert doing.text().startswith("sampling 0:42; memory ")
    doing.finish_batch(2, {})
    doing.enter("score")
    assert doing.text().startswith("batch 3: scoring 0:00; memory ")
    doing.enter("evaluate")  # of the batch just finished
    assert doing.text().startswith("batch 2: evaluating 0:00; memory ")
    assert [doing.line_is_due() for _ in range(2)] == [False, False]
    now[0] += activity.LINE_INTERVAL_S
    assert [doing.line_is_due() for _ in range(2)] == [True, False]
    doing.evaluate(EvaluationProgress(8, 20))
    doing.drawing.update(SamplingProgress(3, 8, 100, 0.5))
    assert doing.progress() == "11/20 answers"


def test_an_evaluation_in_training_counts_its_answers(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "LINE_INTERVAL_S", 0.0)
    more = ("--set", "eval.bench=['arithmetic']", "--set", "eval.limit=4", "--set", "eval.samples=1")
    done = gspo_here("train", smoke, "--algo", "grpo", "--steps", "1", *more, "--out", tmp_path)
    assert done.code == 0 and re.search(r"evaluating 0:\d\d, 4/4 answers", done.err), done.err


def test_the_phases_of_a_batch_add_up() -> None:
    values = {"batch_s": 81.2, "rollout_s": 60.5, "score_s": 0.4, "old_policy_s": 0.0, "update_s": 18.0}
    assert batch_times(values) == "last batch 81.2 s: sampling 60.1, scoring 0.4, update 18.0, other 2.7"
    assert batch_times({}) == ""


def test_an_engine_that_tries_itself_as_it_opens_is_not_shown_as_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with EvalView("arithmetic") as view:
        view.drawing(SamplingProgress(1, 4, 7, 0.3))
        assert capsys.readouterr().err == "" and view.done == 0
        view.progress(0, 4, 0)
        view.drawing(SamplingProgress(1, 4, 7, 0.3))
