"""GSPO-token against GSPO on one batch with the same advantage at every token of a response: exact, no statistics.

B = responses, T = response token positions
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_cli.algorithms import ALGORITHMS, LossOutput
from gspo_cli.report.batch_data import StoredBatch
from gspo_cli.report.batch_losses import Loss, TokenScores, published


@dataclass(frozen=True, slots=True)
class TokenForm:
    """Largest differences between `gspo` and `gspo_token`, float64."""

    loss: float
    gradient: float
    """Of dJ/dl over tokens, by autograd, over the largest entry of GSPO's."""
    masks_equal: bool
    """Whether the same tokens are clipped."""


def token_form(batch: StoredBatch, scores: TokenScores, gspo: Loss) -> TokenForm:
    """Both losses at GSPO's published setting.   Paper: arXiv 2507.18071, §4.3, Eq. 13-17."""
    (plain, plain_BT), (token, token_BT) = (_of(name, batch, scores, gspo) for name in ("gspo", "gspo_token"))
    scale = float(plain_BT.abs().max())
    apart = float((plain_BT - token_BT).abs().max())
    assert plain.clipped_BT is not None and token.clipped_BT is not None
    return TokenForm(
        loss=abs(float((plain.loss_numerator / plain.denominator - token.loss_numerator / token.denominator).detach())),
        gradient=apart / scale if scale else apart,
        masks_equal=bool((plain.clipped_BT == token.clipped_BT).all()),
    )


def _of(name: str, batch: StoredBatch, scores: TokenScores, gspo: Loss) -> tuple[LossOutput, Tensor]:
    """(the loss, its gradient for each token's log-probability [B, T])."""
    now_BT = scores.now_BT.detach().clone().requires_grad_()
    algorithm = ALGORITHMS[name]
    scored_B = ~gspo.advantages_B.isnan()
    output = algorithm.loss(
        now_BT, scores.old_BT, gspo.advantages_B, scores.mask_BT & scored_B[:, None], published(algorithm, batch)
    )
    (gradient_BT,) = torch.autograd.grad(output.loss_numerator / output.denominator, now_BT)
    return output, gradient_BT
