"""What a critic adds: generalised advantage estimation and the clipped value loss.

B = responses, T = token positions
"""

import torch
from torch import Tensor

from gspo_cli.types import Mean, Reduced, Spread


def gae(rewards_B: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each loss token: [B, T] each, 0 outside the mask.            arXiv 1506.02438, Eq. 16

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}, R_t = A_t + V_t. The reward stands at the
    last loss token and V after it is 0. "Next" is the next loss token: masked positions (prompt, tool output) are
    passed over in V and in A.
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
    """(A - mean) / std over all loss tokens of the rollout batch; 0 where there is no spread: no action was better."""
    values_N = advantages_BT[mask_BT].double()
    std = values_N.std() if len(values_N) > 1 else torch.zeros(())
    if float(std) <= 1e-9:
        return torch.zeros_like(advantages_BT)
    return torch.where(mask_BT, (advantages_BT - values_N.mean()) / std, 0.0).to(advantages_BT.dtype)


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float
) -> tuple[Tensor, Tensor, dict[str, Reduced]]:
    """Numerator and denominator of 0.5 * mean_t max((V - R)^2, (clip(V, V_old +- c) - R)^2), with the value/* metrics.

    arXiv 1707.06347's code (openai/baselines, ppo2). The gradient is 0 where the clipped square is the larger one.
    """
    values_BT, old_values_BT, returns_BT = (
        torch.where(mask_BT, t, 0.0) for t in (values_BT, old_values_BT, returns_BT)
    )
    # bounds first: old + (V - old) is not V after rounding, and would count as clipped
    near_BT = torch.maximum(torch.minimum(values_BT, old_values_BT + clip), old_values_BT - clip)
    plain_BT, clipped_BT = (values_BT - returns_BT).square(), (near_BT - returns_BT).square()
    numerator = 0.5 * torch.maximum(plain_BT, clipped_BT).sum()
    tokens = mask_BT.sum()
    residual_N, returns_N = (returns_BT - values_BT)[mask_BT].detach().double(), returns_BT[mask_BT].double()
    metrics: dict[str, Reduced] = {
        "value/loss": Mean(numerator.detach(), tokens),
        "value/clip_frac": Mean(((clipped_BT > plain_BT) & mask_BT).sum(), tokens),
        "value/residual_std": _spread(residual_N),
        "value/return_std": _spread(returns_N),
    }
    return numerator, tokens, metrics


def _spread(values: Tensor) -> Spread:
    mean = values.sum() / max(values.numel(), 1)
    return Spread(torch.full_like(mean, values.numel()), mean, (values - mean).square().sum())
