"""Whether a server that keeps its weights serves the model whose name its answers will bear."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import torch

from gspo_cli.errors import GspoError
from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.hosted_engine import HostedEngine
from gspo_cli.types import Prompt, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLES, GAP = 8, 0.1
"""Half precision on one side gives about 0.01 nats; other weights give whole nats."""


def check_served_model(engine: HostedEngine, model: PreTrainedModel) -> None:
    """Samples a few tokens and compares their log-probabilities with those of `model`.

    Errors: GspoError when the server must be serving other weights.
    """
    prompt = Prompt("served", (model.config.vocab_size // 2,) * 2)
    seeds = {(prompt.problem_id, i): i for i in range(SAMPLES)}
    gaps: list[float] = []
    for sample in engine.generate([prompt], Sampling(temperature=1.0, max_new_tokens=16), seeds):
        ids_BT = torch.tensor([[*prompt.token_ids, *sample.token_ids]], device=model.device)
        mask_BT = torch.arange(ids_BT.shape[1], device=model.device)[None] >= len(prompt.token_ids)
        with torch.no_grad():
            ours_T = token_scores(model.eval(), ids_BT, mask_BT, 1.0).log_probs_BT[mask_BT].tolist()
        gaps += [abs(ours - theirs) for ours, theirs in zip(ours_T, sample.log_probs, strict=True)]
    gap = fmean(gaps)
    if not gap <= GAP:
        raise GspoError(
            f"the server does not serve {model.name_or_path}",
            f"its log-probabilities of {len(gaps)} tokens differ from that model's by {gap:.2g} nats in the mean; it "
            f"serves {engine.info.versions['model']}",
            "name the model that it serves",
        )
