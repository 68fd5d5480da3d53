"""GEPO: one importance ratio a response, to what the old policy expects of the whole group.

J = 1/N sum_i min(x_i A_i, clip(x_i) A_i),  x_i = p_i / E,  E = sum_j q_j^2 / sum_j q_j over i's group
                                                                                                 arXiv 2508.17850, §3

p_i, q_i = geometric mean of the token probabilities of response i, now and under the old policy.

B = responses, T = token positions
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary

UNIT = "sequence"
REDUCTION = "seq-mean"
ONE_ADVANTAGE = True
WHOLE_GROUPS = True
token_terms = ops.sum_of_token_means
advantage = ops.group_advantage
denominator = ops.num_responses
SUMMARY = Summary(ratio="sequence p / E[q] of the group", positive="p / E[q] <= {high}", negative="p / E[q] >= {low}")


@dataclass(frozen=True)
class Params:
    """The clip of the authors' code, which is TRL's default (HanlardResearch/HeteroRL_GEPO)."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                      arXiv 2508.17850, §3

    Shapes: advantages [B].
    Errors: asserts that groups are given. A ratio is not 1 under the old policy, so there, too, responses are clipped.
    Differs from the paper: clipped in log space; the group is the prompt's, where the authors' code takes the batch.
    """
    assert inputs.groups_B is not None, "gepo needs the group of each response"
    old_B1 = ops.sequence_log_ratio(inputs.old_log_probs_BT, torch.zeros_like(inputs.old_log_probs_BT), inputs.mask_BT)
    expected_B1 = group_expectation(old_B1[:, 0], inputs.groups_B, inputs.mask_BT)[:, None]
    log_ratio = ops.sequence_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    log_ratio = log_ratio + (old_B1 - expected_B1)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_sequences, denominator(inputs.mask_BT, params))


def group_expectation(old_B: Tensor, groups_B: Tensor, mask_BT: Tensor) -> Tensor:
    """log(sum_j q_j^2 / sum_j q_j) over each response's group: [B], from log q_i [B].

    Responses without loss tokens count only for themselves, where the result is not used.
    """
    counts_BB = (groups_B[:, None] == groups_B) & (
        mask_BT.any(-1) | torch.eye(len(groups_B), dtype=torch.bool, device=groups_B.device)
    )
    grouped_BB = torch.where(counts_BB, old_B, -torch.inf)
    return (2 * grouped_BB).logsumexp(-1) - grouped_BB.logsumexp(-1)
