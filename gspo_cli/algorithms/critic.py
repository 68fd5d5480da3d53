"""Generalised advantage estimation and the clipped value loss, for algorithms with a critic.

B = responses, T = token positions
"""

import torch
from torch import Tensor

from gspo_cli.algorithms.metrics import spread
from gspo_cli.types import Mean, Reduced


def gae(rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each loss token: [B, T] each, 0 outside the mask.            arXiv 1506.02438, Eq. 16

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}, R_t = A_t + V_t. The last loss token gets
    the reward, and V after it is 0. "Next" is the next loss token: masked positions (prompt, tool output) are skipped
    in V and in A.
    """
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B, next_advantage_B = torch.zeros_like(values_BT[:, 0]), torch.zeros_like(values_BT[:, 0])
    reward_B = rewards_B.to(values_BT)
    for t in reversed(range(values_BT.shape[1])):
        here_B = mask_BT[:, t]
        delta_B = reward_B + gamma * next_value_B - torch.where(here_B, values_BT[:, t], 0.0)
        advantage_B = delta_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = torch.where(here_B, advantage_B, 0.0)
        next_value_B = torch.where(here_B, values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(here_B, advantage_B, next_advantage_B)
        reward_B = torch.where(here_B, 0.0, reward_B)
    return advantages_BT, torch.where(mask_BT, advantages_BT + values_BT, 0.0)


def whiten(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(A - mean) / std over all loss tokens of the rollout batch; 0 without spread, where no action was better."""
    return torch.where(mask_BT, standardized(advantages_BT, advantages_BT[mask_BT]), 0.0)


def whiten_responses(advantages_B: Tensor, lengths_B: Tensor) -> Tensor:
    """The same for responses of `lengths_B` loss tokens that share an advantage, 0 for those without a token: [B]."""
    whitened_B = standardized(advantages_B, advantages_B.repeat_interleave(lengths_B))
    return torch.where(lengths_B > 0, whitened_B, 0.0)


def standardized(values: Tensor, tokens_N: Tensor) -> Tensor:
    """(x - mean) / std of the values, with mean and std of the tokens'; 0 where those do not differ."""
    tokens_N = tokens_N.double()
    std = tokens_N.std() if len(tokens_N) > 1 else torch.zeros(())
    if float(std) <= 1e-9:
        return torch.zeros_like(values)
    return ((values - tokens_N.mean()) / std).to(values.dtype)


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float
) -> tuple[Tensor, Tensor, dict[str, Reduced]]:
    """Numerator and denominator of 0.5 * mean_t max((V - R)^2, (clip(V, V_old +- c) - R)^2), with the value/* metrics.

    From the code of arXiv 1707.06347 (openai/baselines, ppo2). The gradient is 0 where the clipped square is larger.
    """
    values_BT, old_values_BT, returns_BT = (
        torch.where(mask_BT, t, 0.0) for t in (values_BT, old_values_BT, returns_BT)
    )
    # bounds first: old + (V - old) is not V after rounding, and would count as clipped
    near_BT = torch.maximum(torch.minimum(values_BT, old_values_BT + clip), old_values_BT - clip)
    plain_BT, clipped_BT = (values_BT - returns_BT).square(), (near_BT - returns_BT).square()
    numerator = 0.5 * torch.maximum(plain_BT, clipped_BT).sum()
    tokens = mask_BT.sum()
    metrics: dict[str, Reduced] = {
        "value/loss": Mean(numerator.detach(), tokens),
        "value/clip_frac": Mean(((clipped_BT > plain_BT) & mask_BT).sum(), tokens),
        "value/residual_std": spread((returns_BT - values_BT).detach(), mask_BT),
        "value/return_std": spread(returns_BT, mask_BT),
    }
    return numerator, tokens, metrics
