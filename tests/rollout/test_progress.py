"""How far a sampling is: from the first token on, for every engine, and never too much."""

import itertools

import pytest
from transformers import PreTrainedModel

from gspo_cli.cli.views import training as activity
from gspo_cli.cli.views.training import Activity, Drawing
from gspo_cli.events import EvaluationProgress, PhaseBegun, SamplingProgress
from gspo_cli.rollout.builtin import engine as builtin
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.engine import SampleKey
from gspo_cli.types import Prompt, Sampling

PROMPTS = [Prompt("a", (4, 5, 6)), Prompt("b", (7, 8))]
SEEDS: dict[SampleKey, int] = {(p, i): 10 * i + ord(p) for p in "ab" for i in range(4)}


@pytest.mark.parametrize("budget", [1.0, 1e-9], ids=["all at once", "one by one"])
def test_the_own_engine_reports_tokens(
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
    doing.take(PhaseBegun("evaluate"))
    assert [doing.line_is_due() for _ in range(2)] == [False, False]
    now[0] += activity.LINE_INTERVAL_S
    assert [doing.line_is_due() for _ in range(2)] == [True, False]
    doing.take(EvaluationProgress(8, 20))
    doing.take(SamplingProgress(3, 8, 100, 0.5))
    assert doing.progress() == "11/20 answers"
