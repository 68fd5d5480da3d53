"""One rollout batch through the loop: what is fixed before the first update, and how many updates there are.

B = responses, T = token positions
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gspo_cli.config import Recipe
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout.builtin.engine import TransformersEngine
from gspo_cli.rollout.collect import PromptStream
from gspo_cli.runlog.log import RunLog
from gspo_cli.training import loop
from gspo_cli.training.loop import train_batch
from gspo_cli.training.session import Session
from gspo_cli.training.setup import make_learner
from gspo_cli.training.step.metrics import Accumulator
from gspo_cli.training.step.update import Learner
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.types import MiniBatch, Problem, Score

PROBLEMS = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(8)]


class LengthTask:
    """Pays for the characters of a response, so that almost every group has a spread."""

    def problems(self, _split: str) -> list[Problem]:
        return PROBLEMS

    def reward(self, _problem: Problem, text: str) -> Score:
        return Score(float(sum(map(ord, text))), "")


def session(model: PreTrainedModel, folder: Path, **tables: dict[str, Any]) -> Session:
    """Four mini-batches of two prompts each, at a learning rate that moves the policy visibly; `tables` change that."""
    table: dict[str, Any] = {
        "name": "loop",
        "model": {"tiny": {"hidden": 16, "layers": 2, "experts": 6, "top_k": 2}},
        "rollout": {"prompts": 8, "samples": 4, "max_new_tokens": 6, "keep_newest": False},
        "train": {"steps": 1, "minibatches": 4, "micro_batch_tokens": 40, "lr": 0.02, "warmup": 0},
        "algo": {"name": "gspo"},
    }
    recipe = Recipe.model_validate(table | {name: table[name] | values for name, values in tables.items()})
    (run,) = plan_runs(recipe, [recipe.algo.name], [0])
    policy = copy.deepcopy(model)
    engine = TransformersEngine(policy, (1,), 1.0, 600.0)
    stream = PromptStream(PROBLEMS, recipe.rollout.prompts, 0)
    return Session(
        run, make_learner(run, policy), engine, character_tokenizer(), LengthTask(), stream, RunLog(folder, "")
    )


@pytest.mark.parametrize("algo", ["grpo", "gspo"])
def test_all_mini_batches_share_the_old_policy_of_the_batch(
    tiny_moe: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    seen: list[MiniBatch] = []
    values: list[dict[str, float | None]] = []
    inner = loop.update

    def spied(learner: Learner, mini_batch: MiniBatch, lr: float, first: bool) -> Accumulator:
        seen.append(mini_batch)
        done = inner(learner, mini_batch, lr, first)
        values.append(done.result().values)
        return done

    monkeypatch.setattr(loop, "update", spied)
    one = session(tiny_moe, tmp_path, algo={"name": algo})
    train_batch(one, 1)

    # one optimizer step each, whatever the number of passes; whole groups of 4, each response once
    assert len(seen) == 4 and all(len(mini.micro_batches) > 1 for mini in seen)
    assert [len(mini.mask_BT) for mini in seen] == [8] * 4
    assert [v["update/applied"] for v in values] == [1.0] * 4
    # the old log-probabilities of every mini-batch are those of the policy that sampled, not of the one before it
    with torch.no_grad():
        for micro in (m for mini in seen for m in mini.micro_batches):
            start_BT = token_scores(tiny_moe, micro.input_ids_BT, micro.mask_BT, 1.0).log_probs_BT
            torch.testing.assert_close(micro.old_log_probs_BT, start_BT, rtol=0, atol=1e-6)
    # so the first mini-batch is on policy, exactly, and the others are not
    assert values[0]["ratio/token_log_absmax"] == values[0]["clip/token_frac"] == 0
    assert all((v["ratio/token_log_absmax"] or 0) > 1e-3 for v in values[1:])
    assert max(v["clip/token_frac"] or 0 for v in values[1:]) > 0
    assert values[0]["moe/slot_churn"] == 0 and all(v["moe/slot_churn"] for v in values[1:])
