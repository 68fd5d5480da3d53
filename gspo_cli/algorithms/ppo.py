"""PPO: token ratios as in GRPO, advantages from a learned critic.

J = 1/N sum_i 1/|y_i| sum_t min(w_it A_it, clip(w_it) A_it)                 arXiv 1707.06347, Eq. 7; 2507.18071, Eq. 1

B = responses, T = token positions
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ops
from gspo_cli.algorithms.clip import Clip, clipped_loss
from gspo_cli.algorithms.contract import LossInputs, LossOutput, Summary
from gspo_cli.algorithms.critic import gae, whiten

UNIT = "token"
REDUCTION = "seq-mean-token-mean"
token_terms = ops.sum_of_token_means
denominator = ops.num_responses
SUMMARY = Summary(advantage="GAE of a critic, whitened", default_of="verl (mean over tokens)")


@dataclass(frozen=True)
class Params:
    """The usual setting: clip arXiv 1707.06347, §6.1; GAE and critic as in verl, value clip as in TRL."""

    clip: Clip = Clip(low=0.2, high=0.2)
    dual_clip: float | None = None
    gamma: float = 1.0
    lam: float = 1.0
    value_clip: float = 0.2
    critic_lr: float = 1e-5


def advantage(rewards_B: Tensor, groups_B: Tensor, params: Params) -> Tensor:
    """The rewards themselves, 0 where unscored; `token_advantages` turns them into advantages."""
    return torch.where(rewards_B.isnan(), 0.0, rewards_B).float()


def token_advantages(rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor, params: Params) -> tuple[Tensor, Tensor]:
    """Whitened advantages and returns of each loss token [B, T], once per rollout batch.    arXiv 1506.02438, Eq. 16"""
    advantages_BT, returns_BT = gae(rewards_B, values_BT, mask_BT, params.gamma, params.lam)
    return whiten(advantages_BT, mask_BT), returns_BT


def loss(inputs: LossInputs, params: Params) -> LossOutput:
    """-J of one micro-batch.                                                                    arXiv 1707.06347, Eq. 7

    Differs from the paper: clipped in log space; mean over each response first (GSPO paper, Eq. 1).
    """
    log_ratio = ops.token_log_ratio(inputs.log_probs_BT, inputs.old_log_probs_BT, inputs.mask_BT)
    return clipped_loss(log_ratio, inputs, params, ops.sum_of_token_means, denominator(inputs.mask_BT, params))
