"""How per-token or per-response terms become one number, as a numerator; the denominator is known beforehand.

B = responses, T = token positions
"""

import torch
from torch import Tensor


def num_responses(mask_BT: Tensor) -> Tensor:
    """N: responses with at least one loss token."""
    return mask_BT.any(-1).sum()


def sum_of_token_means(terms: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i 1/|y_i| sum_t x_it, for terms [B, T]; over N this is `seq-mean-token-mean`."""
    lengths_B = mask_BT.sum(-1).clamp(min=1)
    return (torch.where(mask_BT, terms, 0.0).sum(-1) / lengths_B).sum()


def sum_of_sequences(terms_B1: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i x_i over responses with at least one loss token, for terms [B, 1]; over N this is `seq-mean`."""
    return torch.where(mask_BT.any(-1, keepdim=True), terms_B1, 0.0).sum()


def score_terms(weight: Tensor, log_probs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """weight * l at loss tokens, 0 elsewhere: [B, T]; for algorithms whose gradient is a detached weight on grad l."""
    return torch.where(mask_BT, weight, 0.0) * torch.where(mask_BT, log_probs_BT, 0.0)


def sum_of_tokens(terms: Tensor, mask_BT: Tensor) -> Tensor:
    """sum_i sum_t x_it; over T this is `token-mean`, over N `seq-mean-token-sum`."""
    return torch.where(mask_BT, terms, 0.0).sum()


def num_tokens(mask_BT: Tensor) -> Tensor:
    """T: loss tokens."""
    return mask_BT.sum()


def token_shares(weight: Tensor, mask_BT: Tensor) -> Tensor:
    """weight / |y_i| at loss tokens, 0 elsewhere: [B, T]; how a per-response mean reaches each token's gradient."""
    return torch.where(mask_BT, weight / mask_BT.sum(-1, keepdim=True).clamp(min=1), 0.0)


def per_token(advantages: Tensor) -> Tensor:
    """Advantages as a column [B, 1] if they are one a response, else as they are [B, T]."""
    return advantages[:, None] if advantages.dim() == 1 else advantages
